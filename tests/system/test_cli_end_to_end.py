"""Tests of one tiny, really trained table: desired state, evaluation without training, gaps, and a moved store."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.store.layout import Store

from .conftest import Cli, as_json, environment


@pytest.fixture(scope="module")
def store(cli: Cli, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with the finished tiny table."""
    store = tmp_path_factory.mktemp("stores") / "store"
    rows = as_json(cli("run", tiny, "--store", store, "--devices", "cpu:2", "--json"))
    assert [row["row"] for row in rows] == ["base", "h1", "untrained"]
    assert all(row["ppl"] > 1 and row["bleu"] is not None and row["n"] == 1 for row in rows)
    return store


def attempts(store: Path) -> list[str]:
    return sorted(str(path.relative_to(store)) for path in store.glob("runs/*/attempts/*"))


def test_the_second_run_does_nothing(cli: Cli, tiny: Path, store: Path) -> None:
    before = attempts(store)
    assert "nothing to train" in cli("run", tiny, "--store", store).stderr
    assert attempts(store) == before
    assert {run["state"] for run in as_json(cli("plan", tiny, "--store", store, "--json"))} == {"finished"}


def test_formats_agree_and_bytes_are_stable(cli: Cli, tiny: Path, store: Path, tmp_path: Path) -> None:
    for name in ("markdown", "latex", "csv", "json"):
        out = tmp_path / name
        cli("report", tiny, "--store", store, "--format", name, "--out", out, "--strict")
        assert cli("report", tiny, "--store", store, "--format", name).stdout == out.read_text(encoding="utf-8")


def test_evaluate_scores_again_without_training(cli: Cli, tiny: Path, store: Path) -> None:
    def trainings() -> set[str]:
        return {str(path) for path in store.glob("runs/*/attempts/*/final")}

    before = trainings()
    options = [tiny, "--store", store, "--set", "evaluation.beam_size=1", "--set", "evaluation.sets=dev,test"]
    rows = as_json(cli("evaluate", *options, "--json"))
    assert trainings() == before
    assert all(row["bleu_test"] is not None for row in rows)
    first = as_json(cli("report", tiny, "--store", store, "--json"))
    assert [row["ppl"] for row in first] == [row["ppl"] for row in rows]  # the beam differs, the weights do not
    for run in store.glob("runs/*"):  # parts that do not depend on the beam are computed once
        records = [json.loads(path.read_text()) for path in run.glob("evaluations/*/result.json")]
        dev = [record["parts"] for record in records if record["set"] == "dev"]
        assert len(dev) == 2
        assert dev[0]["likelihood"] == dev[1]["likelihood"] and dev[0]["decode"] != dev[1]["decode"]


