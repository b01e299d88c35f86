"""Common code of the scripts of benchmarks.decoding: batches of the sentences, and rounds that decode all sentences.

The job (serve.py) has the keys model, sentences (of piece ids), batch, sorted (true for a test set), beam, extra,
variant and threads.
"""

import time
from collections.abc import Callable
from typing import Any

import serve

ROUND_S = 1.0  # least seconds of a round; shorter rounds would measure the time that processes need to wake up
job = serve.job


def batches(job: dict[str, Any]) -> list[list[list[int]]]:
    """Return batches of `batch` sentences. A test set is sorted by length first."""
    sentences, size = job["sentences"], job["batch"]
    if job["sorted"]:
        sentences = sorted(sentences, key=len, reverse=True)
    return [sentences[at : at + size] for at in range(0, len(sentences), size)]


def steps(batch: list[list[int]], job: dict[str, Any]) -> int:
    """Return the number of steps for a batch: the length of the longest source plus `extra`."""
    return max(len(sentence) for sentence in batch) + int(job["extra"])


def report(job: dict[str, Any], decode: Callable[[], int], version: str) -> None:
    """Serve rounds of `decode`. Each round repeats `decode` for at least one second.

    decode: decodes all sentences of the job and returns the total number of output pieces.
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
