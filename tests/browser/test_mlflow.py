"""Tests of MLflow's pages, opened by the link that `ablations ui` prints, which lists the table's rows."""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.system.conftest import Cli, as_json, command, free_port, serving

from .test_page import HOSTILE, hostile_study

pytestmark = pytest.mark.browser
ROWS = ["base", "h1", "untrained"]
# Errors and warnings that MLflow's page itself causes: no user accounts, the grid's version, a layout in two passes.
ITS_OWN = ("users/current", "AG Grid", "ResizeObserver")


@dataclass(frozen=True)
class Links:
    listing: str

    @property
    def server(self) -> str:
        return self.listing.partition("/#/")[0]

    @property
    def experiment(self) -> str:
        return self.listing.partition("/experiments/")[2].partition("/")[0]


@pytest.fixture(scope="module")
def links(tiny: Path, finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Links]:
    """Run `ablations ui` on the tiny table until the tests have ended."""
    port, log = free_port(), tmp_path_factory.mktemp("ui") / "log.txt"
    with serving(command("ui", tiny, "--seeds", "2", "--store", finished, "--port", str(port)), port, log):
        yield Links(*re.findall(r"http://\S+/#\S+", log.read_text()))


def wait_for(page: Any, *texts: str) -> str:
    """Wait until the page contains these words, and return its text. A page that is still loading has no body."""
    for text in texts:
        page.wait_for_function("text => document.body?.innerText.includes(text)", arg=text)
    return str(page.inner_text("body"))


def settles(page: Any, found: Callable[[], list[str]], wanted: list[str]) -> None:
    """Wait for the rows in this order. MLflow first shows its default order, then the order in the address."""
    until = time.monotonic() + 30
    while (seen := found()) != wanted and time.monotonic() < until:
        page.wait_for_timeout(200)
    assert seen == wanted


def in_training_mode(page: Any) -> bool:
    """Check that the page lists runs, in MLflow's mode for model training."""
    heading = page.get_by_role("heading", name="Runs").first.is_visible()
    return heading and "workflowType=machine_learning" in page.url and "/traces" not in page.url


def names_in(page: Any) -> list[str]:
    """Return the run names that the list shows, from top to bottom."""
    cells = page.locator(".ag-row [col-id='attributes.`Run Name`']")
    seen = {cell.bounding_box()["y"]: cell.inner_text().strip().rpartition("\n")[2] for cell in cells.all()}
    return [seen[y] for y in sorted(seen)]


def with_sorted_runs(names: list[str]) -> list[str]:
    """Sort the runs below each row by name. MLflow sorts them by their start, and two slots start two runs at once."""
    rows: list[list[str]] = []
    for name in names:
        if " · seed " in name and rows:
            rows[-1].append(name)
        else:
            rows.append([name])
    return [name for row, *runs in rows for name in (row, *sorted(runs))]


def test_the_link_opens_one_line_per_row_with_its_runs_below_it(visit: Any, links: Links) -> None:
    seen = visit(links.listing, {"width": 1300, "height": 900}, wait="commit")
    # MLflow's panel is open
    text = wait_for(seen.page, "untrained", "Sort: Created", "9 matching runs", "MLflow Assistant")
    settles(seen.page, lambda: names_in(seen.page), ROWS)
    assert in_training_mode(seen.page) and "seed 2" not in text
    assert "A table of width 8" in text  # the experiment's description
    seen.shot("mlflow-list")
    for row in ROWS:
        line = seen.page.locator(".ag-row", has=seen.page.get_by_role("link", name=row, exact=True))
        line.locator("[col-id='attributes.`Run Name`'] button").first.click()
    names = [name for row in ROWS for name in (row, f"{row} · seed 1", f"{row} · seed 2")]
    settles(seen.page, lambda: with_sorted_runs(names_in(seen.page)), names)
    seen.shot("mlflow-list-open")
    assert_quiet(seen, links)


