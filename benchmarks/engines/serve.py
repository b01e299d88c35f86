"""Common code of the engines' scripts, which do one round of the same work for each line of standard input.

The job is one line of JSON on standard input. Its keys for training include model, batches (of pairs of piece ids),
precision, threads, dropout and smoothing. measure.py lists the keys for decoding. The script writes one line after its
warm-up, then one line for every line "round" that it reads. The output of toolkits goes to standard error. This module
uses only the standard library, because each script runs in its toolkit's environment.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

PAD, BOS, EOS = 0, 1, 2
Pair = tuple[list[int], list[int]]

_answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def job() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sys.stdin.readline())
    return found


def padded(rows: list[list[int]], pad: int = PAD) -> list[list[int]]:
    longest = max(map(len, rows))
    return [[*row, *[pad] * (longest - len(row))] for row in rows]


def sides(batch: list[Pair], pad: int = PAD, bos: int = BOS, eos: int = EOS) -> tuple[list[list[int]], ...]:
    """Return padded rows of the sources with EOS, of the targets after BOS, and of the targets with EOS."""
    return (
        padded([[*source, eos] for source, _ in batch], pad),
        padded([[bos, *target] for _, target in batch], pad),
        padded([[*target, eos] for _, target in batch], pad),
    )


def target_tokens(batch: list[Pair]) -> int:
    return sum(len(target) + 1 for _, target in batch)


class Rounds:
    """The rounds of a script's loop. The loop calls `step_done` after every step.

    A round has `steps` steps and `done` units of work. The first answer contains `facts`. `later` gives the steps and
    the work of each round after the warm-up, if they differ from those of the warm-up.
    """

    def __init__(self, steps: int, done: int, later: Iterable[tuple[int, int]] | None = None, **facts: Any) -> None:
        self.done, self._steps, self._facts, self._count, self._warm = done, steps, facts, 0, False
        self._later = None if later is None else iter(later)

    def step_done(self) -> bool:
        """Count a step. At the end of a round, wait for the next one. Return True if there are no more rounds."""
        self._count += 1
        if self._count < self._steps:
            return False
        self._count = 0
        if not self._warm:  # the first round is the warm-up: now kernels are built and caches are filled
            self._warm = True
            _answer(ready=True, **self._facts)
        else:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            wall, cpu = time.perf_counter() - self._began[0], time.process_time() - self._began[1]
            _answer(seconds=wall, cpu_seconds=cpu, done=self.done, peak_memory_mb=round(peak))
        ended = sys.stdin.readline().strip() != "round"
        if self._later is not None and not ended:
            self._steps, self.done = next(self._later)
        self._began = time.perf_counter(), time.process_time()
        return ended


def training_rounds(job: dict[str, Any], parameters: Iterable[Any], version: str) -> Rounds:
    """Return rounds with one update per batch. Their work is counted in target tokens."""
    if "rounds" not in job:  # every round has the same batches
        return _rounds(job, sum(map(target_tokens, job["batches"])), parameters, version)
    (steps, done), *later = job["rounds"]
    return Rounds(steps, done, later, version=version, parameters=_size(parameters))


def window_rounds(job: dict[str, Any], parameters: Iterable[Any], version: str) -> Rounds:
    """Return rounds for batches of text windows. A window has one piece more than the network predicts."""
    return _rounds(job, sum(len(window) - 1 for batch in job["batches"] for window in batch), parameters, version)


def _rounds(job: dict[str, Any], done: int, parameters: Iterable[Any], version: str) -> Rounds:
    return Rounds(len(job["batches"]), done, version=version, parameters=_size(parameters))


def _size(parameters: Iterable[Any]) -> int:
    return sum({id(p): p.numel() for p in parameters if p.requires_grad}.values())


def serve(job: dict[str, Any], step: Callable[[int], object], parameters: Iterable[Any], version: str) -> None:
    """Run rounds until standard input ends. step: makes one update with the batch of an index."""
    _serve(job, step, training_rounds(job, parameters, version))


def serve_windows(job: dict[str, Any], step: Callable[[int], object], parameters: Iterable[Any], version: str) -> None:
    """Run rounds on batches of text windows until standard input ends. step: as in `serve`."""
    _serve(job, step, window_rounds(job, parameters, version))


def _serve(job: dict[str, Any], step: Callable[[int], object], rounds: Rounds) -> None:
    while True:
        for index in range(len(job["batches"])):
            step(index)
            if rounds.step_done():
                return


def _answer(**facts: Any) -> None:
    print(json.dumps(facts), file=_answers, flush=True)
