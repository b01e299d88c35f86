"""Tests of sorting, hiding and copying the HTML page's table in a real browser."""

from pathlib import Path
from typing import Any

import pytest

from tests.system.conftest import Cli, as_json

from .test_page import HOSTILE, hostile_study

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def page(cli: Cli, tiny: Path, finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("page") / "table.html"
    cli("report", tiny, "--seeds", "2", "--store", finished, "--format", "html", "--out", out)
    return out


@pytest.fixture(scope="module")
def rows(cli: Cli, tiny: Path, finished: Path) -> list[dict[str, Any]]:
    return as_json(cli("report", tiny, "--seeds", "2", "--store", finished, "--json"))


def names(page: Any) -> list[str]:
    """Return the names of the visible rows, from top to bottom."""
    return [name.inner_text() for name in page.locator("table.data tbody th").all() if name.is_visible()]


def pasted(page: Any) -> str:
    """Paste the clipboard into a text field and return the text."""
    page.evaluate("document.body.append(Object.assign(document.createElement('textarea'), {id: 'field', value: ''}))")
    page.locator("#field").focus()
    page.keyboard.press("Control+V")
    text = page.locator("#field").input_value()
    page.evaluate("document.getElementById('field').remove()")
    return str(text)


def test_a_head_sorts_up_down_and_back(visit: Any, page: Path, rows: list[dict[str, Any]]) -> None:
    seen = visit(page.as_uri())
    head = seen.page.locator("th[data-name='PPL (dev)']")
    by_value = [row["row"] for row in sorted(rows, key=lambda row: row["ppl"])]
    assert by_value != [row["row"] for row in rows] or by_value[::-1] != [row["row"] for row in rows]
    head.locator("button").click()
    assert names(seen.page) == by_value and head.get_attribute("aria-sort") == "ascending"
    head.locator("button").click()
    assert names(seen.page) == by_value[::-1] and head.get_attribute("aria-sort") == "descending"
    head.locator("button").click()
    assert names(seen.page) == [row["row"] for row in rows] and head.get_attribute("aria-sort") is None
    seen.page.locator("th[data-name='train_steps'] button").focus()
    seen.page.keyboard.press("Enter")  # sort by keyboard; h1's blank cell counts as base's value
    assert names(seen.page) == ["untrained", "base", "h1"]
    seen.shot("page-sorted")
    assert seen.requests == [page.as_uri()] and not seen.complaints


def test_a_row_without_a_value_stays_last(visit: Any, page: Path) -> None:
    seen = visit(page.as_uri())
    change = seen.page.locator("th[data-name='PPL (dev) Δ ln'] button")
    for _ in range(2):
        change.click()
        assert names(seen.page)[-1] == "base"  # base has no change from base, so it comes last


def test_columns_and_rows_can_be_hidden(visit: Any, page: Path) -> None:
    seen = visit(page.as_uri())
    before = seen.page.locator("table.data").bounding_box()
    columns, rows = seen.page.locator(".choose").all()
    columns.locator("summary").click()
    columns.get_by_label("PPL (dev) Δ ln", exact=True).uncheck()
    assert not seen.page.locator("th[data-name='PPL (dev) Δ ln']").is_visible()
    top = seen.page.locator("th.span", has_text="PPL (dev)")
    places = [top.bounding_box(), *(seen.page.locator(f"th[data-name='{name}']").bounding_box()
                                    for name in ("PPL (dev)", "PPL (dev) paper"))]  # fmt: skip
    assert places[0]["x"] <= places[1]["x"] + 1  # the group heading still spans the remaining columns
    assert places[0]["x"] + places[0]["width"] >= places[2]["x"] + places[2]["width"] - 1
    seen.shot("page-hidden")
    for line in seen.page.locator("table.data tbody tr").all():  # all rows have the same right edge
        last = line.locator("td:visible").last.bounding_box()
        assert last["x"] + last["width"] == pytest.approx(before["x"] + before["width"], abs=1)
    rows.locator("summary").click()  # closes the other menu
    assert not columns.locator("div").is_visible()
    rows.get_by_label("h1", exact=True).uncheck()
    assert names(seen.page) == ["base", "untrained"]
    columns.locator("summary").click()
    columns.get_by_label("PPL (dev) Δ ln", exact=True).check()
    rows.locator("summary").click()
    rows.get_by_label("h1", exact=True).check()
    assert seen.page.locator("th[data-name='PPL (dev) Δ ln']").is_visible() and len(names(seen.page)) == 3
    assert seen.requests == [page.as_uri()] and not seen.complaints


def test_what_is_seen_can_be_copied(visit: Any, page: Path, rows: list[dict[str, Any]]) -> None:
    seen = visit(page.as_uri())
    seen.page.locator("th[data-name='PPL (dev)'] button").click()
    columns, _ = seen.page.locator(".choose").all()
    columns.locator("summary").click()
    columns.get_by_label("n", exact=True).uncheck()
    columns.locator("summary").click()
    seen.page.get_by_role("button", name="Copy", exact=True).click()
    lines = [line.split("\t") for line in pasted(seen.page).strip("\n").split("\n")]
    heads, by_value = lines[0], sorted(rows, key=lambda row: row["ppl"])
    assert "n" not in heads and {len(line) for line in lines} == {len(heads)}
    assert [line[heads.index("row")] for line in lines[1:]] == [row["row"] for row in by_value]
    assert [line[heads.index("PPL (dev)")] for line in lines[1:]] == [
        f"{row['ppl']:.2f} ± {row['ppl_sd']:.2f}" for row in by_value
    ]
    change = next(line for line in lines if "h1" in line)[heads.index("PPL (dev) Δ ln")]
    assert float(change) == pytest.approx(next(row for row in rows if row["row"] == "h1")["ppl_change"], abs=0.0005)
    assert f"Copied 3 rows, {len(heads)} columns." in seen.page.locator(".tools").inner_text()
    seen.page.get_by_role("button", name="Copy as Markdown").click()
    pipes = pasted(seen.page).strip("\n").split("\n")
    assert len(pipes) == 5 and {line.count(" | ") for line in pipes} == {len(heads) - 1}
    assert seen.requests == [page.as_uri()] and not seen.complaints


def test_copies_of_hostile_names_run_nothing(visit: Any, cli: Cli, finished: Path, tmp_path: Path) -> None:
    out, study = tmp_path / "page.html", hostile_study(tmp_path)
    study.write_text(study.read_text().replace('key = "untrained"', 'key = "untrained"\nlabel = "=cmd|calc"'))
    cli("report", study, "--seeds", "2", "--store", finished, "--format", "html", "--out", out)
    seen = visit(out.as_uri())
    seen.page.get_by_role("button", name="Copy", exact=True).click()
    text = pasted(seen.page)
    assert HOSTILE in text and "\t'=cmd|calc\t" in text  # the apostrophe keeps spreadsheets from reading a formula
    seen.page.evaluate(
        "document.body.append(Object.assign(document.createElement('div'), {id: 'doc', contentEditable: true}))"
    )
    seen.page.locator("#doc").focus()
    seen.page.keyboard.press("Control+V")  # a document gets a table
    assert seen.page.locator("#doc table").count() == 1 and HOSTILE in seen.page.locator("#doc").inner_text()
    assert seen.page.locator("img").count() == 0
    assert seen.requests == [out.as_uri()] and not seen.complaints


def test_without_its_script_the_page_has_no_dead_buttons(chromium: Any, page: Path) -> None:
    context = chromium.new_context(java_script_enabled=False)
    plain = context.new_page()
    plain.goto(page.as_uri())
    assert not plain.locator(".tools").is_visible() and plain.locator("button").count() == 0
    plain.locator("table.data .cell").first.hover()
    assert "seed 1" in plain.locator("table.data .cell .tip").first.inner_text()
    context.close()
