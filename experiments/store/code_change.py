"""The digest of a row's change of code, which is part of its run_id.

Of a patch it is that of its selected parts: the lines that they remove, add and keep, without line numbers. So it is
the same after other files, or other places of the same files, have changed. It is like git's stable patch id, but white
space counts, because Python's indentation does. A part that is taken out of base is the same change as the reverse of
that part.

Of a commit, or of commits of a range, it is the digest of the row's tree, which depends on nothing else.
"""

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from experiments.identity import digest

_HUNK = re.compile(rb"^(?=@@ -)", re.MULTILINE)
_NUMBERS = re.compile(rb"^@@ -.*$", re.MULTILINE)
_FILE = re.compile(rb"^(?=diff --git )", re.MULTILINE)
# What stands in front of the hunks and concerns one side, by the side that it is about.
_OLD = (b"--- ", b"old mode ", b"deleted file mode ", b"rename from ", b"copy from ")
_NEW = (b"+++ ", b"new mode ", b"new file mode ", b"rename to ", b"copy to ")


class _Hunk(NamedTuple):
    """The lines of a hunk in order: those of both sides (" "), and removed ("-") before added ones ("+")."""

    lines: tuple[tuple[str, str], ...]

    @property
    def reverse(self) -> "_Hunk":
        """Return the hunk that undoes this one."""
        other = {"-": "+", "+": "-"}
        return _Hunk(_sorted([(other.get(sign, sign), text) for sign, text in self.lines]))


def tree_change(tree: str) -> str:
    """The digest of a change that gives a tree whatever base is."""
    return digest({"tree": tree})


def patch_change(parts: Sequence[bytes], *, reverse: bool = False) -> str:
    """The digest of the change that parts of a patch make; "" for no part. reverse: they are taken out of base."""
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
    """The digest of the change that some parts of a patch make, by their places among the parts.

    Of several equal hunks in one file the digest says which are selected, unless all or only the first are.
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
    """The names and modes of a file in a patch, old ones first: what does not concern its lines."""
    lines = head.splitlines()
    old = sorted(_named(line) for line in lines if line.startswith(_OLD))
    new = sorted(_named(line) for line in lines if line.startswith(_NEW))
    if not old and not new:  # a mode or an empty file
        old = [lines[0].decode("utf-8", "backslashreplace")] if lines else []
    return (*(new if reverse else old), "→", *(old if reverse else new))


def _named(line: bytes) -> str:
    """A line about one side, the same for the old and the new side."""
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
    """Lines with the removed ones before the added ones, between lines of both sides."""
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
    """Digests of changes, each (digest, tree, line): equal ones that give different trees get a number by their line.

    So equal hunks in two places of a file are two changes.
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
