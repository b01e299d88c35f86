"""Measures of each attention head over many sentences: do heads "perform different tasks" (the paper's appendix)?

The attention weights of one layer for one sentence are an array w of shape (H, Q, M): H heads, Q queries, M memory
positions. The offset of a pair (query, memory position) is the memory position minus the position of the query.
Measures include only queries that have a previous and a next memory position. In a decoder they include only pairs
without a position in the future.

Shapes: B sentences (1 here), S source, D d_model, N pairs with the same offset (in `largest_HN`: queries), O offsets.
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
from experiments.evaluation.load_network import load_model, load_tokenizers, spacing
from model.layers.attention.watching import watching
from model.network import build_model
from model.protocol import Network

# offset: mean of Σ w·offset, in positions. entropy: mean entropy of w, in nats. previous, next, same, first: mean
# weight on these positions. relative: share of the variance of w that a function of the offset explains (R²).
# positional: share of queries whose largest weight is at the most frequent offset. brackets: share of the weight on
# other positions that lies within the smallest bracket of two or more words around the query.
MEASURES = ("offset", "entropy", "previous", "next", "same", "first", "relative", "positional", "brackets")
# Lowest value of `positional` at which Voita et al. 2019 (arXiv 1905.09418, section 5.1) call a head positional.
POSITIONAL = 0.9
Weights = NDArray[np.float64]


class Sentence(NamedTuple):
    """A source and a target text as ids of pieces, without the end of sentence.

    within: for each source piece, the pieces in the smallest bracket around it (`_within`); None without a tree.
    """

    source: Sequence[int]
    target: Sequence[int]
    within: NDArray[np.bool_] | None = None


class Heads:
    """Statistics of the heads of one layer, accumulated over sentences."""

    def __init__(self, causal: bool) -> None:
        self.causal = causal
        self.rows: list[Weights] = []  # per sentence: the first six measures, (6, H, queries)
        self.largest: list[NDArray[np.int64]] = []  # per sentence: the offset of the largest weight, (H, queries)
        self.offsets: dict[int, Weights] = {}  # per offset: number of pairs, Σ w, Σ w², each of shape (H,)
        self.brackets: list[Weights] = []  # per sentence: the measure `brackets`, (H, queries)

    def add(self, weights_HQM: Weights, within_QM: NDArray[np.bool_] | None = None) -> None:
        """Add the weights of one sentence."""
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
        """Return the measures of each head; [] if no weights were added.

        `brackets` is None if no sentence has brackets.
        """
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
    """Return one row per head: kind (encoder, decoder, cross), layer and head (from 1), and the measures."""
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
        for kind, weights_HQM in seen:  # in the order of the layers
            counts[kind] += 1
            heads = layers.setdefault((kind, counts[kind]), Heads(kind == "decoder"))
            heads.add(weights_HQM.numpy(), sentence.within if kind == "encoder" else None)
    return [
        {"kind": kind, "layer": layer, "head": head, **measures}
        for (kind, layer), heads in layers.items()
        for head, measures in enumerate(heads.measures(), start=1)
    ]


def positional_heads(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], tuple[int, int]]:
    """Return (number of positional heads, number of heads) per (kind of attention, kind of weights).

    rows: the result of `of_run`.
    """
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for row in rows:
        positional, heads = found.get((row["kind"], row["weights"]), (0, 0))
        found[row["kind"], row["weights"]] = (positional + (row["positional"] >= POSITIONAL), heads + 1)
    return found


@runtime_checkable
class HasSpans(Protocol):
    """A corpus that knows the brackets of its source sentences, such as the corpora of the extra `parsing`."""

    def source_spans(self, set_name: str) -> Iterator[list[tuple[int, int]]]:
        """Yield the brackets of each sentence as pairs (first word, last word + 1)."""


class TextPair(NamedTuple):
    """A source and a target text. brackets: pairs (first word, last word + 1) if the source has a tree."""

    source: str
    target: str
    brackets: Sequence[tuple[int, int]] | None = None


def of_run(
    config: RunConfig, attempt: Path, choice: str | None, sizes: tuple[int, int], lines: Iterable[TextPair]
) -> list[dict[str, Any]]:
    """Return the rows of the trained heads of a run, then those of a baseline, the same network with random weights.

    The key `weights` of a row is "trained" or "random". choice: which checkpoint to load; None means the one in the
    configuration. sizes: the sizes of the target and the source vocabulary.
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
    """Return a mask of shape (Q, Q), or None if the line has no brackets. Q counts the source pieces and EOS.

    Row q is True at the pieces in the smallest bracket of two or more words around the word of piece q.
    """
    if line.brackets is None:
        return None
    pieces = [len(ids) for ids in tokenizer.encode_batch(line.source.split(" "))]
    first = np.concatenate([[0], np.cumsum(pieces)])  # first piece of each word
    within = np.zeros((first[-1] + 1, first[-1] + 1), dtype=bool)
    for start, end in sorted(line.brackets, key=lambda bracket: bracket[0] - bracket[1]):  # largest bracket first
        if end - start > 1:
            within[first[start] : first[end]] = False
            within[first[start] : first[end], first[start] : first[end]] = True
    return within
