"""Tests of the memory allocator of children."""

import ctypes.util

import pytest

from experiments.processes.processor import WITHOUT_CACHES, allocates_by_tcmalloc, allocator

PLAIN = {"GLIBC_TUNABLES": WITHOUT_CACHES}


@pytest.mark.parametrize(
    ("found", "given", "expected"),
    [
        ("libtcmalloc_minimal.so.4", {}, {"LD_PRELOAD": "libtcmalloc_minimal.so.4"}),
        (None, {}, PLAIN),
        ("libtcmalloc_minimal.so.4", {"LD_PRELOAD": "libother.so"}, PLAIN),
        ("libtcmalloc_minimal.so.4", {"LD_PRELOAD": ""}, PLAIN),  # set to nothing: not wanted
        (None, {"GLIBC_TUNABLES": "glibc.malloc.check=3"}, {}),
    ],
)
def test_children_allocate_by_tcmalloc_where_it_is_and_nothing_else_was_said(monkeypatch, found, given, expected):
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: found if name == "tcmalloc_minimal" else None)
    for name in ("LD_PRELOAD", "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert allocator() == expected
    assert allocates_by_tcmalloc() is ("tcmalloc" in expected.get("LD_PRELOAD", ""))
