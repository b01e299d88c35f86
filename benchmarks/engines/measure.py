"""The common part of the scripts of benchmarks.decoding: the sentences in batches, and rounds that decode all of them.

The job (serve.py): model, sentences of piece ids, batch, sorted (they are a test set), beam, extra, variant, threads.
"""

import time
from collections.abc import Callable
from typing import Any

import serve

ROUND_S = 1.0  # a shorter round would measure how processes wake up
job = serve.job


def batches(job: dict[str, Any]) -> list[list[list[int]]]:
    """The sentences in batches of `batch`; a test set is sorted by length first."""
    sentences, size = job["sentences"], job["batch"]
    if job["sorted"]:
        sentences = sorted(sentences, key=len, reverse=True)
    return [sentences[at : at + size] for at in range(0, len(sentences), size)]


def steps(batch: list[list[int]], job: dict[str, Any]) -> int:
    """The number of steps for a batch: the length of the longest source plus `extra`."""
    return max(len(sentence) for sentence in batch) + int(job["extra"])


def report(job: dict[str, Any], decode: Callable[[], int], version: str) -> None:
    """`decode` does the whole job and returns how many pieces the longest outputs have, in all.

    A round repeats it for about one second.
    """
    sentences, pieces = len(job["sentences"]), decode()
    if pieces <= 0:
        raise ValueError("the search wrote no pieces, so its time would be that of nothing")
    rounds = serve.Rounds(1, sentences, version=version, pieces_per_sentence=round(pieces / sentences, 3))
    while not rounds.step_done():
        began, times = time.perf_counter(), 0
        while times == 0 or time.perf_counter() - began < ROUND_S:
            decode()
            times += 1
        rounds.done = times * sentences
