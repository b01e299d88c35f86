"""Flip single bits of a store's files, one at a time: no reader may take a changed file for the written one.

A flip is *refused* (one paragraph), *harmless* (the same is read or printed) or *said* (a gap in the table with its
reason, a checkpoint skipped by name). Anything else is silent, and fails: `python -m tests.chaos flips`.
"""

import hashlib
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ablations.service.selected import Selectors, choose_table
from ablations.service.tables import table_of
from experiments.data.builtin.generate import generate
from experiments.data.corpora import files
from experiments.errors import UserError
from reports.render.formats import RENDERERS, render
from reports.results.results import collect

ALL_BITS = 2_000  # of a file with no more bits every one is flipped, of a larger one so many at random
Read = Callable[[], Any]  # what is read of a store, comparable
STUDY = """
name = "flips"
title = "A table of width 8"

[base]
model = {num_layers = 1, d_model = 8, d_ff = 16, num_heads = 2, d_k = 4, d_v = 4}
data = {corpus = "CORPUS", vocab_size = 120}
training = {train_steps = 6, warmup_steps = 10, tokens_per_batch = 400, checkpoint_steps = 2, eval_steps = 2}
evaluation = {beam_size = 2, max_extra_length = 3}

[[variation]]
key = "base"

[[variation]]
key = "average"
set = {evaluation.checkpoint = "average:2"}
"""


class Said(Exception):  # noqa: N818 - how a flip ends
    """The result lacks something, and says so."""


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


def flip_all(kinds: Iterable[Kind], seed: int, most: int = ALL_BITS) -> dict[str, Any]:
    """Flip `most` bits of a file of each kind. Raises AssertionError if one is silent."""
    chance, ends, silent = random.Random(seed), dict[str, dict[str, int]](), list[str]()
    for kind in kinds:
        kind.flip(chance, most)
        ends[kind.name] = dict(kind.ends)
        silent += kind.silent
    assert not silent, "\n".join(silent)
    return {"kinds": ends, "flips": sum(sum(counts.values()) for counts in ends.values())}


def printed(study: Path | str, store: Path, seeds: int | None = None) -> dict[str, str]:
    """A table in every format, with the warnings that go to the terminal."""
    chosen = choose_table(str(study), Selectors(seeds=seeds, store=store), print, used=False)
    table = table_of(chosen)
    warnings = "".join(f"warning: {warning}\n" for warning in table.warnings)
    return {name: render(table, name) + warnings for name in RENDERERS}


class Printing:
    """Reads a printed table, once for each state of its records."""

    def __init__(self, study: Path, store: Path, seeds: int | None = None) -> None:
        self._study, self._store, self._seeds = study, store, seeds
        self._known: dict[str, dict[str, str]] = {}
        self._whole = self._found()

    def __call__(self) -> dict[str, str]:
        """Raises Said if cells are missing with reasons and all other cells are unchanged."""
        found = self._found()
        if found == self._whole:
            return found
        before, after = (_numbers(texts) for texts in (self._whole, found))
        kept = before.keys() == after.keys() and all(new in (before[place], None) for place, new in after.items())
        if kept and all("is left out: " in text for text in found.values()):
            raise Said
        return found

    def _found(self) -> dict[str, str]:
        chosen = choose_table(str(self._study), Selectors(seeds=self._seeds, store=self._store), print, used=False)
        plan = chosen.plan
        outcomes = collect(plan, chosen.store, chosen.columns)
        parts = [(o.run.run_id, o.run.state, o.record, o.harm, [s.record for s in o.scored.values()]) for o in outcomes]
        key = hashlib.sha256(repr((parts, plan.notes)).encode()).hexdigest()
        if key not in self._known:
            self._known[key] = printed(self._study, self._store, self._seeds)
        return self._known[key]


def _numbers(texts: dict[str, str]) -> dict[tuple[str, str], Any]:
    rows = json.loads(texts["json"].partition("warning: ")[0])
    return {(row["row"], name): v for row in rows for name, v in row.items() if name not in ("state", "stale", "n")}


def make_store(folder: Path) -> tuple[Path, Path]:
    """A study on a corpus of files, trained for real by children; returns the study and its store."""
    corpus, study, store = folder / "corpus", folder / "flips.toml", folder / "store"
    corpus.mkdir(parents=True)
    for name, count in (("train", 120), ("dev", 20), ("test", 20)):
        pairs = [pair for pair, _ in zip(generate(name, 120), range(count), strict=False)]
        for side, language in enumerate(("en", "de")):
            (corpus / f"{name}.{language}").write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
    study.write_text(STUDY.replace("CORPUS", str(corpus)), encoding="utf-8")
    time.sleep(files.RECENT_S)  # younger files are not remembered
    _command("run", study, "--store", store, "--devices", "cpu:2")
    _command("bundle", study, "--store", store, "--out", study.with_suffix(".tar.gz"))
    return study, store


def _command(*words: str | Path) -> None:
    done = subprocess.run([sys.executable, "-m", "ablations.cli.main", *map(str, words)], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
