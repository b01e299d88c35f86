"""Corrupt a store's files, one at a time, and check that no reader accepts a changed file as intact.

Run it with `python -m tests.chaos flips`. Single bits of each file are flipped; the file is truncated, emptied,
overwritten, removed and replaced by a folder. Each harm must end in one of three ways:

- *refused*: the reader reports an error of one paragraph.
- *harmless*: the reader returns or prints the same as before.
- *said*: the table has a gap with its reason, or the program names the checkpoint that it skipped.

A silent change or a traceback fails the test.
"""

import hashlib
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from ablations.cli.main import app
from ablations.planning.declare_table import table_spec
from ablations.service.selected import Selectors, choose_table, holds_table
from ablations.service.tables import table_of
from experiments.data.corpora import files
from experiments.data.corpora.builtin import generate
from experiments.errors import UserError
from reports.audit.verify import lasting
from reports.render.formats import RENDERERS, render
from reports.results.run_outcomes import collect

ALL_BITS = 2_000  # bits to flip per file: all bits of a smaller file, a random choice in a larger one
Read = Callable[[], Any]  # reads part of a store and returns a comparable value
FOLDER = object()  # stands for a folder that replaces a file
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


class Said(Exception):  # noqa: N818 - an outcome, not an error
    """Raised when data is missing from a result and the result names the reason."""


class Gap(Exception):  # noqa: N818
    """Raised when data is missing from a result without a reason.

    This is correct if a file is missing or was truncated between two entries.
    """


@dataclass
class Kind:
    """A file of one kind, and the function that reads it."""

    name: str
    path: Path
    read: Read
    whole: Any = None
    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def harm(self, chance: random.Random, most: int) -> None:
        """Corrupt the file in every way, read it after each one, and restore it. `most`: number of bits to flip."""
        data = self.path.read_bytes()
        self._put(None)  # breaks hard links, so that the file's other names keep its content
        self._put(data)
        self.whole = self.read()
        try:
            for how, harmed in _harms(data, chance, most):
                self._put(harmed)
                self.ends[self._end(how)] += 1
        finally:
            self._put(data)
        assert self.read() == self.whole, f"{self.name}: reading it has changed something"

    def _put(self, content: Any) -> None:
        if self.path.is_dir():
            self.path.rmdir()
        if content is None or content is FOLDER:
            self.path.unlink(missing_ok=True)
            if content is FOLDER:
                self.path.mkdir()
        else:
            self.path.write_bytes(content)

    def _end(self, how: str) -> str:
        found: Any = None
        try:
            found = self.read()
            end = "harmless" if found == self.whole else "silent"
        except UserError as error:
            assert "\n\n" not in str(error) and len(str(error)) > 20, f"{self.name}, {how}: {error}"
            return "refused"
        except Said:
            return "said"
        except Gap:
            end = "silent" if how.startswith("bit ") else "said"
        except Exception as error:
            end = f"traceback: {error!r}"
        if end == "silent" and how == "gone" and not found:
            return "said"
        if end not in ("harmless", "said"):
            self.wrong.append(f"{self.name}, {how} of {self.path}: {end}")
        return end.partition(":")[0]


