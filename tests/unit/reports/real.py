"""Create small stores written by real children: translation, language, a user's function and a command."""

import itertools
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from ablations.cli.main import app
from ablations.service import selected
from ablations.service.coordination import WorkOptions
from ablations.service.enqueue import enqueue, wanted
from ablations.service.tables import table_of
from experiments.data.corpora.builtin import generate
from experiments.store.layout import Store
from experiments.tasks.load import named_tasks
from reports.results.table import Row, Table

SIZES = "model = {num_layers = 1, d_model = 8, d_ff = 16, num_heads = 2, d_k = 4, d_v = 4}"
TRANSLATION = f"""
name = "small"
title = "A table of width 8"
sustained_flops = {{"(1 thread)" = 1e9}}

[base]
{SIZES}
data = {{vocab_size = 120}}
training = {{train_steps = 7, warmup_steps = 10, tokens_per_batch = 300, learning_rate_scale = 0.4, precision = "fp32"}}
evaluation = {{beam_size = 2, max_extra_length = 3, sets = ["dev", "test"]}}

[[variation]]
key = "base"
paper = {{perplexity = 4.92, bleu = 25.8, params = 65, flops = 3.3e18}}

[[variation]]
key = "learned"
group = "E"
label = "positional embedding instead of sinusoids"
set = {{model.positions = "learned"}}
paper = {{perplexity = 4.92, bleu = 25.7}}

[[variation]]
key = "bf16"
set = {{training.precision = "bf16"}}
"""
ENSEMBLES = """
name = "together"
title = "Trainings that decode together"
extends = "small.toml"

[[variation]]
key = "base"

[[variation]]
key = "alone"
ensemble = {of = "base", seeds = [1]}

[[variation]]
key = "pair"
ensemble = {of = "base", seeds = [2, 1]}
paper = {params = 130}

[[variation]]
key = "greedy"
ensemble = {of = "base", seeds = [1, 2]}
set = {evaluation.beam_size = 1}
"""
LANGUAGE = f"""
name = "words"
title = "Running text"
task = "language_modelling"

[base]
{SIZES}
data = {{units = "byte", window = 16, builtin_pairs = 60}}
training = {{train_steps = 4, warmup_steps = 10, tokens_per_batch = 100, precision = "fp32"}}

[[variation]]
key = "base"

[[variation]]
key = "rotary"
set = {{model.positions = "rotary"}}
"""
COMMAND = """
name = "walk"
title = "A walk"
command = "python3 walk.py {lr} {seed} {metrics} {depth.n}"

[base]
lr = 0.5
depth = {n = 2}

[[metric]]
name = "loss"
better = "lower"

[[variation]]
key = "base"

[[variation]]
key = "low"
set = {lr = 0.25}
"""
WALK = """
import json, pathlib, sys
lr, seed, out, n = sys.argv[1:]
pathlib.Path(out).write_text(json.dumps({"loss": float(lr) * int(seed) + int(n)}))
"""


@dataclass(frozen=True)
class Made:
    """A study and the store that holds its runs."""

    study: Path
    store: Path

    def chosen(self, rows: str | None = None, seeds: int | None = None, sets: list[str] | None = None) -> Any:
        return selected.choose(str(self.study), selected.Selectors(rows=rows, seeds=seeds, sets=sets, store=self.store))

    def queue(self, rows: str | None = None, stale: str = "keep", **more: Any) -> "Made":
        Store.open(self.store)
        chosen = replace(self.chosen(rows), **more)
        plan = chosen.plan
        enqueue(chosen, plan, wanted(plan, stale), stale)
        return self

    def run(self, rows: str | None = None, stale: str = "keep", **more: Any) -> "Made":
        """Run the study as `ablations run` does, with real children and without MLflow."""
        self.queue(rows, stale, **more)
        train(self.store)
        return self

    def copied(self, folder: Path) -> "Made":
        """Copy study, code and store to another folder that a test may change."""
        shutil.copytree(self.study.parent, folder)
        shutil.copytree(self.store, folder / "store")
        return Made(folder / self.study.name, folder / "store")

    def table(self, tests: str = "auto", **selectors: Any) -> Table:
        return table_of(self.chosen(**selectors), tests)

    def rows(self, **selectors: Any) -> dict[str, Row]:
        return {row.key: row for row in self.table(**selectors).rows}

    def record(self, row: str) -> Mapping[str, Any]:
        found = self.rows()[row].outcomes[0].record
        assert found is not None
        return found.content


def train(store: Path) -> None:
    """Work on the queue until it is empty."""
    WorkOptions(devices="cpu:2").start(Store.open(store), tracked=False)


def said(table: Table, *parts: str) -> list[str]:
    """Return the notes and warnings that contain all of the given words."""
    return [
        text
        for text in (*table.warnings, *(note.text for note in table.footnotes))
        if all(part in text for part in parts)
    ]


def write(folder: Path, files: Mapping[str, str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


STUDIES = {
    "translation": "small", "own": "mine", "command": "walk", "ensembles": "together",
    **({"language": "words"} if "language_modelling" in named_tasks() else {}),  # of an extra
}  # fmt: skip


def made_all(folder: Path) -> dict[str, Made]:
    """Return the tables in a folder made by `make_all`."""
    folders = {kind: "translation" if kind == "ensembles" else kind for kind in STUDIES}
    return {kind: Made(folder / folders[kind] / f"{name}.toml", folder / "store") for kind, name in STUDIES.items()}


def make_all(folder: Path) -> None:
    """Make one store with a finished table of each kind of task."""
    letters = write(folder / "letters", _parallel())
    text = TRANSLATION.replace("data = {", f'data = {{corpus = "{letters}", ')
    write(folder / "translation", {"small.toml": text, "together.toml": ENSEMBLES})
    if "language" in STUDIES:
        write(folder / "language", {"words.toml": LANGUAGE})
    write(folder / "command", {"walk.toml": COMMAND, "walk.py": WALK})
    done = CliRunner().invoke(app, ["new", "mine", "--folder", str(folder / "own")])
    assert done.exit_code == 0, done.output
    for made in made_all(folder).values():  # of members that are queued, an ensemble waits
        made.queue()
    train(folder / "store")


def _parallel() -> dict[str, str]:
    """Write the files of a corpus in which three pairs of dev are also in train."""
    sides = {name: [*itertools.islice(generate(name, 120), 120)] for name in ("train", "dev", "test")}
    sides["dev"] = [*sides["dev"][:17], *sides["train"][:3]]
    sides["test"] = sides["test"][:10]
    return {
        f"{name}.{language}": "".join(f"{pair[side]}\n" for pair in pairs)
        for name, pairs in sides.items()
        for side, language in enumerate(("en", "de"))
    }
