"""A user's own tracking server: another database and artifact store, reached only by HTTP."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import Cli, as_json, free_port, serving

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home, port = tmp_path_factory.mktemp("server"), free_port()
    words = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    words += ["--backend-store-uri", f"sqlite:///{home}/other.db", "--artifacts-destination", str(home / "kept")]
    with serving(words, port, home / "log.txt") as address:
        yield address


def test_the_table_and_its_runs_go_to_a_server(
    cli: Cli, tiny: Path, finished: Path, server: str, tmp_path: Path
) -> None:
    from mlflow import MlflowClient

    before = (finished / "mlflow.db").read_bytes()
    words = ["ui", tiny, "--seeds", "2", "--store", finished, "--tracking-uri", server]
    said = [cli(*words).stdout for _ in range(2)]  # again: nothing twice
    assert said[0] == said[1]
    view, listing = re.findall(r"http://\S+/#\S+", said[0])
    assert all(link.startswith(server) for link in (view, listing))
    client = MlflowClient(tracking_uri=server)
    experiment = client.get_experiment_by_name("tiny")
    key = re.search(r"viewStateShareKey=(\w+)", view)
    assert key and f"mlflow.sharedViewState.{key[1]}" in experiment.tags
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
    assert "workflowType=machine_learning" in view and "workflowType=machine_learning" in listing
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
    assert (finished / "mlflow.db").read_bytes() == before  # the store's own is left alone


def test_a_server_that_is_not_there(cli: Cli, tiny: Path, finished: Path) -> None:
    words = ["ui", tiny, "--seeds", "2", "--store", finished, "--tracking-uri", f"http://127.0.0.1:{free_port()}"]
    said = cli(*words, code=2).stderr
    assert "no server can be reached at 127.0.0.1" in said and "Traceback" not in said
    there = ["--store", finished, "--tracking-uri", "http://127.0.0.1:9"]
    assert "name STUDY" in cli("ui", *there, code=2).stderr
