"""Measures of each attention head over many sentences: do heads "perform different tasks" (appendix)?

Each sentence's weights of one layer are w of shape (H, Q, M): H heads, Q queries, M memory positions. The offset of a
pair is its memory position minus its query's. Queries count that have a previous and a next memory position: without
either they have less to choose from. Pairs of the future, which a decoder never sees, do not count.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from experiments.config.network_change import change_network, changes_of
from experiments.config.run_config import RunConfig
from experiments.data.encoding.tokenizer import BOS_ID, EOS_ID, Tokenizer
from experiments.device import Device
from experiments.device_spec import DeviceSpec
from experiments.evaluation.likelihood import evaluating
from experiments.evaluation.trained import load_model, load_tokenizers, spacing
from model.layers.attention.watching import watching
from model.network import build_model
from model.protocol import Network

# By name: the mean of w·offset in positions; the entropy in nats; the mean weight on four positions; R² of weights on
# the offset, the share of their variance that a function of the offset alone explains; the share of queries whose
# largest weight is at the commonest offset; of the weight on other positions, the share within the smallest bracket of
# two words or more around the query.
MEASURES = ("offset", "entropy", "previous", "next", "same", "first", "relative", "positional", "brackets")
# From this share of queries on, Voita et al. 2019 (arXiv 1905.09418, section 5.1) call a head positional.
POSITIONAL = 0.9
Weights = NDArray[np.float64]


class Sentence(NamedTuple):
    """A pair of texts as pieces, without ends. `within`: pairs of source pieces in one smallest bracket, if known."""

    source: Sequence[int]
    target: Sequence[int]
    within: NDArray[np.bool_] | None = None


class Heads:
    """The sums of one layer's heads over the sentences so far."""

    def __init__(self, causal: bool) -> None:
        self.causal = causal
        self.rows: list[Weights] = []  # (measures but the last three, H, queries) of each sentence
        self.largest: list[NDArray[np.int64]] = []  # (H, queries): the offset of the largest weight
        self.offsets: dict[int, Weights] = {}  # by offset: number of pairs, Σ w, Σ w², each (H,)
        self.brackets: list[Weights] = []  # (H, queries): the share of each query

    def add(self, weights_HQM: Weights, within_QM: NDArray[np.bool_] | None = None) -> None:
        """One more sentence."""
        H, Q, M = weights_HQM.shape
        inner = slice(1, min(Q, M - 1))
        offset_QM = (np.arange(M) - np.arange(Q)[:, None])[inner]
        w_HQM = weights_HQM[:, inner].astype(np.float64)
        if not w_HQM.size:
            return
        logarithms = np.log(w_HQM, out=np.zeros_like(w_HQM), where=w_HQM > 0)
        shares = [(w_HQM * (offset_QM == place)).sum(-1) for place in (-1, 1, 0)]
        self.rows.append(np.stack([(w_HQM * offset_QM).sum(-1), -(w_HQM * logarithms).sum(-1), *shares, w_HQM[..., 0]]))
        self.largest.append(np.take_along_axis(offset_QM[None], w_HQM.argmax(-1)[..., None], axis=-1)[..., 0])
        for offset in np.unique(offset_QM[offset_QM <= 0] if self.causal else offset_QM):
            w_HN = w_HQM[:, offset_QM == offset]
            found = np.stack([np.full(H, w_HN.shape[1]), w_HN.sum(1), (w_HN**2).sum(1)])
            self.offsets[int(offset)] = self.offsets.get(int(offset), 0) + found
        if within_QM is not None:
            other = offset_QM != 0
            in_bracket = within_QM[inner] & other
            has = in_bracket.any(-1)
            total = np.maximum((w_HQM * other).sum(-1), 1e-12)
            self.brackets.append(((w_HQM * in_bracket).sum(-1) / total)[:, has])

    def measures(self) -> list[dict[str, float | None]]:
        """The measures of each head, in order; None where no sentence had what is measured."""
        if not self.rows:
            return []
        means = np.concatenate(self.rows, axis=-1).mean(-1)
        largest_HN = np.concatenate(self.largest, axis=-1)
        count_O, sum_O, square_O = np.stack(list(self.offsets.values()), axis=1)
        mean = sum_O.sum(0) ** 2 / count_O.sum(0)
        total = square_O.sum(0) - mean
        between = (sum_O**2 / count_O).sum(0) - mean
        relative = np.where(total > 1e-9, between / np.maximum(total, 1e-9), 0.0)
        positional = [np.unique(offsets, return_counts=True)[1].max() / offsets.size for offsets in largest_HN]
        inside = np.concatenate(self.brackets, axis=-1) if self.brackets else np.empty((len(relative), 0))
        brackets = inside.mean(-1).tolist() if inside.size else [None] * len(relative)
        columns = [*means.tolist(), relative.tolist(), positional, brackets]
        return [dict(zip(MEASURES, values, strict=True)) for values in zip(*columns, strict=True)]


