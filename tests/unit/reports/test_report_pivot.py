"""Tables whose groups are printed as columns."""

import json
from dataclasses import replace

import pytest

from ablations.study.study import Study
from reports.audit.verify import verify
from reports.render.cells import Cell, Grid, Line
from reports.render.formats import RENDERERS
from reports.results.table import Table
from reports.spec.choices import Choices
from tests.unit.reports.conftest import Bench, lay_out

PIVOT = {"en-de": "EN-DE", "en-fr": "EN-FR"}
CITED = [
    {"label": "GNMT", "group": "en-de", "values": {"bleu": 24.6, "flops": 2.3e19}},
    {"label": "GNMT", "group": "en-fr", "values": {"bleu": 39.92, "flops": 1.4e20}},
    {"label": "ByteNet", "group": "en-de", "values": {"bleu": 23.75}},
]


def pairs(bench: Bench, pivot: bool = True, **second: object) -> Bench:
    """Make two systems for two language pairs and one for one pair. The pairs have different test sentences."""
    bench.study |= {
        "cited": CITED,
        "columns": {"model.d_model": "d_model", "model.dropout": "P_drop"},
    }
    bench.study |= {"pivot": PIVOT} if pivot else {}
    bench.paper_keys = ("perplexity", "bleu", "params", "flops")
    german, french = {"group": "en-de"}, {"group": "en-fr", "inputs": {"text": "french"}, "corpus": "f" * 16}
    bench.row("base-de", label="base", results=[(5.0, 27.0)], paper={"bleu": 27.3, "flops": 3.3e18}, **german)
    bench.row("big-de", {"model.dropout": 0.3, "model.d_model": 1024}, label="big", results=[(5.0, 28.5)],
              paper={"bleu": 28.4, "flops": 2.3e19}, **german)  # fmt: skip
    bench.row("conv-de", {"model.d_k": 8}, label="conv", results=[(5.0, 25.0)], **german)
    bench.row("base-fr", {"data.target": "fr"}, label="base", results=[(5.0, 38.0)],
              paper={"bleu": 38.1, "flops": 3.3e18}, **french)  # fmt: skip
    return bench.row("big-fr", {"data.target": "fr", "model.d_model": 1024}, label="big",
                     **({"results": [(5.0, 41.0)]} | second), paper={"bleu": 41.8, "flops": 2.3e19}, **french)  # type: ignore[arg-type]  # fmt: skip


def cells(grid: Grid, key: str, group: str = "") -> list[str]:
    place = next(n for n, head in enumerate(grid.heads) if head.key == key and head.group == group)
    return [line.cells[place].text for line in grid.lines]


def test_one_line_a_label_and_its_groups_as_columns(bench: Bench) -> None:
    grid = lay_out(pairs(bench).table())
    assert [line.name for line in grid.lines] == [
        "cited", "cited", "base-de, base-fr", "big-de, big-fr", "conv-de",
    ]  # fmt: skip
    assert [line.opens_group for line in grid.lines] == [True, False, True, False, False]
    assert cells(grid, "bleu.ours", "en-de") == ["", "", "27.0", "28.5", "25.0"]
    assert cells(grid, "bleu.ours", "en-fr") == ["", "", "38.0", "41.0", "–"]
    assert cells(grid, "bleu.paper", "en-de") == ["24.6", "23.75", "27.3", "28.4", ""]
    assert cells(grid, "bleu.paper", "en-fr") == ["39.92", "–", "38.1", "41.8", ""]
    heads = [head.alone for head in grid.heads if head.metric == "bleu"]
    assert heads[:2] == ["BLEU (dev) EN-DE", "Δ EN-DE"] and "BLEU (dev) EN-FR" in heads


def test_changes_bold_and_warnings_are_within_a_column_of_the_pivot(bench: Bench) -> None:
    table = pairs(bench).table()
    grid = lay_out(table)
    assert cells(grid, "bleu.change", "en-de") == ["", "", "", "+1.5", "−2.0"]
    assert cells(grid, "bleu.change", "en-fr") == ["", "", "", "+3.0", ""]
    assert cells(grid, "bleu.paper_change", "en-fr") == ["", "", "", "+3.7", ""]
    assert not any(row.measures["bleu"].best for row in table.rows)  # one seed each
    assert not table.warnings  # other corpora and sentences are what the columns are about
    assert any(note.startswith("Δ: change from base-de (EN-DE), base-fr (EN-FR)") for note, *_ in table.footnotes)
    assert any("corpora" in text for text in pairs(Bench(), pivot=False).table().warnings)


def test_a_number_equal_in_all_columns_is_printed_once_across_them(bench: Bench) -> None:
    """As the paper's cost of its own models; a setting varies with its own column's base."""
    grid = lay_out(pairs(bench).table())
    assert cells(grid, "flops.paper", "en-de") == ["2.3e19", "", "3.3e18", "2.3e19", ""]
    assert cells(grid, "flops.paper", "en-fr") == ["1.4e20", "–", "", "", ""]
    first = next(n for n, head in enumerate(grid.heads) if head.key == "flops.paper")
    assert [line.cells[first].span for line in grid.lines] == [1, 1, 2, 2, 1]
    assert [line.cells[first + 1].span for line in grid.lines] == [1, 1, 0, 0, 1]
    assert cells(grid, "model.d_model") == ["", "", "512", "1024", ""]
    assert cells(grid, "model.dropout", "en-de") == ["", "", "0.1", "0.3", ""]
    assert cells(grid, "model.dropout", "en-fr") == ["", "", "0.1", "", ""]  # blank: as in this column's base
    assert "data.target" not in {head.key for head in grid.heads}


