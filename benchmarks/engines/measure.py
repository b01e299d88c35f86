"""What every engine's script shares: the job comes as JSON on standard input, the measurement goes out as JSON.

Needs nothing but the standard library, as each script runs in its toolkit's own environment.
"""

import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def job() -> dict[str, Any]:
    found: dict[str, Any] = json.load(sys.stdin)
    return found


def batches(job: dict[str, Any]) -> list[list[list[int]]]:
    """The sentences in batches: as given where `batch` divides them, sorted by length where they are a test set."""
    sentences, size = job["sentences"], job["batch"]
    if job["sorted"]:
        sentences = sorted(sentences, key=len, reverse=True)
    return [sentences[at : at + size] for at in range(0, len(sentences), size)]


def steps(batch: list[list[int]], job: dict[str, Any]) -> int:
    """All sentences of a batch are decoded so far: the longest source and some more."""
    return max(len(sentence) for sentence in batch) + int(job["extra"])


def report(job: dict[str, Any], decode: Callable[[], int], version: str) -> None:
    """`decode` does the whole job and returns how many pieces the longest outputs have, in all."""
    clock = CLOCKS[job["clock"]]
    decode()  # warm: kernels are built, caches allocated
    times = []
    for _ in range(job["repeats"]):
        began = clock()
        pieces = decode()
        times.append(clock() - began)
    seconds, sentences = min(times), len(job["sentences"])
    print(
        json.dumps(
            {
                "seconds": round(seconds, 4),
                "sentences_per_s": round(sentences / seconds, 3),
                "pieces_per_s": round(pieces / seconds, 1),
                "peak_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
                "version": version,
            }
        )
    )
