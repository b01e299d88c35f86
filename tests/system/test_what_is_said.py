"""What the program says while it works, on what real runs write: tiny commands, each test with its own store."""

from pathlib import Path

import pytest

from .conftest import Cli, as_json

pytestmark = pytest.mark.process

STUDY = """
name = "{name}"
title = "Said"
command = '''{command}'''
base = {{n = 1}}

[[metric]]
name = "acc"
head = "accuracy"

[[variation]]
key = "base"

[[variation]]
key = "two"
set = {{n = 2}}

[[variation]]
key = "three"
set = {{n = 3}}
"""
SCORES = """: {n}; echo '{"acc": 0.9}'"""


def written(folder: Path, name: str, command: str) -> Path:
    path = folder / f"{name}.toml"
    path.write_text(STUDY.format(name=name, command=command), encoding="utf-8")
    return path


def test_run_trains_its_own_selection_and_work_the_others(cli: Cli, tmp_path: Path) -> None:
    first, second = (written(tmp_path, name, f"{SCORES}; : {name}") for name in ("first", "second"))
    store = ("--store", tmp_path / "store")
    cli("queue", first, "--rows", "base,two", *store)
    done = cli("run", second, "--rows", "base", *store, "--devices", "cpu:1")
    assert "2 queued runs of other selections wait: `ablations work` trains them" in done.stderr
    assert "accuracy" in done.stdout and "not run" not in done.stderr
    states = {
        job["members"][0]["study"]: (job["state"], job["held"]) for job in as_json(cli("status", *store, "--json"))
    }
    assert states["second"] == ("finished", "")
    assert states["first"][0] == "waiting" and states["first"][1].startswith("left by `ablations run`")
    cli("work", *store, "--devices", "cpu:2")
    assert "first, profile exact: 3 runs: 2 finished, 1 missing" in cli("status", first, *store).stdout


def test_a_failed_run_says_why_where_run_ends_and_what_fails_alike_is_held(cli: Cli, tmp_path: Path) -> None:
    study = written(tmp_path, "fails", "echo epoch 1; echo cannot open data-{n}.csv >&2; exit 3")
    done = cli("run", study, "--store", tmp_path / "store", "--devices", "cpu:1", code=1)
    said = done.stderr.splitlines()
    at = next(number for number, line in enumerate(said) if line.endswith("(seed 1)):"))
    assert said[at + 1 : at + 3] == ["  epoch 1", f"  cannot open data-{said[at + 2][-5]}.csv"], done.stderr
    assert "failed with the same last lines" in done.stderr and "epoch # / cannot open data-#.csv" in done.stderr
    assert "2 failed; `ablations status` shows why" in done.stderr, "the third row was not tried"


def test_failures_that_differ_are_each_said(cli: Cli, tmp_path: Path) -> None:
    study = written(tmp_path, "differ", "case {n} in 1) echo no disk >&2;; 2) echo no gpu >&2;; *) true;; esac; exit 1")
    said = cli("run", study, "--store", tmp_path / "store", "--devices", "cpu:1", code=1).stderr
    assert "base (seed 1) failed:\n  no disk\n" in said and "two (seed 1) failed:\n  no gpu\n" in said
    assert "three (seed 1) failed:\n  the command ended with exit code 1" in said and "held" not in said


@pytest.fixture(scope="module")
def two_seeds(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("seeds")
    study = written(folder, "seeds", "echo begins {seed} >&2; sleep 3; " + SCORES)
    done = cli("run", study, "--rows", "base,two", "--seeds", "2", "--store", folder / "store", "--devices", "cpu:2")
    lines = [line for line in done.stderr.splitlines() if line.startswith("seeds: ")]
    # four runs in two rounds of three seconds: a line when the second round begins, none for the time that passes
    assert 1 <= len(lines) <= 4 and len({line.partition(";")[0].partition(", about")[0] for line in lines}) == len(
        lines
    )
    return study, folder / "store"


def test_explain_answers_in_ten_lines(cli: Cli, two_seeds: tuple[Path, Path]) -> None:
    study, store = two_seeds
    found = cli("explain", study, "two", "--seeds", "2", "--store", store).stdout.splitlines()
    assert found[:2] == ["seeds two: n=2", "accuracy = 0.9 ± 0, n = 2 seeds; change from base +0"]
    assert [line[:13] for line in found[2:4]] == ["seed 1: 0.9; ", "seed 2: 0.9; "] and "runs/" in found[2]
    assert found[4].startswith("made by ") and found[-1].startswith("More (--full): ") and len(found) <= 10
    full = cli("explain", study, "two", "--seeds", "2", "--store", store, "--full").stdout.splitlines()
    assert len(full) > 20 and "changes from base" in full


def test_log_f_of_a_row_takes_the_running_run_or_the_newest(cli: Cli, two_seeds: tuple[Path, Path]) -> None:
    _, store = two_seeds
    done = cli("log", "two", "-f", "--store", store)
    assert "two selects 2 runs, none of them running: this is the newest" in done.stderr
    assert done.stdout.startswith("seeds two seed 2 ") and "begins 2" in done.stdout
    assert "name one by its run_id or its seed" in cli("log", "two", "--store", store, code=2).stderr
