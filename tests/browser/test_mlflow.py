"""MLflow's own pages through the links that `ablations ui` prints: the table as a ready comparison."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.system.conftest import Cli, as_json, command, free_port, serving

from .test_page import HOSTILE, hostile_study

pytestmark = pytest.mark.browser
ROWS = ["base", "h1", "untrained"]
# MLflow's page complains of itself: a server without users, its grid's version, a layout that takes two passes.
ITS_OWN = ("users/current", "AG Grid", "ResizeObserver")


@dataclass(frozen=True)
class Links:
    view: str
    listing: str

    @property
    def server(self) -> str:
        return self.view.partition("/#/")[0]

    @property
    def experiment(self) -> str:
        return self.view.partition("/experiments/")[2].partition("/")[0]


@pytest.fixture(scope="module")
def links(tiny: Path, finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Links]:
    """`ablations ui` on the tiny table, until the tests have ended."""
    port, log = free_port(), tmp_path_factory.mktemp("ui") / "log.txt"
    with serving(command("ui", tiny, "--seeds", "2", "--store", finished, "--port", str(port)), port, log):
        view, listing = re.findall(r"http://\S+/#\S+", log.read_text())
        yield Links(view, listing)


def wait_for(page: Any, *texts: str) -> str:
    """The page's whole text, once it contains these words. A page that is still loading has no body."""
    for text in texts:
        page.wait_for_function("text => document.body?.innerText.includes(text)", arg=text)
    return str(page.inner_text("body"))


def in_order(text: str, parts: list[str]) -> bool:
    places = [text.find(part) for part in parts]
    return -1 not in places and places == sorted(places)


def test_the_saved_view_is_the_table(visit: Any, cli: Cli, tiny: Path, finished: Path, links: Links) -> None:
    seen = visit(links.view, wait="commit")
    text = wait_for(seen.page, "Group: untrained", "The table\n(4)", "Group by: row", "Sort: order.tiny")
    seeds = [[f"{row} · seed {seed}" for seed in (1, 2)] for row in ROWS]
    assert in_order(text, [part for row, names in zip(ROWS, seeds, strict=True) for part in (f"Group: {row}", *names)])
    assert "6 matching runs" in text.replace("\n", " ")
    for title in ("perplexity", "bleu", "num_params", "train_perplexity"):
        assert title in text
    rows = as_json(cli("report", tiny, "--seeds", "2", "--store", finished, "--json"))
    means = [f"{row['ppl']:.2f}" for row in rows]
    seen.page.wait_for_function(
        "means => { const drawn = [...document.querySelectorAll('svg text')].map(e => e.textContent);"
        " return means.every(mean => drawn.includes(mean)); }",
        arg=means,
    )  # the bars are means over seeds, as the table's
    seen.shot("mlflow-view")
    assert_quiet(seen, links)


def test_the_list_has_the_runs_in_the_tables_order(visit: Any, links: Links) -> None:
    seen = visit(links.listing, wait="commit")
    text = wait_for(seen.page, "untrained · seed 2", "Sort: order.tiny")
    assert in_order(text, [f"{row} · seed {seed}" for row in ROWS for seed in (1, 2)])
    seen.shot("mlflow-list")
    assert_quiet(seen, links)


def test_the_heading_run_holds_the_table(visit: Any, finished: Path, links: Links) -> None:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{finished}/mlflow.db")
    [heading] = client.search_runs([links.experiment], "tags.heading != ''")
    seen = visit(f"{links.server}/#/experiments/{links.experiment}/runs/{heading.info.run_id}", wait="commit")
    text = wait_for(seen.page, "A table of width 8", "PPL (dev)")
    assert all(row in text for row in ROWS)
    assert seen.page.locator("table", has_text="PPL (dev)").locator("tr").count() >= 4  # Markdown became a table
    seen.shot("mlflow-heading")
    seen.page.goto(f"{links.server}/#/experiments/{links.experiment}/runs/{heading.info.run_id}/artifacts")
    seen.page.get_by_text("table", exact=True).first.click()
    text = wait_for(seen.page, "table.tex", "table.md", "table.html", "effects.svg")
    seen.shot("mlflow-artifacts")
    assert_quiet(seen, links)


def test_names_in_the_note_are_text(visit: Any, cli: Cli, finished: Path, links: Links, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    study = hostile_study(tmp_path)
    said = cli("ui", study, "--seeds", "2", "--store", finished, "--tracking-uri", links.server).stdout
    experiment = said.partition("/experiments/")[2].partition("/")[0]
    client = MlflowClient(tracking_uri=links.server)
    [heading] = client.search_runs([experiment], "tags.heading != ''")
    seen = visit(f"{links.server}/#/experiments/{experiment}/runs/{heading.info.run_id}", wait="commit")
    wait_for(seen.page, HOSTILE, "PPL (dev)")
    seen.shot("mlflow-hostile")
    assert not [url for url in seen.requests if url.startswith("http://127.0.0.1:9/")]
    assert_quiet(seen, links)


def assert_quiet(seen: Any, links: Links) -> None:
    """No request went outside this machine, and the console has no errors but MLflow's own."""
    assert not [url for url in seen.requests if not url.startswith((links.server, "data:", "blob:"))]
    assert not [text for text in seen.complaints if not any(known in text for known in ITS_OWN)]