def test_a_row_has_the_tables_numbers(cli: Cli, tiny: Path, finished: Path, links: Links) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{finished}/mlflow.db")
    found = {run.info.run_name: run for run in client.search_runs([links.experiment], "tags.rows_of != ''")}
    printed = as_json(cli("report", tiny, "--seeds", "2", "--store", finished, "--json"))
    assert sorted(found, key=lambda name: found[name].info.start_time) == ROWS
    for row in printed:
        metrics = found[row["row"]].data.metrics
        assert metrics["PPL"] == round(row["ppl"], 2) and metrics["PPL sd"] == round(row["ppl_sd"], 2)
        assert row["row"] == "base" or metrics["Δ ln PPL"] == round(row["ppl_change"], 3)
        assert metrics["num_params"] == row["num_params"]
        assert found[row["row"]].data.params["num_heads"] == ("1" if row["row"] == "h1" else "2")
    before = {run.info.run_id for run in found.values()}
    cli("ui", tiny, "--seeds", "2", "--store", finished, "--tracking-uri", links.server)
    again = client.search_runs([links.experiment], "tags.rows_of != ''")
    assert {run.info.run_id for run in again} == before  # no run was made again
    cli("ui", tiny, "--seeds", "1", "--store", finished, "--tracking-uri", links.server)
    [base] = client.search_runs([links.experiment], "tags.rows_of != '' and tags.row = 'base'")
    assert base.data.tags["seeds"] == "1" and "PPL sd" not in base.data.metrics
    cli("ui", tiny, "--seeds", "2", "--store", finished, "--tracking-uri", links.server)


def test_the_heading_run_holds_the_table(visit: Any, finished: Path, links: Links) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{finished}/mlflow.db")
    [heading] = client.search_runs([links.experiment], "tags.heading != ''")
    seen = visit(f"{links.server}/#/experiments/{links.experiment}/runs/{heading.info.run_id}", wait="commit")
    text = wait_for(seen.page, "A table of width 8", "PPL (dev)")
    assert all(row in text for row in ROWS)
    # MLflow renders the Markdown table
    assert seen.page.locator("table", has_text="PPL (dev)").locator("tr").count() >= 4
    seen.shot("mlflow-heading")
    seen.page.goto(f"{links.server}/#/experiments/{links.experiment}/runs/{heading.info.run_id}/artifacts")
    seen.page.get_by_text("table", exact=True).first.click()
    text = wait_for(seen.page, "table.tex", "table.md", "table.html", "effects.svg")
    seen.shot("mlflow-artifacts")
    assert_quiet(seen, links)


def test_names_in_the_notes_are_text(visit: Any, cli: Cli, finished: Path, links: Links, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    study = hostile_study(tmp_path)
    said = cli("ui", study, "--seeds", "2", "--store", finished, "--tracking-uri", links.server).stdout
    experiment = said.partition("/experiments/")[2].partition("/")[0]
    client = MlflowClient(tracking_uri=links.server)
    [heading] = client.search_runs([experiment], "tags.heading != ''")
    seen = visit(f"{links.server}/#/experiments/{experiment}/runs/{heading.info.run_id}", wait="commit")
    wait_for(seen.page, HOSTILE, "PPL (dev)")
    seen.shot("mlflow-hostile")
    assert_quiet(seen, links)
    seen = visit(re.findall(r"http://\S+/#\S+", said)[0], wait="commit")
    wait_for(seen.page, HOSTILE, "Latest table: profile")  # the experiment's note
    seen.shot("mlflow-hostile-experiment")
    assert_quiet(seen, links)


def assert_quiet(seen: Any, links: Links) -> None:
    """Check that no request left this machine and that the console has only errors that MLflow itself causes."""
    assert not [url for url in seen.requests if not url.startswith((links.server, "data:", "blob:"))]
    assert not [text for text in seen.complaints if not any(known in text for known in ITS_OWN)]
