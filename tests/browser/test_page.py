"""Tests of the HTML page in a real browser: content, no requests, and its layout on a desktop, a phone and paper."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.system.conftest import TINY, Cli, as_json

from .conftest import PHONE, SHOTS

pytestmark = pytest.mark.browser
HOSTILE = (
    "</script></style></title><img src=http://127.0.0.1:9/x onerror=alert(1)><script>alert(2)</script>"
    "![p](http://127.0.0.1:9/p)**"
)


@pytest.fixture(scope="module")
def page(cli: Cli, tiny: Path, finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("page") / "table.html"
    cli("report", tiny, "--seeds", "2", "--store", finished, "--format", "html", "--out", out)
    return out


@pytest.fixture(scope="module")
def rows(cli: Cli, tiny: Path, finished: Path) -> list[dict[str, Any]]:
    return as_json(cli("report", tiny, "--seeds", "2", "--store", finished, "--json"))


def test_it_says_what_the_table_says(visit: Any, page: Path, rows: list[dict[str, Any]]) -> None:
    seen = visit(page.as_uri())
    lines = seen.page.locator("table.data tbody tr").all()
    assert len(lines) == len(rows) == 3
    for line, row in zip(lines, rows, strict=True):
        text = " ".join(line.inner_text().split())
        assert row["row"] in text
        assert f"{row['ppl']:.2f} ± {row['ppl_sd']:.2f}" in text
    assert seen.page.title() == seen.page.locator("h1").inner_text() == "A table of width 8"
    headings = seen.page.locator("h2").all_inner_texts()
    assert headings == ["Figures", "Experimental setup", "Reproducibility checklist", "Runs"]
    drawn = [svg.bounding_box() for svg in seen.page.locator("figure .wide svg").all()]
    assert len(drawn) == 3 and all(box["width"] > 1000 and box["height"] > 100 for box in drawn)
    assert not seen.page.locator("figure .narrow").first.is_visible()
    subtitle = seen.page.locator(".summary").inner_text()
    assert re.fullmatch(
        r"tiny · profile exact · corpus builtin \(\w{8}\) · \d{4}-\d\d-\d\d · 3 rows, 6 of 6 runs finished", subtitle
    )
    seen.page.get_by_text("Every run of the table").click()
    text = seen.page.inner_text("body")
    assert all(run_id in text for row in rows for run_id in row["run_ids"])
    seen.shot("page-desk", whole=True)
    assert seen.requests == [page.as_uri()] and not seen.complaints


def test_a_cell_tells_its_runs_when_pointed_at(visit: Any, page: Path, rows: list[dict[str, Any]]) -> None:
    seen = visit(page.as_uri())
    cell = seen.page.locator("table.data tbody tr").nth(1).locator(".cell").first
    tip = cell.locator(".tip")
    assert not tip.is_visible()
    cell.hover()
    assert tip.is_visible()
    assert all(f"run {run_id}" in tip.inner_text() for run_id in rows[1]["run_ids"])
    seen.shot("page-detail")
    seen.page.mouse.move(0, 0)
    assert not tip.is_visible()
    cell.focus()  # as the keyboard does
    assert tip.is_visible()


def test_on_a_phone_the_table_scrolls_and_the_page_does_not(visit: Any, page: Path) -> None:
    seen = visit(page.as_uri(), PHONE)
    wide = seen.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide[0] <= wide[1] == PHONE["width"]
    inner, outer = seen.page.locator(".scroll").first.evaluate("e => [e.scrollWidth, e.clientWidth]")
    assert inner > outer
    assert float(seen.page.locator("p").first.evaluate("e => parseFloat(getComputedStyle(e).fontSize)")) >= 13
    assert seen.page.get_by_text("The table scrolls sideways.").is_visible()
    seen.shot("page-phone", whole=True)
    # the metric follows the row's name, before the settings
    for line in seen.page.locator("table.data tbody tr").all():
        name, metric = line.locator("th").bounding_box(), line.locator("td.cell").first.bounding_box()
        assert metric["x"] == pytest.approx(name["x"] + name["width"], abs=1)
        assert metric["x"] + metric["width"] <= PHONE["width"]
        assert line.locator("td.setting").first.bounding_box()["x"] > metric["x"]
    for head, cell in zip(seen.page.locator("th.setting").all(), seen.page.locator("td.setting").all(), strict=False):
        assert head.bounding_box()["x"] == cell.bounding_box()["x"]  # each heading is still above its cells
    cell = seen.page.locator(".cell").nth(2)
    cell.tap()
    box = cell.locator(".tip").bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= PHONE["width"]
    seen.page.locator(".scroll").first.evaluate("e => e.scrollLeft = 9999")
    name = seen.page.locator("table.data tbody th").first.bounding_box()
    assert name["x"] < 20  # the row's name stays visible
    seen.shot("page-phone-detail")
    assert seen.requests == [page.as_uri()] and not seen.complaints


def test_on_paper_nothing_is_cut_off(visit: Any, page: Path) -> None:
    seen = visit(page.as_uri())
    seen.page.set_viewport_size({"width": 718, "height": 1000})  # A4 minus margins of one centimetre, in CSS pixels
    seen.page.emulate_media(media="print")
    assert seen.page.locator("table.runs").is_visible()  # collapsed on the screen
    inner, outer = seen.page.locator(".scroll").first.evaluate("e => [e.scrollWidth, e.clientWidth]")
    assert inner <= outer
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= 718
    SHOTS.mkdir(parents=True, exist_ok=True)
    printed = seen.page.pdf(path=SHOTS / "page.pdf", format="A4")
    assert printed.startswith(b"%PDF")
    assert seen.requests == [page.as_uri()] and not seen.complaints


def test_in_the_dark_it_is_legible(visit: Any, page: Path) -> None:
    seen = visit(page.as_uri())
    seen.page.emulate_media(color_scheme="dark")
    for what in ("body", ".warning", ".notes li", "th"):
        if seen.page.locator(what).count():
            assert contrast(seen.page.locator(what).first) >= 4.5, what  # WCAG's minimum contrast for text
    seen.shot("page-dark")


def contrast(element: Any) -> float:
    """Return the contrast between an element's colour and the nearest background behind it."""
    colours = element.evaluate(
        """e => { let b = e; while (b && getComputedStyle(b).backgroundColor == 'rgba(0, 0, 0, 0)') b = b.parentElement;
        return [getComputedStyle(e).color, b ? getComputedStyle(b).backgroundColor : 'rgb(255, 255, 255)']; }"""
    )
    light, dark = sorted((luminance(colour) for colour in colours), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [float(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def hostile_study(folder: Path) -> Path:
    """Return the tiny table and its runs, with texts that try to inject HTML and scripts."""
    quoted = json.dumps(HOSTILE)
    text = TINY.replace('"tiny"', '"hostile"').replace('"A table of width 8"', quoted)
    text = text.replace('key = "h1"\n', f'key = "h1"\nlabel = {quoted}\nnote = {quoted}\n')
    path = folder / "hostile.toml"
    path.write_text(f"notes = [{quoted}]\n{text}", encoding="utf-8")
    return path


def test_names_run_nothing_and_fetch_nothing(visit: Any, cli: Cli, finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    cli("report", hostile_study(tmp_path), "--seeds", "2", "--store", finished, "--format", "html", "--out", out)
    seen = visit(out.as_uri())
    assert seen.page.title() == seen.page.locator("h1").inner_text() == HOSTILE
    assert HOSTILE in seen.page.locator("table.data").inner_text()
    assert seen.page.locator("img").count() == 0
    seen.shot("page-hostile")
    assert seen.requests == [out.as_uri()] and not seen.complaints
