"""Tests of the computing rates of devices, and of other systems' results among the rows."""

from dataclasses import replace

import pytest

from ablations.planning.resolve import COSTS as PUBLISHED_COSTS
from reports.audit.verify import verify
from reports.render.formats import RENDERERS
from reports.render.markdown import render
from reports.results.table import Table
from reports.spec.choices import Choices
from reports.table.build import record
from reports.table.cost import COSTS, SUSTAINED, shown, sustained
from tests.unit.reports.conftest import Bench, lay_out


def test_the_papers_own_figures_come_out_of_its_rates() -> None:
    """3.3e18 for base: 12 hours on 8 P100."""
    assert sustained("Tesla P100-SXM2-16GB", {}) == SUSTAINED["P100"] == 9.5e12
    assert 12 * 3600 * 8 * SUSTAINED["P100"] == pytest.approx(3.3e18, rel=0.01)
    assert sustained("NVIDIA P100", {"P100": 1e12}) == 1e12  # the study's rates come before
    assert sustained("another", {}) is None


def test_no_published_cost_no_columns(bench: Bench) -> None:
    table = bench.row("base", paper={"bleu": 25.8}).table()
    assert "FLOPs" not in render(table) and "by time" not in render(table)
    assert "flops_counted" not in record(table.rows[0], table)


def cited(bench: Bench) -> Table:
    bench.study["cited"] = [
        {"label": "GNMT | RL", "group": "en-de", "values": {"bleu": 24.62, "flops": 2.3e19}},
        {"label": "Other", "values": {"speed": 3.0}},
        {"label": "Later", "group": "theirs", "values": {"bleu": 31.0}, "note": "an ensemble"},
        {"label": "MoE", "group": "en-de", "values": {"bleu": 26.0}},
    ]
    bench.row("base", paper={"bleu": 25.8}, group="en-de")
    return bench.row("big", {"model.d_k": 8}, paper={"bleu": 26.4}, group="en-de").table()


def test_cited_results_are_rows_of_their_group_and_of_no_reckoning(bench: Bench) -> None:
    table = cited(bench)
    grid = lay_out(table)
    assert [(line.row.key, line.row.label, line.opens_group) for line in grid.lines] == [
        ("cited", "GNMT | RL", True), ("cited", "MoE", False), ("base", "", False), ("big", "", False),
        ("cited", "Later", True),
    ]  # fmt: skip
    paper = [head.key for head in grid.heads].index("bleu.paper")
    assert [line.cells[paper].text for line in grid.lines] == ["24.62", "26.0", "25.8", "26.4", "31.0"]
    assert all(not cell.text for cell in grid.lines[0].cells[4:paper])
    assert [row.key for row in table.rows] == ["base", "big"] and "Other" not in render(table)
    notes = [note for note, *_ in table.footnotes if "cited" in note or "ensemble" in note]
    assert len(notes) == 2 and notes[1] == "Later: an ensemble"


@pytest.mark.parametrize("format_", ["markdown", "latex", "html", "csv", "json"])
def test_a_file_with_cited_rows_is_verified_cell_by_cell(bench: Bench, format_: str) -> None:
    table = cited(bench)
    text = RENDERERS[format_](table)
    assert ("GNMT" in text) == (format_ not in ("csv", "json"))
    assert verify(text, table, format_).same
    once = 1 if format_ == "latex" else -1  # its comments have the number too
    changed = verify(text.replace("24.62", "24.7", once), table, format_).changed
    assert len(changed) == (1 if "24.62" in text else 0) and all("cited, " in line for line in changed)


def test_published_changes_over_other_sentences_are_not_printed(bench: Bench) -> None:
    bench.row("base", paper={"bleu": 27.3}).row("big", {"model.d_k": 8}, paper={"bleu": 28.4})
    bench.row("french", {"model.d_k": 9}, paper={"bleu": 38.1}, inputs={"text": "another"})
    changes = [row.measures["bleu"].reported_change for row in bench.table().rows]
    assert changes == [None, pytest.approx(1.1), None]


def test_every_cost_that_may_be_published_has_a_column():
    assert set(PUBLISHED_COSTS) <= {cost.key for cost in COSTS}


def test_what_runs_measured_before_training_is_printed_where_the_study_asks(bench: Bench) -> None:
    """The mean over seeds; blank where a seed has none: an older record, or a network without such attention."""
    bench.study["columns"] = {"start.entropy_cross": "entropy", "start.gradient_norm": "norm"}
    two = [(5.0, 25.0), (5.0, 25.0)]
    bench.row("base", results=two, record={"start": {"entropy_cross": 0.123456, "gradient_norm": 2.5}})
    bench.row("lstm", {"model.d_k": 8}, results=two, record={"start": {"gradient_norm": 3.0}})
    table = bench.row("older", {"model.d_k": 9}, results=two).table()
    shown = {head.top: number for number, head in enumerate(lay_out(table).heads)}
    lines = [[line.cells[shown[head]].text for head in ("entropy", "norm")] for line in lay_out(table).lines]
    assert lines == [["0.123", "2.50"], ["", "3.00"], ["", ""]]
    assert record(table.rows[0], table)["start_entropy_cross"] == pytest.approx(0.123456)
    assert record(table.rows[1], table)["start_entropy_cross"] is None
    table = replace(table, chosen=Choices(notes="full"))
    text = render(table)
    assert text.count("- Entropy: ") == text.count("- Gradient norm: ") == 1
    assert verify(text, table, "markdown").same and not verify(text.replace("0.123", "0.124"), table, "markdown").same


def test_what_decoding_took_is_a_column_where_it_is_named(bench: Bench) -> None:
    """Seconds of processor time over all sets' sentences, or of the clock on a GPU; the highest peak of memory."""
    part = {"wall_s": 90.0, "cpu_s": 20.0, "facts": {"peak_memory_bytes": 400_000_000}}
    parts = {"parts": {"decode": part}, "sentences": 100}
    bench.row("base", scored=parts, sets=("dev", "test"))
    bench.row("cuda", {"model.d_k": 8}, scored=parts | {"device_kind": "cuda"})
    bench.row("before", {"model.d_k": 16})
    table = bench.table()
    seconds, memory = (next(cost for cost in COSTS if cost.key == key) for key in ("decode_s", "decode_memory"))
    assert [seconds.value(row, table) for row in table.rows] == [0.2, 0.9, None]
    assert [memory.value(row, table) for row in table.rows] == [4e8, 4e8, None]
    assert {seconds, memory} <= set(shown(table, ["decode_s", "decode_memory"])) - set(shown(table))


def test_the_tokens_that_a_second_of_training_takes_are_a_column_where_it_is_named(bench: Bench) -> None:
    """Per second of processor time, or of the clock on a GPU; none of a training whose seconds are not all known."""
    facts = {"target_tokens": 6000, "seconds": 40.0, "steps_s": 30.0, "steps_cpu_s": 12.0, "device_kind": "cpu"}
    bench.row("base", record=facts)
    bench.row("cuda", {"model.d_k": 8}, record=facts | {"device_kind": "cuda"})
    bench.row("resumed", {"model.d_k": 16}, record=facts | {"resumed_from": 5})
    bench.row("before", {"model.d_k": 32}, record={"target_tokens": 6000, "device_kind": "cpu"})
    table = bench.table()
    tokens = next(cost for cost in COSTS if cost.key == "tokens_s")
    assert [tokens.value(row, table) for row in table.rows] == [500, 200, None, None]
    assert tokens in shown(table, ["tokens_s"]) and tokens not in shown(table)
