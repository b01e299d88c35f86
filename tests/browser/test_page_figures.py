"""Tests of the HTML page's figures in a real browser: width, labels, and colours in dark mode."""

from pathlib import Path
from typing import Any

import pytest

from reports.render.page import PAGE, VARIABLES
from tests.small_tables import OWN, finish
from tests.system.conftest import Cli

from .test_page import luminance

pytestmark = pytest.mark.browser
SMALL = {"width": 360, "height": 780}
KEYS = [f"{group}-{number}" for group, rows in (("A", 4), ("B", 2), ("C", 11), ("D", 2)) for number in range(rows)]
# Returns the bounding boxes of visible texts. matplotlib writes each text as an SVG group.
TEXTS = """drawing => [...drawing.querySelectorAll('g.text')].map(e => e.getBoundingClientRect()).filter(b => b.width)
    .map(b => [b.left, b.top, b.right, b.bottom])"""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory, cli: Cli) -> Path:
    """Return the page of a real table of twenty rows, eleven of them in one group."""
    home = tmp_path_factory.mktemp("many")
    (home / "many_rows.py").write_text(OWN.replace("WHERE", "nowhere"))
    rows = [f'[[variation]]\nkey = "{key}-of-twenty"\ngroup = "{key[0]}"\nset = {{size = {2 + (i + 1) / 3:.2f}}}\n'
            for i, key in enumerate(KEYS)]  # fmt: skip
    study = home / "many.toml"
    study.write_text(
        'name = "many"\ntitle = "Twenty rows"\ntask = "many_rows:TASK"\n[[variation]]\nkey = "base"\n' + "".join(rows)
    )
    finish(study, home / "store")
    cli("report", study, "--store", home / "store", "--format", "html", "--out", home / "many.html")
    return home / "many.html"


@pytest.fixture(scope="module")
def page(cli: Cli, tiny: Path, finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("page") / "table.html"
    cli("report", tiny, "--seeds", "2", "--store", finished, "--format", "html", "--out", out)
    return out


@pytest.mark.parametrize("width", [360, 740, 1400])
def test_no_label_covers_another_and_none_is_cut_off(visit: Any, page: Path, many: Path, width: int) -> None:
    for file in (page, many):
        seen = visit(file.as_uri(), {"width": width, "height": 900})
        drawings = [svg for svg in seen.page.locator("figure svg").all() if svg.is_visible()]
        assert len(drawings) >= 2
        for drawing in drawings:
            frame, texts = drawing.bounding_box(), drawing.evaluate(TEXTS)
            assert len(texts) > 5
            for i, one in enumerate(texts):
                assert one[0] >= frame["x"] - 1 and one[2] <= frame["x"] + frame["width"] + 1
                assert not [other for other in texts[:i] if overlap(one, other)], (file.name, width)
        seen.shot(f"{file.stem}-{width}", whole=True)


def overlap(one: list[float], other: list[float]) -> bool:
    """Return whether two boxes overlap by more than a pixel in both directions."""
    return all(min(one[i + 2], other[i + 2]) - max(one[i], other[i]) > 1 for i in (0, 1))


@pytest.mark.parametrize("width", [360, 700, 1000, 1400])
def test_figures_have_the_pages_width_and_legible_letters(visit: Any, many: Path, width: int) -> None:
    seen = visit(many.as_uri(), {"width": width, "height": 900})
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
    section = seen.page.locator("section", has_text="Figures").first.bounding_box()
    for drawing in seen.page.locator("figure svg").all():
        if drawing.is_visible():
            assert drawing.bounding_box()["width"] >= min(section["width"], 640) - 1
            heights = sorted(b[3] - b[1] for b in drawing.evaluate(TEXTS))
            assert heights[len(heights) // 2] >= 6  # the median height of the letters, in pixels


def test_a_figure_has_its_title_on_top_and_the_better_side_below(visit: Any, page: Path) -> None:
    seen = visit(page.as_uri())
    for figure in seen.page.locator("figure").all():
        title, drawing = figure.locator("figcaption").bounding_box(), figure.locator(".wide svg").bounding_box()
        assert title["y"] + title["height"] <= drawing["y"]
    source = page.read_text(encoding="utf-8")
    effects = source.partition('id="figure-effects"')[2].partition("</figure>")[0]
    assert "<!-- ← better   Δ ln from base -->" in effects and "<!-- Δ from base   better → -->" in effects


def test_lines_of_a_panel_have_colours_of_their_own(visit: Any, many: Path) -> None:
    seen = visit(many.as_uri())
    legends = seen.page.locator("#figure-curves .wide g.legend").all()
    assert len(legends) == 4
    colours = [legend.evaluate("e => [...e.querySelectorAll('path')].map(p => getComputedStyle(p).stroke)")
               for legend in legends]  # fmt: skip
    lines = [[colour for colour in found if colour != "none"] for found in colours]
    assert max(map(len, lines)) == 12  # eleven rows of the group and base
    assert all(len(set(found)) == len(found) for found in lines)


def test_in_the_dark_figures_are_dark(visit: Any, page: Path) -> None:
    seen = visit(page.as_uri())
    background = "e => getComputedStyle(e.querySelector('g.patch path')).fill"
    ink = "e => getComputedStyle(e.querySelector('g.text use')).fill"
    for scheme, dark in (("light", False), ("dark", True)):
        seen.page.emulate_media(color_scheme=scheme)
        behind = luminance(rgb(PAGE[dark]))
        for drawing in seen.page.locator("figure .wide svg").all():
            assert luminance(drawing.evaluate(background)) == pytest.approx(behind, abs=0.01)
            light, low = sorted((luminance(drawing.evaluate(ink)), behind), reverse=True)
            assert (light + 0.05) / (low + 0.05) > 7
            strokes = "e => [...e.querySelectorAll('use')].map(u => getComputedStyle(u).stroke)"
            assert set(drawing.evaluate(strokes)) <= {rgb(pair[dark]) for pair in VARIABLES.values()} | {"none"}
    seen.shot("page-dark-figures", whole=True)


def rgb(colour: str) -> str:
    return f"rgb({', '.join(str(int(colour[at : at + 2], 16)) for at in (1, 3, 5))})"
