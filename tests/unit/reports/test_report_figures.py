"""Figures show any name as text, and the same numbers give the same bytes."""

import itertools
import math
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import numpy as np
import pytest

from experiments.events.event_log import EventWriter
from experiments.store.layout import Store
from reports.figures import curves, effects, style
from reports.render import page as colours
from tests.planned_runs import described, with_spec

pytestmark = pytest.mark.slow  # matplotlib
NASTY = [
    "</script><img src=x onerror=alert(1)>", "--><script>alert(1)</script>", r"$\input{/etc/passwd}$", r"$\frac{1}{$",
    "=cmd|' /C calc'!A0", "한국어 이름", "\u202egnp.exe", "\x00\x1b[31m", "\ud800", "x" * 10_000, "_hidden", "",
]  # fmt: skip


def counts_of(outcome, column):
    rng = np.random.default_rng(outcome.run.seed)
    totals = np.maximum(rng.integers(5, 30, 60)[:, None] - np.arange(4), 0)
    return np.concatenate([totals[:, :1], totals[:, :1], rng.binomial(totals, 0.5), totals], axis=1)


def finished(bench, text, tmp_path):
    """Return a table with `text` for every word that a figure prints, and a store with its curves."""
    results = [(5.0, 25.0), (5.1, 25.5), (5.2, 26.0)]
    bench.row("base", results=results, paper={"bleu": 25.8})
    bench.row("B", {"model.d_k": 16}, group="G", results=[(p + 1, b - 3) for p, b in results], paper={"bleu": 25.1})
    table, store = bench.table(), Store.open(tmp_path / "store")
    renamed = {}
    for number, run in enumerate(bench.runs):
        renamed[run.run_id] = f"{number:016x}"
        events = EventWriter(store.new_attempt(renamed[run.run_id])[1])
        for step in (1, 2, 3):
            events.emit("metrics", step=step, metrics={"perplexity": 9.0 / step})
    rows = tuple(
        replace(
            row, outcomes=tuple(replace(o, run=with_spec(o.run, run_id=renamed[o.run.run_id])) for o in row.outcomes)
        )
        for row in table.rows
    )
    rows = (rows[0], described(rows[1], key=text, group=text[:5], label=text))
    return replace(table, rows=rows, columns=tuple(replace(c, header=text) for c in table.columns)), store


def drawings(table, store):
    return {
        "effects": effects.draw_effects(table),
        "curves": curves.draw_curves(table, store),
        "lengths": curves.draw_lengths(table, counts_of, lambda outcome, set_: None),
    }


@pytest.mark.parametrize("text", NASTY)
def test_names_are_drawn_as_text(bench, tmp_path, text):
    for name, drawing in drawings(*finished(bench, text, tmp_path)).items():
        with drawing as figure:
            svg = style.save(figure, name, "svg").decode()
        assert {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(svg).iter()} <= {
            "svg", "g", "defs", "path", "use", "rect", "clipPath", "style", "metadata", "RDF", "Work", "type", "format",
            "creator", "Agent", "title",
        }  # fmt: skip
        assert not re.search(r"<(?:script|img)|\son\w+=", svg)
        assert all(target.startswith("#") for target in re.findall(r'href="([^"]*)"', svg))
        assert len(svg) < 200_000


def lab(colour):
    """Return the CIE L*a*b* values of a colour and its relative luminance."""
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (red, green, blue))
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883
    x, root, z = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z))
    return (116 * root - 16, 500 * (x - root), 200 * (root - z)), y


@pytest.mark.parametrize("dark", [False, True])
def test_twelve_colours_can_be_told_apart_and_seen(dark):
    shown = [pair[dark] for pair in (colours.INK, *colours.SERIES)]
    for one, other in itertools.combinations(shown, 2):
        assert math.dist(lab(one)[0], lab(other)[0]) > 15, (one, other)  # 2.3 is just to be seen
    page = lab(colours.PAGE[dark])[1]
    for colour in shown:
        low, high = sorted((lab(colour)[1], page))
        assert (high + 0.05) / (low + 0.05) >= 3, colour  # WCAG's bound for graphics


def test_no_two_lines_of_a_panel_share_a_colour():
    found = style.colours([f"C-{number}" for number in range(curves.MOST_LINES)])
    assert len({colour for colour, _ in found.values()}) == curves.MOST_LINES


def test_the_same_numbers_give_the_same_bytes(new_bench, tmp_path):
    for format_ in ("svg", "pdf"):
        one, two = (
            {
                name: style.save(entered, name, format_)
                for name, drawing in drawn.items()
                for entered in [drawing.__enter__()]
            }
            for drawn in (drawings(*finished(new_bench(), "h16", tmp_path / f"{format_}{n}")) for n in (1, 2))
        )
        assert one == two and set(one) == {"effects", "curves", "lengths"}


def test_letters_of_the_first_font_do_not_hang_on_the_others(bench, tmp_path, monkeypatch):
    table, _ = finished(bench, "h16", tmp_path)
    drawn = []
    for others in (style.OTHERS, ()):
        monkeypatch.setattr(style, "OTHERS", others)
        with effects.draw_effects(table) as figure:
            drawn.append(style.save(figure, "effects", "svg"))
    assert drawn[0] == drawn[1]
