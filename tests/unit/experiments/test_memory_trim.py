"""Freed memory is returned to the system only while the process grows."""

import subprocess
import sys

import pytest

from experiments.processes.freed_memory import EVERY, GROWTH, MemoryTrim


def looks(sizes):
    """Return the steps at which memory is returned, if the process has these `sizes`."""
    trims, held = [], iter(sizes)
    memory = MemoryTrim(lambda: next(held), lambda: trims.append(step))
    for step in range(1, EVERY * len(sizes) + 1):
        memory.look(step)
    return [step // EVERY for step in trims]


def test_a_process_that_stays_as_it_is_keeps_its_memory():
    assert looks([100, 100, 104, 103, 100]) == []


def test_growth_is_measured_from_what_is_in_use_again_after_a_trim():
    above = int(100 * GROWTH) + 1
    assert looks([100, above, 110, 115, 116, 117]) == [2, 5]
    assert looks([100, 102, 104, above]) == [4]  # also where it creeps


FRAGMENTED = """
import ctypes
from experiments.processes.freed_memory import EVERY, MemoryTrim, _resident_pages

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
for name, value in ((-3, 2**30), (-1, 2**31 - 2**20)):
    libc.mallopt(name, value)
memory = MemoryTrim()
memory.look(EVERY)
blocks = []
for _ in range(200):
    blocks.append(libc.malloc(500_000))
    ctypes.memset(blocks[-1], 1, 500_000)
    libc.malloc(2000)  # stays, between two that go
for block in blocks:
    libc.free(block)
before = _resident_pages()
memory.look(2 * EVERY)
print(before - _resident_pages())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.process
def test_free_places_between_those_in_use_are_given_back():
    done = subprocess.run([sys.executable, "-c", FRAGMENTED], capture_output=True, check=True, text=True)
    assert int(done.stdout) * 4096 > 0.8 * 200 * 500_000