def test_one_more_seed_trains_only_that_seed(cli: Cli, tiny: Path, store: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(store, copy)
    before = set(attempts(copy))
    rows = as_json(cli("run", tiny, "--rows", "h1", "--seeds", "2", "--store", copy, "--json"))
    assert rows[0]["n"] == 2 and len(set(attempts(copy)) - before) == 1


def test_more_steps_go_on_where_fewer_ended(cli: Cli, tiny: Path, store: Path, tmp_path: Path) -> None:
    """A run with other train_steps is a different run. It may start from a checkpoint of an interrupted shorter run."""
    other = as_json(cli("plan", tiny, "--rows", "base", "--store", store, "--set", "training.train_steps=9", "--json"))
    assert other[0]["state"] == "missing"


def test_a_copied_store_gives_the_same_table_without_mlflow(cli: Cli, tiny: Path, store: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    shutil.copytree(store, moved)
    (moved / "mlflow.db").unlink()
    options = ["report", tiny, "--format", "latex", "--store"]
    assert cli(*options, moved).stdout == cli(*options, store).stdout


def test_gaps_are_gaps(cli: Cli, tiny: Path, store: Path) -> None:
    done = cli("report", tiny, "--store", store, "--seeds", "2", "--strict", code=1)
    assert "(1/2)" in done.stdout
    rows = as_json(cli("report", tiny, "--store", store, "--seeds", "2", "--json"))
    assert rows[0]["ppl"] is None and rows[0]["n"] == 1


def test_mlflow_holds_the_runs(tiny: Path, store: Path) -> None:
    code = """
import json, sys
from mlflow import MlflowClient
client = MlflowClient(f"sqlite:///{sys.argv[1]}/mlflow.db")
experiment = client.get_experiment_by_name("tiny")
runs = [r for r in client.search_runs([experiment.experiment_id]) if "run_id" in r.data.tags]
print(json.dumps([[r.data.tags["row"], r.info.status, r.data.params["model.num_heads"], sorted(r.data.metrics),
                   r.data.tags["mlflow.parentRunId"]] for r in runs]))
"""
    done = subprocess.run([sys.executable, "-c", code, store], capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
    runs = {run[0]: run for run in json.loads(done.stdout)}
    assert set(runs) == {"base", "h1", "untrained"}
    assert all(run[1] == "FINISHED" for run in runs.values())
    assert runs["h1"][2] == "1"
    assert {"perplexity", "bleu", "num_params"} <= {name.rpartition("/")[2] for name in runs["base"][3]}
    assert len({run[4] for run in runs.values()}) == 1


@pytest.mark.parametrize("verb", [["--help"], ["plan", "table3", "--json"], ["status"], ["tables"], ["studies"]])
def test_planning_starts_without_torch(verb: list[str], tmp_path: Path) -> None:
    Store.open(tmp_path / "runs")
    code = f"""
import sys
from ablations.cli.main import app
try:
    app({verb!r})
except SystemExit as end:
    assert not end.code, end.code
loaded = [name for name in ("torch", "mlflow", "pandas", "optuna") if name in sys.modules]
assert not loaded, loaded
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_what_only_reads_imports_no_mlflow(cli: Cli, tiny: Path, store: Path) -> None:
    """Importing MLflow takes over a second. `status`, and `run` with nothing to do, do not need it."""
    code = """
import sys
from ablations.cli.main import app
study, store = sys.argv[1:]
for words in (["plan", study], ["status"], ["status", study], ["report", study], ["run", study]):
    try:
        app([*words, "--store", store])
    except SystemExit as end:
        assert not end.code, end.code
    assert "mlflow" not in sys.modules, words
"""
    cli("run", tiny, "--store", store)  # other tests of this file give the runs more rows
    words = [sys.executable, "-c", code, str(tiny), str(store)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment())
    assert done.returncode == 0 and "nothing to train" in done.stderr and "MLflow" not in done.stdout, done.stderr


def test_the_papers_parameters(cli: Cli, tmp_path: Path) -> None:
    """With tensor2tensor's vocabulary, ten of eleven numbers of parameters round to those printed in Table 3."""
    options = ["--profile", "paper", "--set", "data.vocab_size=40960", "--store", tmp_path / "none", "--json"]
    runs = as_json(cli("plan", "table3", *options))
    printed = {run["row"]: run["paper"]["params"] for run in runs if run["paper"]["params"]}
    computed = {run["row"]: run["num_params"] / 1e6 for run in runs}
    assert len(printed) == 11
    assert [row for row, value in printed.items() if round(computed[row]) != value] == ["big"]
    assert round(computed["big"], 1) == 218.3


@pytest.mark.slow
def test_what_has_a_higher_priority_is_trained_first(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    where = ["--store", tmp_path / "store"]
    cli("queue", tiny, "--rows", "base", *where)
    cli("queue", tiny, "--rows", "untrained", "--priority", "5", *where)
    cli("work", *where, "--devices", "cpu:1")
    started = {row["members"][0]["row"]: row["started"] for row in as_json(cli("status", *where, "--json"))}
    assert started["untrained"] < started["base"]
