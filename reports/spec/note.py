"""A line under a table, and which kinds of lines a choice of notes prints."""

from typing import Literal, NamedTuple


class Note(NamedTuple):
    """A line under a table, with what it is about."""

    text: str
    kind: Literal["sign", "gap", "test", "setup", "cost", "study"] = "setup"  # gap: of missing or doubtful numbers
    part: str = ""  # of a column, without which it has nothing to explain: "change", "paper"


KINDS = {"none": ("gap",), "short": ("sign", "gap")}  # the kinds that a choice prints; "full": all
