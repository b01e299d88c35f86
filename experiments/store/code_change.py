"""The digest of a row's code change, which is part of its run_id.

The digest of a patch is computed from its selected parts: the lines that they remove, add and leave unchanged, without
line numbers. So the digest stays the same when other files, or other places of the same files, change. The digest
resembles git's stable patch id. Unlike git's id, it depends on white space, because indentation has a meaning in
Python. If base already contains the patch, a row removes parts of it. Its digest is then that of the reversed parts.

If a row names a commit or a range of commits, the digest is computed from the row's tree alone.
"""

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from experiments.identity import digest

_HUNK = re.compile(rb"^(?=@@ -)", re.MULTILINE)
_NUMBERS = re.compile(rb"^@@ -.*$", re.MULTILINE)
_FILE = re.compile(rb"^(?=diff --git )", re.MULTILINE)
# Prefixes of header lines (the lines before the hunks): _OLD for the old version of the file, _NEW for the new version.
_OLD = (b"--- ", b"old mode ", b"deleted file mode ", b"rename from ", b"copy from ")
_NEW = (b"+++ ", b"new mode ", b"new file mode ", b"rename to ", b"copy to ")


class _Hunk(NamedTuple):
    """The lines of a hunk as (sign, text). In each changed block, removed lines ("-") are before added lines ("+")."""

    lines: tuple[tuple[str, str], ...]

    @property
    def reverse(self) -> "_Hunk":
        """The hunk that undoes this hunk."""
        other = {"-": "+", "+": "-"}
        return _Hunk(_sorted([(other.get(sign, sign), text) for sign, text in self.lines]))


def tree_change(tree: str) -> str:
    """Return the digest of a change that replaces base's tree by the tree `tree`."""
    return digest({"tree": tree})


def patch_change(parts: Sequence[bytes], *, reverse: bool = False) -> str:
    """Return the digest of the change that results from applying these hunks or patches; "" if there are none.

    reverse: whether the change removes the parts from base.
    """
    files: dict[tuple[str, ...], list[_Hunk]] = {}
    whole: list[str] = []
    for part in parts:
        for text in _FILE.split(part):
            head, *hunks = _HUNK.split(text)
            if b"GIT binary patch" in head or (head and not hunks and b"Binary files" in head):
                whole.append(f"{'reverse ' * reverse}{head.decode('utf-8', 'backslashreplace')}")
            elif head:
                found = files.setdefault(_about(head, reverse=reverse), [])
                found += [hunk.reverse if reverse else hunk for hunk in map(_hunk, hunks)]
    if not files and not whole:
        return ""
    changes = [[list(about), [list(hunk.lines) for hunk in hunks]] for about, hunks in sorted(files.items())]
    return digest({"patch": changes, "binary": sorted(whole)})


def selected_change(parts: Sequence[bytes], selected: Collection[int], *, reverse: bool = False) -> str:
    """Return the digest of the change that results from applying the selected parts of a patch.

    A file may have several equal hunks. In this case the digest also depends on which of these hunks are selected,
    unless all of them or only the first one is selected.

    selected: indices of the selected parts in `parts`.
    """
    change = patch_change([parts[place] for place in sorted(selected)], reverse=reverse)
    equal: dict[bytes, list[int]] = {}
    for place, part in enumerate(parts):
        equal.setdefault(_NUMBERS.sub(b"@@", part), []).append(place)
    which = []
    for places in equal.values():
        chosen = [copy for copy, place in enumerate(places) if place in selected]
        if any(chosen) and len(chosen) < len(places):
            which.append(chosen)
    return digest([change, which]) if which else change


def _about(head: bytes, *, reverse: bool) -> tuple[str, ...]:
    """Return the names and modes of a file before and after the change, from the header of its patch."""
    lines = head.splitlines()
    old = sorted(_named(line) for line in lines if line.startswith(_OLD))
    new = sorted(_named(line) for line in lines if line.startswith(_NEW))
    if not old and not new:  # the header has no line about the old or the new version
        old = [lines[0].decode("utf-8", "backslashreplace")] if lines else []
    return (*(new if reverse else old), "→", *(old if reverse else new))


def _named(line: bytes) -> str:
    """Return the name or mode on a header line, in the same form for the old and the new version of a file."""
    text = line.decode("utf-8", "backslashreplace")
    for prefix, short in (("--- a/", "file "), ("+++ b/", "file "), ("--- ", "file "), ("+++ ", "file ")):
        if text.startswith(prefix):
            return short + text.removeprefix(prefix)
    words = text.split(" ")
    return " ".join(word for word in words if word not in ("old", "new", "deleted", "from", "to"))


def _hunk(text: bytes) -> _Hunk:
    lines = text.split(b"\n")[1:]
    if lines and not lines[-1]:
        lines.pop()
    read = [line.decode("utf-8", "backslashreplace") for line in lines]
    return _Hunk(_sorted([(line[:1] or " ", line[1:]) for line in read]))


def _sorted(lines: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Return the lines, sorted so that removed lines come before added lines in each block of changed lines."""
    found: list[tuple[str, str]] = []
    removed: list[tuple[str, str]] = []
    added: list[tuple[str, str]] = []
    last = removed
    for line in lines:
        if line[0] == "-":
            last = removed
        elif line[0] == "+":
            last = added
        elif line[0] != "\\":  # "\ No newline at end of file" belongs to the line before it
            found += [*removed, *added]
            removed, added = [], []
            found.append(line)
            continue
        else:
            (last if removed or added else found).append(line)
            continue
        last.append(line)
    return (*found, *removed, *added)


def told_apart(changes: Sequence[tuple[str, str, int]]) -> list[str]:
    """Return a digest for each change. Changes with equal digests but different trees get different digests.

    Without this distinction, equal hunks in two places of a file would be one change. Changes with equal digests are
    numbered in the order of their lines. The first one keeps its digest. The digest of every further change is
    computed again, from its digest and its number.

    changes: (digest, tree, line) of each change.
    """
    places: dict[str, dict[str, int]] = {}
    for change, tree, line in changes:
        if change:
            places.setdefault(change, {}).setdefault(tree, line)
    found = []
    for change, tree, _ in changes:
        of_change = places.get(change, {tree: 0})
        number = sorted(of_change, key=lambda one: (of_change[one], one)).index(tree)
        found.append(digest([change, number + 1]) if number else change)
    return found