def roles(model: Network, sentences: Iterable[Sentence]) -> list[dict[str, Any]]:
    """A row per head: kind (encoder, decoder, cross), layer and head from 1, and its measures."""
    layers: dict[tuple[str, int], Heads] = {}
    seen: list[tuple[str, Tensor]] = []

    def see(kind: str, weights_BHQM: Tensor) -> None:
        seen.append((kind, weights_BHQM[0]))

    for sentence in sentences:
        seen.clear()
        with evaluating(model), watching(model, see):
            memory_BSD = model.encode(torch.tensor([[*sentence.source, EOS_ID]]))
            model.decode(torch.tensor([[BOS_ID, *sentence.target]]), memory_BSD)
        counts = dict.fromkeys(("encoder", "decoder", "cross"), 0)
        for kind, weights_HQM in seen:  # layer by layer
            counts[kind] += 1
            heads = layers.setdefault((kind, counts[kind]), Heads(kind == "decoder"))
            heads.add(weights_HQM.numpy(), sentence.within if kind == "encoder" else None)
    return [
        {"kind": kind, "layer": layer, "head": head, **measures}
        for (kind, layer), heads in layers.items()
        for head, measures in enumerate(heads.measures(), start=1)
    ]


def positional_heads(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], tuple[int, int]]:
    """By kind of attention and of weights: the numbers of positional heads and of all heads. rows: of `of_run`."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for row in rows:
        positional, heads = found.get((row["kind"], row["weights"]), (0, 0))
        found[row["kind"], row["weights"]] = (positional + (row["positional"] >= POSITIONAL), heads + 1)
    return found


@runtime_checkable
class HasSpans(Protocol):
    """A corpus that knows the brackets of its source sentences, such as that of the extra `parsing`."""

    def source_spans(self, set_name: str) -> Iterator[list[tuple[int, int]]]:
        """Yield the brackets of each sentence as (first word, word behind the last)."""


class TextPair(NamedTuple):
    """A pair of texts, and the source's brackets as (first word, word behind the last) if it has a tree."""

    source: str
    target: str
    brackets: Sequence[tuple[int, int]] | None = None


def of_run(
    config: RunConfig, attempt: Path, choice: str | None, sizes: tuple[int, int], lines: Iterable[TextPair]
) -> list[dict[str, Any]]:
    """The rows of a run's heads, then of the same network with fresh weights, the baseline: `weights` tells which.

    choice: of checkpoint; the configuration's if None. sizes: of target and source vocabulary.
    """
    device = Device.open(DeviceSpec("cpu"), "fp32")
    source, target = load_tokenizers(config, attempt)
    sentences = [
        Sentence(source.encode(line.source), target.encode(line.target), _within(source, line)) for line in lines
    ]
    choice = choice or config.evaluation.checkpoint
    trained = load_model(config, choice, spacing(config, choice), attempt, device, sizes).eval()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        fresh = build_model(config.model, *sizes).eval()
        change_network(config, changes_of(config), fresh, saved=trained.state_dict())
    return [
        {"weights": weights, **row}
        for weights, model in (("trained", trained), ("random", fresh))
        for row in roles(model, sentences)
    ]


def _within(tokenizer: Tokenizer, line: TextPair) -> NDArray[np.bool_] | None:
    """(Q, Q) with the end: for each piece, the pieces of the smallest bracket of two words or more around its word."""
    if line.brackets is None:
        return None
    pieces = [len(ids) for ids in tokenizer.encode_batch(line.source.split(" "))]
    first = np.concatenate([[0], np.cumsum(pieces)])  # of each word
    within = np.zeros((first[-1] + 1, first[-1] + 1), dtype=bool)
    for start, end in sorted(line.brackets, key=lambda bracket: bracket[0] - bracket[1]):  # the largest first
        if end - start > 1:
            within[first[start] : first[end]] = False
            within[first[start] : first[end], first[start] : first[end]] = True
    return within