def test_every_number_of_the_rows_is_on_their_line(bench: Bench) -> None:
    """The pivot moves the cells of the plain table and invents none."""
    plain, pivoted = lay_out(pairs(bench, pivot=False).table()), lay_out(pairs(Bench()).table())

    def numbers(grid: Grid) -> dict[tuple[str, str, str], str]:
        return {
            (line.row.label, head.group or line.row.group, head.key): cell.text
            for line in grid.lines
            for head, cell in zip(grid.heads, line.cells, strict=True)
            if head.metric in ("ppl", "bleu") and "change" not in head.role and cell.text not in ("", "–")
        }

    assert numbers(plain) == numbers(pivoted) and len(numbers(plain)) > 10


def test_gaps_and_staleness_keep_their_marks(bench: Bench) -> None:
    grid = lay_out(pairs(bench, results=[None], states=["failed"]).table())
    assert cells(grid, "bleu.ours", "en-fr") == ["", "", "38.0", "– (failed)", "–"]
    assert cells(grid, "n", "en-fr") == ["", "", "", "0/1", ""]


@pytest.mark.parametrize("format_", ["markdown", "latex", "html", "csv", "json"])
def test_a_pivoted_file_is_verified_cell_by_cell(bench: Bench, format_: str) -> None:
    table = pairs(bench).table()
    text = RENDERERS[format_](table)
    assert verify(text, table, format_).same
    wrong = text.replace("28.5", "28.6")
    assert wrong != text and any("big-de" in line for line in verify(wrong, table, format_).changed)


def test_json_and_csv_keep_one_record_per_row(bench: Bench) -> None:
    table = pairs(bench).table()
    records = json.loads(RENDERERS["json"](table))
    assert [record["row"] for record in records] == ["base-de", "big-de", "conv-de", "base-fr", "big-fr"]
    assert [record["bleu_change"] for record in records] == [None, 1.5, -2.0, None, 3.0]


def test_latex_and_html_span_columns_with_heads_and_single_numbers(bench: Bench) -> None:
    table = pairs(bench).table()
    latex, html = RENDERERS["latex"](replace(table, chosen=Choices(plain=False))), RENDERERS["html"](table)
    assert r"\multicolumn{4}{c}{BLEU (dev) EN-DE}" in latex
    assert r"\multicolumn{2}{c}{3.3e18}" in latex and '<td colspan="2">3.3e18</td>' in html
    assert "change from base-fr: +3.000" in html and "change from base-de: +1.500" in html


def test_the_tests_are_of_each_column_by_itself(bench: Bench) -> None:
    """Dunnett's family is the rows of one group, with their own base."""
    three = {"results": [(5.0, 41.0), (5.0, 41.1), (5.0, 41.2)]}
    bench.study["pivot"] = PIVOT
    for pair, low in (("de", 25.0), ("fr", 38.0)):
        of = {"group": f"en-{pair}", "inputs": {"text": pair}}
        for key, up in (("base", 0.0), ("near", 0.05), ("far", 3.0)):
            values = [(5.0, low + up + offset) for offset in (0.0, 0.1, 0.2)]
            bench.row(f"{key}-{pair}", {"model.d_k": 8 + len(key)}, label=key, **(three | {"results": values}), **of)  # type: ignore[arg-type]
    table = bench.table("seeds")
    marked = {row.key: bool(test and test.marked) for row in table.rows for test in [row.measures["bleu"].test]}
    assert marked == {"base-de": False, "near-de": False, "far-de": True,
                      "base-fr": False, "near-fr": False, "far-fr": True}  # fmt: skip
    assert table.test == "seeds" and sum(note.startswith("*: p < .05 against") for note, *_ in table.test_notes) == 1
    assert {note.partition(":")[0] for note, *_ in table.test_notes[1:]} == {
        "base-de and its group",
        "base-fr and its group",
    }


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"key": "x", "group": "en-de"}, 'the row "x" needs a label'),
        ({"key": "x", "label": "x", "group": "en-ed"}, "no column. Nearest groups of pivot: en-de"),
        ({"key": "x", "label": "big", "group": "en-de"}, 'the rows "big-de" and "x" have the same label'),
    ],
)  # fmt: skip
def test_rows_without_a_place_of_their_own_are_refused(bench: Bench, row: dict[str, str], says: str) -> None:
    pairs(bench)
    rows = [*bench.study["variation"], row]
    with pytest.raises(ValueError, match="pivot") as refused:
        Study.model_validate({**bench.study, "variation": rows})
    assert says in str(refused.value)


def test_the_other_pair_alone_prints(bench: Bench) -> None:
    """--rows en-fr: the first pair's rows are not planned; cited results stay."""
    bench.study |= {"cited": CITED, "pivot": PIVOT}
    bench.row("base-de", label="base", group="en-de", selected=False)
    bench.row("base-fr", {"data.target": "fr"}, label="base", group="en-fr", results=[(5.0, 38.0)])
    table: Table = bench.row("big-fr", {"data.target": "fr", "model.d_k": 8}, label="big", group="en-fr").table()
    grid = lay_out(table)
    assert cells(grid, "bleu.ours", "en-fr") == ["", "", "38.0", "25.0"]
    assert cells(grid, "bleu.change", "en-fr") == ["", "", "", "−13.0"]
    assert not any(head.role == "ours" and head.group == "en-de" for head in grid.heads)
    assert isinstance(grid.lines[0], Line) and grid.lines[0].cells[0] == Cell("cited")
