"""Tests with a user's tracking server, which has another database and artifact store and is reached only by HTTP."""

import math
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.events.event_log import EventWriter
from experiments.run_spec import RunSpec
from experiments.store.layout import Store
from experiments.store.tracked_run import TrackedRun
from tests.in_mlflow import content

from .conftest import Cli, as_json, free_port, serving

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home, port = tmp_path_factory.mktemp("server"), free_port()
    words = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    words += ["--backend-store-uri", f"sqlite:///{home}/other.db", "--artifacts-destination", str(home / "kept")]
    with serving(words, port, home / "log.txt") as address:
        yield address


@pytest.mark.nightly
def test_the_table_and_its_runs_go_to_a_server(
    cli: Cli, tiny: Path, finished: Path, server: str, tmp_path: Path
) -> None:
    from mlflow import MlflowClient

    before = (finished / "mlflow.db").read_bytes()
    words = ["ui", tiny, "--seeds", "2", "--store", finished, "--tracking-uri", server]
    said = [cli(*words).stdout for _ in range(2)]  # the second call must add nothing
    assert said[0] == said[1]
    [listing] = re.findall(r"http://\S+/#\S+", said[0])
    assert listing.startswith(server) and "workflowType=machine_learning" in listing
    client = MlflowClient(tracking_uri=server)
    experiment = client.get_experiment_by_name("tiny")
    runs = client.search_runs([experiment.experiment_id], "tags.table != ''", order_by=["start_time"])
    [heading] = client.search_runs([experiment.experiment_id], "tags.heading != ''")
    above = [run for run in runs if "run_id" not in run.data.tags]
    assert [run.info.run_name for run in above] == ["base", "h1", "untrained"]
    children = [
        run
        for row in above
        for run in sorted(runs, key=lambda run: run.info.run_name)
        if run.data.tags.get("mlflow.parentRunId") == row.info.run_id
    ]
    assert len(runs) == len(above) + len(children) and all("mlflow.parentRunId" not in row.data.tags for row in above)
    rows = as_json(cli("report", tiny, "--seeds", "2", "--store", finished, "--json"))
    assert [run.data.tags["run_id"] for run in children] == [name for row in rows for name in row["run_ids"]]
    assert [run.data.metrics["PPL"] for run in children[:2]] == [
        round(run.data.metrics["perplexity"], 2) for run in children[:2]
    ]
    of_base = [run.data.metrics["perplexity"] for run in children[:2]]
    assert sum(of_base) / 2 == pytest.approx(rows[0]["ppl"])
    assert "A table of width 8" in heading.data.tags["mlflow.note.content"]
    kept = Path(client.download_artifacts(heading.info.run_id, "table", str(tmp_path)))
    for name, format_ in (("table.tex", "latex"), ("table.csv", "csv"), ("table.html", "html")):
        printed = cli("report", tiny, "--seeds", "2", "--store", finished, "--format", format_).stdout
        assert (kept / name).read_text(encoding="utf-8") == printed, name
    assert {"effects.svg", "curves.svg", "setup.md"} <= {path.name for path in kept.iterdir()}
    assert (finished / "mlflow.db").read_bytes() == before  # the store's database is unchanged


@pytest.mark.nightly
def test_a_server_holds_what_the_database_holds(server: str, tmp_path: Path) -> None:
    """The data has numbers that are not finite, names and texts beyond MLflow's limits, and histories.

    It is written twice, in parts.
    """
    from experiments.tracking.mlflow import Tracker

    store, run_id = Store.open(tmp_path / "store"), "a" * 16
    number, folder = store.new_attempt(run_id)
    events = EventWriter(folder)
    events.emit("started", attempt=number, after_s=0.0, host="h" * 9000, members=[["beyond", "demo", "", "base", ""]])
    long = "m" * 300
    config = {"model": {"d_model": 8}, **{f"setting_{i}": i for i in range(250)}, "text": "x" * 9000, "n%" * 200: 1}
    run = TrackedRun(RunSpec(run_id, config, {"corpus": "c0ffee"}), "RUNNING")
    trackers = Tracker(store), Tracker(store, server)
    for status, steps in (("RUNNING", range(700)), ("FINISHED", range(700, 1300))):
        for step in steps:
            value = {1: math.nan, 2: math.inf, 3: -math.inf}.get(step, step / 7)
            events.emit("metrics", step=step, metrics={"loss": value, long: 1.0, "a%": 0.5})
        for tracker in trackers:
            tracker.sync(replace(run, status=status))
            tracker.sync(replace(run, status=status, error="e" * 9000))
    here, there = (content(tracker.client) for tracker in trackers)
    ours = {name for name, *_ in here["runs"]}
    for table, rows in here.items():
        assert rows == {row for row in there[table] if row[0] in ours}, table
    losses = {row[-1]: float(row[2]) for row in here["metrics"] if row[1] == "train_loss"}
    assert len(losses) == 1300 and math.isnan(losses[1]) and losses[2] == -losses[3] == sys.float_info.max
    assert len([row for row in here["params"] if row[0] == run_id]) == 255
    tags = {row[1]: row[2] for row in here["tags"] if row[0] == run_id}
    assert len(tags["error"]) == len(tags["host"]) == 4000 and f"train_{long}" in tags.values()


def test_a_server_that_is_not_there(cli: Cli, tiny: Path, finished: Path) -> None:
    words = ["ui", tiny, "--seeds", "2", "--store", finished, "--tracking-uri", f"http://127.0.0.1:{free_port()}"]
    said = cli(*words, code=2).stderr
    assert "no server answers at 127.0.0.1" in said and "Traceback" not in said
    there = ["--store", finished, "--tracking-uri", "http://127.0.0.1:9"]
    assert "Name STUDY" in cli("ui", *there, code=2).stderr