def _harms(data: bytes, chance: random.Random, most: int) -> Iterator[tuple[str, Any]]:
    bits = len(data) * 8
    for bit in range(bits) if bits <= min(most, ALL_BITS) else [chance.randrange(bits) for _ in range(most)]:
        harmed = bytearray(data)
        harmed[bit // 8] ^= 1 << bit % 8
        yield f"bit {bit}", harmed
    cut = chance.randrange(len(data))
    yield from {
        "all but the last byte": data[:-1],
        f"{cut} bytes": data[:cut],
        "the first half": data[: len(data) // 2],
        "nothing": b"",
        "zeros in place": bytes(len(data)),
        "other bytes in place": chance.randbytes(len(data)),
        "a folder in place": FOLDER,
        "gone": None,
    }.items()


def flip_all(kinds: Iterable[Kind], seed: int, most: int = ALL_BITS) -> dict[str, Any]:
    """Corrupt a file of each kind, flipping `most` bits. Raise AssertionError for a silent change or a traceback."""
    chance, ends, wrong = random.Random(seed), dict[str, dict[str, int]](), list[str]()
    for kind in kinds:
        kind.harm(chance, most)
        ends[kind.name] = dict(kind.ends)
        wrong += kind.wrong
    assert not wrong, "\n".join(wrong)
    totals: Counter[str] = sum((Counter(counts) for counts in ends.values()), Counter())
    return {"kinds": ends, "harms": totals.total(), **totals}


def printed(study: Path | str, store: Path, seeds: int | None = None, notes: str = "full") -> dict[str, str]:
    """Print a table in every format, with its notes and the warnings that go to the terminal."""
    chosen = choose_table(str(study), Selectors(seeds=seeds, store=store), print)
    table = table_of(chosen)
    table = replace(table, spec=replace(table.spec, choices=table.spec.choices.model_copy(update={"notes": notes})))
    warnings = "".join(f"warning: {warning}\n" for warning in table.warnings)
    return {name: render(table, name) + warnings for name in RENDERERS}


class Printing:
    """Prints a table, once for each state of its records.

    With `verbs`, it also runs `verify` on the table that was printed before any harm, and `explain` for its rows.
    """

    def __init__(self, study: Path, store: Path, seeds: int | None = None, *, verbs: bool = True) -> None:
        self._study, self._store, self._seeds, self._verbs = study, store, seeds, verbs
        self._known: dict[str, dict[str, str]] = {}
        self._before = {name: store.parent / f"{study.name}-before.{name}" for name in ("csv", "json")}
        for name, text in printed(study, store, seeds).items():
            if name in self._before:
                self._before[name].write_text(text.partition("warning: ")[0], encoding="utf-8")
        self._whole = self._found()

    def __call__(self) -> dict[str, str]:
        """Return the printed texts.

        If cells are missing and all others are unchanged, raise Said if the table names the reasons, else Gap.
        """
        found = self._found()
        if found == self._whole:
            return found
        before, after = (_numbers(texts) for texts in (self._whole, found))
        kept = before.keys() == after.keys() and all(_is_kept(before[place], new) for place, new in after.items())
        if kept and self._agree(found):
            less = any(value is None is not before[place] for place, value in after.items())
            whole = ((" known events)", ("markdown", "latex", "html")), ("numbers are not affected.", RENDERERS))
            for why, where in (("is left out: ", RENDERERS),) if less else whole:
                if all(why in found[name] for name in where):
                    raise Said
            raise Gap
        return found

    def _found(self) -> dict[str, str]:
        if holds_table(self._study.name):
            return self._print()
        chosen = choose_table(str(self._study), Selectors(seeds=self._seeds, store=self._store), print)
        plan = chosen.plan
        outcomes = collect(table_spec(plan).runs, chosen.store, chosen.columns)
        parts = [(o.run.run_id, o.run.state, o.record, o.harm, [s.record for s in o.scored.values()]) for o in outcomes]
        events = [
            path.read_bytes() for path in sorted(self._store.glob("runs/*/attempts/*/events.jsonl")) if path.is_file()
        ]
        key = hashlib.sha256(repr((parts, events, plan.notes)).encode()).hexdigest()
        if key not in self._known:
            self._known[key] = self._print()
        return self._known[key]

    def _print(self) -> dict[str, str]:
        if not self._verbs:
            return printed(self._study, self._store, self._seeds)
        seeds = () if self._seeds is None else ("--seeds", str(self._seeds))
        words: dict[str, tuple[str | Path, ...]] = {
            "verify": ("verify", self._before["csv"], self._study, *seeds, "--json"),
            **{f"explain {row}": ("explain", self._study, row, *seeds, "--json") for row in self._rows()},
        }
        if holds_table(self._study.name):
            words["verify alone"] = ("verify", self._study, "--json")
        return printed(self._study, self._store, self._seeds) | {
            name: self._said(*given) for name, given in words.items()
        }

    def _rows(self) -> list[str]:
        return [row["row"] for row in json.loads(self._before["json"].read_text(encoding="utf-8"))]

    def _said(self, *words: str | Path) -> str:
        """Return a command's exit code and output. Raise the command's exception."""
        done = CliRunner().invoke(app, [*map(str, words), "--store", str(self._store)])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return f"{done.exit_code} {done.stdout}"

    def _agree(self, found: dict[str, str]) -> bool:
        """Return whether `verify` and `explain` report the gaps and no other difference."""
        if not self._verbs:
            return True
        same = lasting(found["csv"], "csv") == lasting(self._whole["csv"], "csv")
        verified = found["verify"].startswith("0 ") is same
        told = [name for name in found if name.startswith("explain ")]
        explained = all(_only_less(*(json.loads(texts[name][2:]) for texts in (self._whole, found))) for name in told)
        return verified and explained


def _only_less(before: Any, after: Any) -> bool:
    """Return whether the explanation `after` only lacks facts of `before`.

    It may add why facts are missing and how many remain.
    """
    if isinstance(before, dict) and isinstance(after, dict):
        free = {
            "lacking",
            "n",
            "median_of_those_there",
            "state",
            *(name for name, value in after.items() if value is None),
        }
        return all(name in free or (name in before and _only_less(before[name], after[name])) for name in after)
    if isinstance(before, list) and isinstance(after, list) and len(before) > len(after):
        return all(any(_only_less(one, other) for one in before) for other in after)
    return after in (before, None, "", {}, []) or (
        isinstance(before, list) and len(before) == len(after) and all(map(_only_less, before, after))
    )


def _is_kept(before: Any, after: Any) -> bool:
    """Return whether a row's value is unchanged or None.

    A cost may be lower if it counts more attempts of unknown end.
    """
    if isinstance(before, dict) and isinstance(after, dict) and "end_unknown" in before:
        counted = all(before[name] == after[name] for name in ("runs", "attempts", "counted_in"))
        return before == after or (counted and after["end_unknown"] > before["end_unknown"])
    return after in (before, None)


def _numbers(texts: dict[str, str]) -> dict[tuple[str, str], Any]:
    rows = json.loads(texts["json"].partition("warning: ")[0])
    return {
        (row["row"], name): v for row in rows for name, v in row.items() if name not in ("state", "stale", "n", "notes")
    }


def make_store(folder: Path) -> tuple[Path, Path]:
    """Write a study on a corpus of files and train it with real children. Return the study and its store."""
    corpus, study, store = folder / "corpus", folder / "flips.toml", folder / "store"
    corpus.mkdir(parents=True)
    for name, count in (("train", 120), ("dev", 20), ("test", 20)):
        pairs = [pair for pair, _ in zip(generate(name, 120), range(count), strict=False)]
        for side, language in enumerate(("en", "de")):
            (corpus / f"{name}.{language}").write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
    study.write_text(STUDY.replace("CORPUS", str(corpus)), encoding="utf-8")
    time.sleep(files.RECENT_S)  # the digests of more recent files are not cached
    _command("run", study, "--store", store, "--devices", "cpu:2")
    _command("bundle", study, "--store", store, "--out", study.with_suffix(".tar.gz"))
    return study, store


def _command(*words: str | Path) -> None:
    done = subprocess.run([sys.executable, "-m", "ablations.cli.main", *map(str, words)], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
