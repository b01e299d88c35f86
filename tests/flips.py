"""Single bits of a store's files changed, one at a time: whatever reads the file must not take it for what was written.

A flip is *refused* (one paragraph), *harmless* (the same is read or printed) or *said* (a gap in the table with its
reason, a checkpoint skipped by name). Anything else is silent, and fails: `python -m tests.chaos flips`.
"""

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ablations.cli.options import choose_table
from ablations.cli.report import table_of
from experiments.errors import UserError
from reports.render.formats import RENDERERS, render

ALL_BITS = 2_000  # of a file with no more bits every one is flipped, of a larger one so many at random
SEEDS = 2  # of the tables' rows
Read = Callable[[], Any]  # what is read of a store, comparable


class Said(Exception):  # noqa: N818 - how a flip ends
    """What was read lacks something, and says so."""


@dataclass
class Kind:
    """Files of one kind, and what reads them."""

    name: str
    path: Path
    read: Read
    whole: Any = None
    ends: Counter[str] = field(default_factory=Counter)
    silent: list[str] = field(default_factory=list)

    def flip(self, chance: random.Random, most: int) -> None:
        """Flip bits of the file, read each time, and put it back."""
        data = self.path.read_bytes()
        bits = len(data) * 8
        chosen = range(bits) if bits <= min(most, ALL_BITS) else [chance.randrange(bits) for _ in range(most)]
        self.whole = self.read()
        try:
            for bit in chosen:
                harmed = bytearray(data)
                harmed[bit // 8] ^= 1 << bit % 8
                self.path.write_bytes(harmed)
                self.ends[self._end(bit)] += 1
        finally:
            self.path.write_bytes(data)
        assert self.read() == self.whole, f"{self.name}: reading it has changed something"

    def _end(self, bit: int) -> str:
        try:
            found = self.read()
        except UserError as error:
            assert "\n\n" not in str(error) and len(str(error)) > 20, f"{self.name}, bit {bit}: {error}"
            return "refused"
        except Said:
            return "said"
        if found == self.whole:
            return "harmless"
        self.silent.append(f"{self.name}, bit {bit} of {self.path}")
        return "silent"


def printed(study: Path | str, store: Path, seeds: int | None = SEEDS) -> dict[str, str]:
    """A table in every format, with the warnings that go to the terminal."""
    chosen = choose_table(str(study), None, None, None, seeds, None, store, None)
    table = table_of(chosen, "sentences")
    warnings = "".join(f"warning: {warning}\n" for warning in table.warnings)
    return {name: render(table, name) + warnings for name in RENDERERS}


def report(study: Path, store: Path, whole: dict[str, str], seeds: int | None = SEEDS) -> dict[str, str]:
    """As `printed`; raises Said where cells are missing, all others are what they were, and a warning says why."""
    found = printed(study, store, seeds)
    if found == whole:
        return found
    before, after = (json.loads(text["json"].partition("warning: ")[0]) for text in (whole, found))
    same = [
        all(new[name] in (old[name], None) for name in _NUMBERS & new.keys())
        for old, new in zip(before, after, strict=True)
    ]
    if all(same) and all("is left out: " in text for text in found.values()):
        raise Said
    return found


_NUMBERS = {"ppl", "bleu", "bleu_test", "num_params", "ppl_sd", "bleu_sd", "ppl_change", "bleu_change", "f1"}
