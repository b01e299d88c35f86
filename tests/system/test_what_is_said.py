"""Messages that the program prints while it works, tested with real runs of tiny commands."""

import shutil
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
    assert "2 queued runs of other selections not started; train with `ablations work`" in done.stderr
    assert "accuracy" in done.stdout and "not started:" not in done.stderr
    states = {
        job["members"][0]["study"]: (job["state"], job["held"]) for job in as_json(cli("status", *store, "--json"))
    }
    assert states["second"] == ("finished", "")
    assert states["first"][0] == "waiting" and states["first"][1].startswith("left by `ablations run`")
    cli("work", *store, "--devices", "cpu:2")
    assert "first, profile exact: 3 runs: 2 finished, 1 missing" in cli("status", first, *store).stdout


def test_a_failed_run_says_why_where_run_ends_and_what_fails_alike_is_held(cli: Cli, tmp_path: Path) -> None:
    study = written(tmp_path, "fails", "(echo epoch 1; echo cannot open data-{n}.csv) >&2; exit 3")
    done = cli("run", study, "--store", tmp_path / "store", "--devices", "cpu:1", code=1)
    said = done.stderr.splitlines()
    at = next(number for number, line in enumerate(said) if line.endswith("with the same reason):"))
    assert said[at + 1 : at + 3] == ["  epoch 1", f"  cannot open data-{said[at + 2][-5]}.csv"], done.stderr
    assert "failed with the same last lines" in done.stderr and "cannot open data-#.csv / epoch #" in done.stderr
    assert "2 runs failed; see why with `ablations status`" in done.stderr, "the third row was not tried"


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
    # Four runs take two rounds of three seconds. A line is printed when the second round starts, none as time passes.
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
    assert "two selects 2 runs, none of them running; following the newest" in done.stderr
    assert done.stdout.startswith("seeds two seed 2 ") and "begins 2" in done.stdout
    assert "Name one by its run_id or seed" in cli("log", "two", "--store", store, code=2).stderr


def test_plan_and_run_tell_apart_what_is_left_and_what_it_costs(
    cli: Cli, tiny: Path, finished: Path, tmp_path: Path
) -> None:
    shutil.copytree(finished, tmp_path / "store")
    store = ("--store", tmp_path / "store", "--rows", "base,h1", "--seeds", "2")
    another_beam = ("--set", "evaluation.beam_size=3")
    printed = cli("plan", tiny, *store, *another_beam).stdout
    assert printed.count("  trained, not decoded  ") == 4 and "4 runs: 4 trained, not decoded;" in printed
    assert "FLOP of training, none left" in printed and "disk: 0.00 GB" in printed
    decoding = as_json(cli("plan", tiny, *store, *another_beam, "--json"))
    longer = as_json(cli("plan", tiny, *store, "--set", "training.train_steps=60", "--json"))
    assert {run["to_make"] for run in decoding} == {"decode"} and {run["to_make"] for run in longer} == {None}
    assert {run["state"] for run in decoding + longer} == {"missing"}
    assert all(run["seconds"] is not None and run["disk_bytes"] == 0 for run in decoding), "no training is predicted"
    assert all(run["disk_bytes"] > 0 for run in longer)
    one_more = cli("queue", tiny, "--store", store[1], "--rows", "base", "--seeds", "3", *another_beam).stderr
    assert "3 runs queued (2 trained, not decoded; 1 missing)" in one_more
    assert "limit" not in cli("run", tiny, *store, *another_beam, "--max-hours", "0.02", "--devices", "cpu:2").stderr


def test_a_broken_file_beside_a_study_never_hides_it(cli: Cli, tmp_path: Path) -> None:
    study, store = written(tmp_path, "digits", SCORES), ("--store", tmp_path / "store")
    cli("run", study, "--rows", "base", *store, "--devices", "cpu:1")
    (study.parent / "a.toml").write_text('name = "digits"\ntitle = 3\n')
    (study.parent / "b.toml").write_text("name = ")
    [table] = as_json(cli("tables", *store, "--json"))
    assert (table["in_study"], table["note"], table["state"]) == (True, "", "complete")
    study.write_text(study.read_text().replace("[[variation]]", "[[variaton]]"))
    [table] = as_json(cli("tables", *store, "--json"))
    assert table["in_study"] is None and table["note"].startswith("2 files are named digits; a.toml cannot be used; ")
    assert "digits.toml cannot be used; see why with `ablations plan " in table["note"]


def test_the_nearest_selection_with_results_is_named_for_a_corpus_too(
    cli: Cli, tiny: Path, finished: Path, tmp_path: Path
) -> None:
    for name in ("train.en", "train.de", "dev.en", "dev.de"):
        (tmp_path / name).write_text("a house\n" * 40)
    given = ("--rows", "base", "--seeds", "2", "--store", finished)
    said = cli("report", tiny, *given, "--corpus", tmp_path).stderr
    assert "2 finished runs of tiny exist with the corpus builtin" in said and "`ablations report " in said
