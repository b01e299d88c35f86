"""Translate sentences: sort them by length, pack them into batches, and search.

Shapes: L layers, B sentences, H heads, T target, S source.
"""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from experiments.data.encoding.tokenizer import BOS_ID, UNK_ID, Tokenizer
from experiments.device import Device
from experiments.errors import Preempted
from experiments.evaluation.beam import Hypothesis, SearchSettings, beam_search
from experiments.evaluation.likelihood import by_length, check_length, evaluating, pad, pad_sources
from model.config import ModelConfig
from model.layers.attention.watching import watching
from model.protocol import Network

# Maximum number of slots in the key/value cache of a batch: sentences × beam size × maximum output length. For the
# base model, a slot takes 24 KB in fp32, so the caches take 0.4 GB and 3.2 GB. On a CPU, larger batches of small models
# were not faster.
BATCH_SLOTS = {"cpu": 2**14, "cuda": 2**17}
LEAST_SLOTS = 2**11  # minimum size of a batch in slots; a smaller extra batch for an idle worker would save no time
CHECK_EVERY = {"cpu": 1, "cuda": 8}  # steps between checks for ended sentences

Progress = Callable[[int, int], None]  # called with the number of translated sentences and the number of all sentences


def translate(
    model: Network,
    sources: Sequence[Sequence[int]],
    settings: SearchSettings,
    device: Device,
    *,
    max_batch_slots: int | None = None,
    progress: Progress | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> list[list[Hypothesis]]:
    """Return the hypotheses of each source, best first. The sources keep their order.

    An empty source has one empty hypothesis, for which the model is not used. The result for a source does not depend
    on `max_batch_slots` or on the other sources. In float64 this holds exactly; in fp32, hypotheses with nearly equal
    scores may change their order.

    sources: ids without EOS. This function adds EOS.
    max_batch_slots: maximum number of slots in the key/value cache of a batch (see BATCH_SLOTS).

    Raises UserError if a source is too long for the model's position table. Raises Preempted if `should_stop()` is
    True.
    """
    limits = [
        _limit(model.config, check_length(model.config, source, line, "source"), settings)
        for line, source in enumerate(sources, start=1)
    ]
    results: list[list[Hypothesis]] = [[Hypothesis(ids=(), score=0.0, log_prob=0.0)] for _ in sources]
    workers = 1 if device.is_cuda else device.threads
    slots = max_batch_slots or BATCH_SLOTS[device.torch_device.type]
    reporter = _ProgressReporter(progress, sum(len(source) == 0 for source in sources), len(sources))

    def decode(batch: list[int]) -> None:
        ended = 0

        def after_check(now: int) -> None:
            nonlocal ended
            if should_stop is not None and should_stop():
                raise Preempted
            reporter.add(now - ended)
            ended = now

        with evaluating(model), device.autocast():
            source_BS, mask_BS = pad_sources([sources[i] for i in batch], device)
            translated = beam_search(
                model,
                source_BS,
                mask_BS,
                [limits[i] for i in batch],
                settings,
                CHECK_EVERY[device.torch_device.type],
                after_check,
            )
        for i, hypotheses in zip(batch, translated, strict=True):
            results[i] = hypotheses

    batches = list(_pack(sources, limits, settings.beam_size, slots, workers))
    with evaluating(model):
        in_parallel(decode, batches, workers)
    return results


def in_parallel(work: Callable[[list[int]], None], batches: Sequence[list[int]], workers: int) -> None:
    """Process batches in parallel, each on one CPU thread. After an error, no further batch is started.

    The operations of a search are small. Two searches with one thread each are therefore faster than one search with
    two threads. Python threads can run in parallel because torch releases the global interpreter lock.
    """
    if workers == 1 or len(batches) == 1:
        for batch in batches:
            work(batch)
        return
    failed = threading.Event()

    def one(batch: list[int]) -> None:
        if failed.is_set():
            return
        try:
            work(batch)
        except BaseException:
            failed.set()
            raise

    try:
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            try:
                for done in [pool.submit(one, batch) for batch in batches]:
                    done.result()
            except BaseException:  # includes KeyboardInterrupt, which only this thread receives
                failed.set()
                raise
    finally:
        torch.set_num_threads(workers)


class _ProgressReporter:
    """Call `progress` once for each percent of the sentences. Several threads may use the reporter."""

    def __init__(self, progress: Progress | None, done: int, total: int) -> None:
        self._progress, self._done, self._total = progress, done, total
        self._reported = -1  # the last reported percentage
        self._lock = threading.Lock()

    def add(self, ended: int) -> None:
        if self._progress is None:
            return
        with self._lock:
            self._done += ended
            if self._done * 100 >= (self._reported + 1) * self._total:
                self._reported = self._done * 100 // self._total
                self._progress(self._done, self._total)


def _limit(config: ModelConfig, length: int, settings: SearchSettings) -> int:
    """Return the maximum output length: source length + max_extra_length, but at most the size of the position table.

    All lengths include EOS.
    """
    limit = length + settings.max_extra_length
    return limit if config.longest is None else min(limit, config.longest)


def _pack(
    sources: Sequence[Sequence[int]], limits: Sequence[int], beam_size: int, slots: int, workers: int
) -> Iterator[list[int]]:
    """Yield batches of sentences with similar lengths, as lists of indices.

    A batch needs at most `slots` slots in the key/value cache, unless it has only one sentence. With several workers,
    the sentences are first divided into shares that need about equally many slots, and a batch ends where a share ends.
    The workers therefore finish at about the same time.
    """
    order = [i for i in by_length([*map(len, sources)]) if len(sources[i])]
    needed = beam_size * sum(limits[i] for i in order)
    shares = _shares(needed, slots, workers)
    batch: list[int] = []
    longest = share = before = 0
    for i in order:
        longest = max(longest, limits[i])
        middle = before + beam_size * limits[i] / 2
        its_share = int(middle * shares / needed)
        if batch and (its_share != share or (len(batch) + 1) * beam_size * longest > slots):
            yield batch
            batch, longest = [], limits[i]
        batch.append(i)
        share = its_share
        before += beam_size * limits[i]
    if batch:
        yield batch


def _shares(needed: int, slots: int, workers: int) -> int:
    """Return the number of shares: two per worker, more if `slots` requires it, fewer if batches would be too small."""
    if workers == 1:
        return 1
    return min(workers * max(2, math.ceil(needed / (slots * workers))), math.ceil(needed / LEAST_SLOTS))


# The replacement of unknown words is "PosUnk" of Deep-Att (Zhou et al. 2016), after Luong et al. 2015 (arXiv
# 1410.8206): an unknown word of the output is replaced by the source word to which it is aligned. As in Gehring et al.
# 2017 (arXiv 1705.03122, section 4.3), this is the source word with the largest attention, averaged over all layers.
# Gehring et al. translate this word with a dictionary if possible; here it is always copied.


AT_ONCE = 64  # number of outputs whose attention is computed in one batch


def texts_of(
    model: Network,
    tokenizers: tuple[Tokenizer, Tokenizer],
    lines: Sequence[str],
    outputs: Sequence[Sequence[int]],
    device: Device,
    *,
    replace_unknown: bool,
) -> list[str]:
    """Return the text of each output.

    lines: the source texts.
    outputs: ids without BOS and EOS, one output per line.
    replace_unknown: replace each UNK by the source token to which its position attends most. The attention is the mean
        over all layers with attention to the source and over their heads. The network must have such a layer
        (ModelConfig.attends_to_source).
    """
    source_tokenizer, target_tokenizer = tokenizers
    texts = [target_tokenizer.decode(pieces) for pieces in outputs]
    replace = replace_unknown and not target_tokenizer.is_bytes
    unknown = [i for i, pieces in enumerate(outputs) if UNK_ID in pieces] if replace else []
    for chunk in (unknown[at : at + AT_ONCE] for at in range(0, len(unknown), AT_ONCE)):
        sources = [source_tokenizer.encode(lines[i]) for i in chunk]
        aligned = _aligned(model, sources, [outputs[i] for i in chunk], device)
        for i, places in zip(chunk, aligned, strict=True):
            surfaces = source_tokenizer.surfaces(lines[i])
            copied = [surfaces[place] for place, piece in zip(places, outputs[i], strict=True) if piece == UNK_ID]
            texts[i] = target_tokenizer.decode(outputs[i], copied)
    return texts


def _aligned(
    model: Network, sources: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]], device: Device
) -> list[list[int]]:
    """Return, for each output token, the position of the source token with the largest attention. EOS is ignored."""
    weights_LBTS: list[torch.Tensor] = []

    def see(kind: str, weights_BHTS: torch.Tensor) -> None:
        if kind == "cross":
            weights_LBTS.append(weights_BHTS.mean(1))

    with evaluating(model), device.autocast(), watching(model, see):
        source_BS, mask_BS = pad_sources(sources, device)
        model(source_BS, mask_BS, pad([[BOS_ID, *pieces] for pieces in outputs], device)[0])
    mean_BTS = torch.stack(weights_LBTS).mean(0)
    return [
        weights_TS[: len(output), : len(source)].argmax(-1).tolist()
        for weights_TS, source, output in zip(mean_BTS, sources, outputs, strict=True)
    ]
