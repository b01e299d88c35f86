"""Tests of the digest of a row's change of code, and of what it depends on."""

import itertools

import pytest

from experiments.store.code_change import patch_change, selected_change, told_apart, tree_change
from experiments.store.patch_parts import parts_of

HEAD = b"diff --git a/net.py b/net.py\nindex 111..222 100644\n--- a/net.py\n+++ b/net.py\n"
GATE = b"@@ -5,3 +5,3 @@ def f\n before\n-gate = 2\n+gate = 0\n after\n"
BACK = b"@@ -5,3 +5,3 @@ def f\n before\n-gate = 0\n+gate = 2\n after\n"
LAST = b"@@ -40,2 +40,3 @@\n x\n+y\n z\n"
OTHER = b"diff --git a/b.py b/b.py\nnew file mode 100644\n--- /dev/null\n+++ b/b.py\n@@ -0,0 +1 @@\n+x = 1\n"
GONE = b"diff --git a/b.py b/b.py\ndeleted file mode 100644\n--- a/b.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x = 1\n"


def change(*texts: bytes, reverse: bool = False) -> str:
    return patch_change(list(texts), reverse=reverse)


def test_places_and_what_git_says_of_them_do_not_count() -> None:
    moved = GATE.replace(b"-5,3 +5,3 @@ def f", b"-105,3 +105,3 @@ class G")
    assert change(HEAD + GATE) == change(HEAD.replace(b"111..222", b"333..444") + moved)
    assert change(HEAD + GATE + LAST) == change(HEAD + GATE, HEAD + LAST), "parts of one file, each with its head"
    assert change(HEAD + GATE, OTHER) == change(OTHER, HEAD + GATE), "files in any order"
    assert change() == "" and tree_change("a" * 40) not in ("", tree_change("b" * 40))


def test_every_difference_in_a_change_counts() -> None:
    texts = [
        HEAD + GATE, HEAD + BACK, HEAD + LAST, HEAD + GATE + LAST, OTHER, GONE, HEAD + GATE.replace(b"before", b"now"),
        HEAD + GATE.replace(b"+gate", b"+    gate"), HEAD.replace(b"net.py", b"nat.py") + GATE,
        OTHER.replace(b"100644", b"100755"), OTHER.replace(b"b.py", b"c.py"),
    ]  # fmt: skip
    assert len({change(text) for text in texts}) == len(texts), "also white space, which Python reads"


@pytest.mark.parametrize(("text", "back"), [(HEAD + GATE, HEAD + BACK), (OTHER, GONE)])
def test_a_part_that_is_taken_out_is_the_same_change_as_its_reverse(text: bytes, back: bytes) -> None:
    assert change(text, reverse=True) == change(back) != change(text) == change(back, reverse=True)


def test_a_row_without_some_parts_differs_from_rows_with_them() -> None:
    parts = [part.text for part in parts_of(HEAD + GATE + LAST + OTHER)]
    assert len(parts) == 3
    found = [
        patch_change(chosen, reverse=reverse)
        for length in (1, 2, 3)
        for chosen in itertools.combinations(parts, length)
        for reverse in (False, True)
    ]
    assert len(set(found)) == 14


def test_equal_hunks_in_two_places_are_told_apart_by_their_line() -> None:
    changes = [("c", "tree-2", 90), ("c", "tree-1", 7), ("d", "tree-3", 1), ("c", "tree-2", 90), ("", "t", 0)]
    found = told_apart(changes)
    assert found[1:3] == ["c", "d"] and found[0] == found[3] != "c" and found[4] == ""
    assert told_apart(changes[1:2]) == ["c"], "alone it needs no number"


def test_each_of_equal_hunks_is_a_change_of_its_own_in_every_study() -> None:
    head = b"diff --git a/f.py b/f.py\n--- a/f.py\n+++ b/f.py\n"
    equal = [head + b"@@ -%d,3 +%d,3 @@\n a\n-x\n+y\n b\n" % (line, line) for line in (10, 20, 30)]
    parts = [*equal, head + b"@@ -40,3 +40,3 @@\n a\n-z\n+y\n b\n"]
    names = [selected_change(parts, chosen) for chosen in ([0], [1], [2], [0, 1], [0, 2], [0, 3], [1, 3])]
    assert len({*names}) == len(names)
    assert selected_change(parts, [3]) == patch_change(parts[3:])
    assert selected_change(parts, range(4)) == patch_change(parts)
    moved = [part.replace(b"@@ -2", b"@@ -7") for part in parts]
    assert selected_change(moved, [1]) == names[1], "line numbers are in no name"
