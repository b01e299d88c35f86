"""The parts of a patch. Each hunk is one part. The change of a file that is created, removed, renamed or binary is one
part too.
"""

import os
import re
from typing import NamedTuple


class PatchPart(NamedTuple):
    """A part of a patch that can be applied alone."""

    file: str
    name: str  # for messages: "hunk 2 (train.py, line 40)"
    text: bytes


_WHOLE = re.compile(rb"^(new file|deleted file|rename|copy|old mode|new mode|GIT binary|Binary files) ?", re.MULTILINE)


def _file_of(head: bytes) -> str:
    """Return the file that a diff changes, from its first line: `a/NAME b/NAME` or `a/OLD b/NEW`, with any prefixes."""
    names = head.splitlines()[0].removeprefix(b"diff --git ")
    half = len(names) // 2
    old, new = names[:half].strip(b'" '), names[half:].strip(b'" ')
    if old.partition(b"/")[2] != new.partition(b"/")[2]:  # the file is renamed
        new = re.sub(rb'^.* "?\w/', b"/", names).rstrip(b'"')
    return os.fsdecode(new.partition(b"/")[2])


def parts_of(patch: bytes) -> list[PatchPart]:
    """Return the parts of a patch that `git diff` wrote, in order; [] for a patch in another format.

    The text is split at lines that begin with "diff --git" or "@@ -". No line inside a hunk begins like this.
    """
    found = list[PatchPart]()
    for text in re.split(rb"^(?=diff --git )", patch, flags=re.MULTILINE)[1:]:
        head, *hunks = re.split(rb"^(?=@@ -)", text, flags=re.MULTILINE)
        file = _file_of(head)
        if _WHOLE.search(head) or not hunks:
            found.append(PatchPart(file, f"the change of {file}", text))
            continue
        for hunk in hunks:
            line = hunk[4:].split(b",")[0].split(b" ")[0].decode()
            found.append(PatchPart(file, f"hunk {len(found) + 1} ({file}, line {line})", head + hunk))
    return found
