"""If the version of a part of the program is incremented between two runs, only stale parts are computed again."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import TINY, environment

ROOT = Path(__file__).parents[2]
EDITS = {  # each edit (file, old, new), and the version that is incremented with it
    "scoring": (("experiments/evaluation/scoring.py", 'BLEU(tokenize="13a")', 'BLEU(tokenize="char")'), "SCORING"),
    "search": (("experiments/evaluation/beam.py", "(5 +", "(6 +"), "DECODING"),
    "loss": (("experiments/training/loss.py", "1 - ", "1.01 - "), "TRAINING"),
}


class Copy:
    """A copy of this program that tests edit, with a study and a store."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.study, self.store = folder, folder / "tiny.toml", folder / "runs"
        for package in ("ablations", "model", "experiments", "reports"):
            shutil.copytree(ROOT / package, folder / "code" / package, ignore=shutil.ignore_patterns("__pycache__"))
        self.study.write_text(TINY.partition('[[variation]]\nkey = "h1"')[0])

    def edit(self, name: str, old: str, new: str) -> None:
        file = self.folder / "code" / name
        assert old in file.read_text("utf-8")
        file.write_text(file.read_text("utf-8").replace(old, new), "utf-8")

    def change(self, name: str) -> None:
        """Edit a part, check that this makes nothing stale, and increment the part's version."""
        edited, version = EDITS[name]
        before = [run["state"] for run in self.plan()]
        self.edit(*edited)
        assert [run["state"] for run in self.plan()] == before
        self.edit("experiments/tasks/versions.py", f"{version} = 1", f"{version} = 2")

    def command(self, verb: str, *words: str) -> "subprocess.CompletedProcess[str]":
        argv = [sys.executable, "-m", "ablations.cli.main", verb, str(self.study), "--store", str(self.store), *words]
        env = {**environment(), "PYTHONPATH": str(self.folder / "code")}
        env.pop("ABLATIONS_STORE", None)
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # else each process would compile the copy again
        done = subprocess.run(argv, env=env, capture_output=True, text=True, cwd=self.folder)
        assert done.returncode == 0, done.stderr
        return done

    def plan(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.command("plan", "--json").stdout)
        return found

    def record(self) -> dict[str, Any]:
        [file] = self.store.glob("runs/*/evaluations/*/result.json")
        found: dict[str, Any] = json.loads(file.read_text())
        return {**found, "outputs": (file.parent / "translations.txt").read_bytes()}

    def events(self) -> list[dict[str, Any]]:
        """Return the events of the last attempt."""
        last = max(self.store.glob("runs/*/attempts/*"), key=lambda path: int(path.name))
        return [json.loads(line) for line in (last / "events.jsonl").read_text().splitlines()]


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


@pytest.mark.nightly
def test_each_edit_renews_its_part_alone(copy: Copy) -> None:
    copy.command("run", "--devices", "cpu:1")
    first = copy.record()
    assert [run["state"] for run in copy.plan()] == ["finished"]

    copy.change("scoring")
    assert [run["stale"] for run in copy.plan()] == [["likelihood", "score"]]
    assert "†" in copy.command("run", "--devices", "cpu:1").stdout  # the result is kept and marked
    assert copy.record() == first
    done = copy.command("run", "--devices", "cpu:1", "--stale", "rerun")
    assert "score of base without training" in done.stderr
    scored = copy.record()
    assert scored["metrics"]["bleu"] != first["metrics"]["bleu"]
    assert scored["metrics"]["perplexity"] == first["metrics"]["perplexity"]
    assert scored["outputs"] == first["outputs"]
    assert {p for p in first["parts"] if scored["parts"][p] != first["parts"][p]} == {"likelihood", "score"}
    assert {event["kind"] for event in copy.events()}.isdisjoint({"metrics", "progress", "trained"})
    assert [run["state"] for run in copy.plan()] == ["finished"]

    copy.change("search")
    assert [run["stale"] for run in copy.plan()] == [["decode"]]
    copy.command("run", "--devices", "cpu:1", "--stale", "rerun")
    decoded = copy.record()
    assert {p for p in first["parts"] if decoded["parts"][p] != scored["parts"][p]} == {"decode", "score"}
    kinds = {event["kind"] for event in copy.events()}
    assert "progress" in kinds and kinds.isdisjoint({"metrics", "trained"})

    copy.change("loss")
    assert [run["stale"] for run in copy.plan()] == [["training"]]
    done = copy.command("run", "--devices", "cpu:1", "--stale", "rerun")
    assert "training and all scores of base (" in done.stderr
    trained = copy.record()
    assert trained["metrics"]["perplexity"] != first["metrics"]["perplexity"]
    assert "trained" in {event["kind"] for event in copy.events()}
    assert [run["state"] for run in copy.plan()] == ["finished"]
    # The earlier evaluations are kept in the folders of the attempts that made them.
    kept = [json.loads(p.read_text()) for p in copy.store.glob("runs/*/attempts/*/evaluations/*/result.json")]
    assert {k["metrics"]["bleu"] for k in kept} >= {first["metrics"]["bleu"], scored["metrics"]["bleu"]}
