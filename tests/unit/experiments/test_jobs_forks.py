"""What the fork server is started with."""

import ctypes.util

import pytest

from experiments.jobs.engines import forks


@pytest.mark.parametrize(
    ("found", "given", "expected"),
    [
        ("libtcmalloc_minimal.so.4", None, {"LD_PRELOAD": "libtcmalloc_minimal.so.4"}),
        (None, None, {}),
        ("libtcmalloc_minimal.so.4", "libother.so", {}),
        ("libtcmalloc_minimal.so.4", "", {}),  # set to nothing: not wanted
    ],
)
def test_children_allocate_by_tcmalloc_where_it_is_and_nothing_else_was_said(monkeypatch, found, given, expected):
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: found if name == "tcmalloc_minimal" else None)
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    if given is not None:
        monkeypatch.setenv("LD_PRELOAD", given)
    assert forks.allocator() == expected
