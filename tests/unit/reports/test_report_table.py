"""Tests of the table's rules: order, base, blanks, means, changes, gaps and comparisons."""

import math
import statistics
from dataclasses import replace

import pytest

from ablations.cli.ui import _heads
from reports.render.formats import render
from reports.render.printed import printed
from reports.results.table import missing_cells
from reports.spec.choices import Choices
from reports.spec.table_spec import Note
from reports.table.build import record
from tests.unit.reports.conftest import lay_out


def column(table, key):
    return {row.key: row.measures[key] for row in table.rows}


def test_rows_keep_the_studys_order_and_show_what_the_study_names(bench):
    bench.study["columns"] = {"model.d_ff": "d_ff", "model.num_heads": "h", "model.dropout": "P_drop"}
    bench.row("base").row("A-h4", {"model.num_heads": 4}, group="A").row("C-small", {"model.d_ff": 1024}, group="C")
    table = bench.table()
    assert [row.key for row in table.rows] == ["base", "A-h4", "C-small"]
    assert table.settings == bench.study["columns"]  # in the study's order, P_drop too, which is alike in all rows
    assert [dict(row.settings) for row in table.rows] == [
        {"model.d_ff": 2048, "model.num_heads": 8, "model.dropout": 0.1},
        {"model.num_heads": 4},
        {"model.d_ff": 1024},
    ]


def test_without_names_what_varies_is_printed(bench):
    bench.row("base").row("A", {"model.num_heads": 4}).row("B", {"model.norm": "pre"})
    assert bench.table().settings == {"model.num_heads": "num_heads", "model.norm": "norm"}


def test_a_setting_that_a_row_does_not_read_is_a_dash_in_every_format(bench):
    bench.row("base", {"data.units": "byte", "training.schedule": "constant"})
    bench.row("rotary", {"data.units": "byte", "training.schedule": "constant", "model.positions": "rotary"})
    half = {"model.positions": "rotary", "model.rotary_share": 0.5}
    bench.row("half", {"data.units": "byte", "training.schedule": "constant", **half}, label="half of each head")
    bench.row("pieces", {"data.vocab_size": 500, "training.schedule": "warmup_stable_decay"})
    bench.row("early", {"training.schedule": "warmup_stable_decay", "training.stable_ratio": 0.5})
    table = bench.table()
    grid = lay_out(table)
    cells = {
        head.top: [line.cells[i].text for line in grid.lines]
        for i, head in enumerate(grid.heads)
        if head.kind == "setting"
    }
    assert cells == {
        "units": ["byte", "", "", "bpe", "bpe"],
        "vocab_size": ["–", "–", "", "500", "37000"],  # 37,000 is a default that base does not read
        "schedule": ["constant", "", "", "warmup_stable_decay", "warmup_stable_decay"],
        "positions": ["sinusoidal", "rotary", "rotary", "", ""],
        "stable_ratio": ["–", "–", "", "0.9", "0.5"],
    }
    asked = replace(table, chosen=Choices(columns=("rotary_share",)))
    assert [line.cells[-1].text for line in printed(asked, "markdown").grid.lines] == ["–", "1.0", "0.5", "–", "–"]
    assert {name for row in table.rows for name in record(row, table)["settings"]} >= {"model.rotary_share"}
    assert set(record(table.rows[0], table)["settings"]) == {"data.units", "training.schedule", "model.positions"}


def test_a_label_stands_for_settings_that_the_study_gives_no_column(bench):
    bench.study["columns"] = {"model.num_heads": "h"}
    bench.row("base").row("E", {"model.positions": "learned"}, label="learned positions")
    bench.row("F", {"model.num_heads": 4}, label="fewer heads")
    assert bench.table().settings == {"model.num_heads": "h"}


def test_a_note_names_a_change_that_has_neither_column_nor_label(bench):
    bench.study["columns"] = {"model.num_heads": "h"}
    bench.row("base").row("F", {"model.num_heads": 4}).row("G", {"model.norm": "pre"}, group="g")
    table = bench.table()
    assert table.settings == {"model.num_heads": "h"}
    assert Note("Settings without a column: G: model.norm pre.") in table.footnotes
    assert r"g & \multicolumn{1}{c}{G} & " in render(table, "latex").replace("(g)", "g")


def test_mean_and_sample_deviation_over_seeds(bench):
    bench.row("base", results=[(5.0, 24.0), (5.2, 25.0), (5.1, 27.0)])
    measure = column(bench.table(), "bleu")["base"]
    assert measure.mean == pytest.approx((24 + 25 + 27) / 3)
    assert measure.sd == pytest.approx(statistics.stdev([24, 25, 27]))
    assert column(bench.table(), "ppl")["base"].values == (5.0, 5.2, 5.1)


def test_one_seed_has_no_deviation(bench):
    assert column(bench.row("base").table(), "bleu")["base"].sd is None


def test_a_missing_seed_leaves_no_mean(bench):
    bench.row("base").row("B", {"model.d_k": 16}, results=[(5.0, 24.0), None, (5.1, 27.0)])
    table = bench.table()
    measure = column(table, "bleu")["B"]
    assert (measure.mean, measure.sd, measure.change, measure.missing) == (None, None, None, True)
    assert missing_cells(table) == 2
    found = record(table.rows[1], table)
    assert (found["ppl"], found["bleu"], found["n"], found["seeds"]) == (None, None, 2, 3)
    assert found["run_ids"] == ["B#1", "B#2", "B#3"]


def test_changes_are_from_base_and_logarithmic_for_perplexity(bench):
    bench.row("base", results=[(5.0, 25.0), (6.0, 26.0)], paper={"perplexity": 4.92, "bleu": 25.8})
    bench.row("B", {"model.d_k": 16}, results=[(5.5, 24.0), (6.6, 25.5)], paper={"perplexity": 5.16, "bleu": 25.1})
    table = bench.table()
    ppl, bleu = column(table, "ppl")["B"], column(table, "bleu")["B"]
    assert bleu.change == pytest.approx(-0.75)
    assert ppl.change == pytest.approx(math.log(1.1))  # every seed is 1.1 times base's
    assert ppl.reported_change == pytest.approx(math.log(5.16 / 4.92))
    assert bleu.reported_change == pytest.approx(-0.7)
    assert column(table, "ppl")["base"].change is None


def test_without_the_base_row_there_is_no_change(bench):
    bench.row("base", selected=False, paper={"bleu": 25.8})
    bench.row("A-h4", {"model.num_heads": 4}, paper={"bleu": 25.5}).row("A-h1", {"model.num_heads": 1})
    table = bench.table()
    assert table.base is None
    assert all(m.change is None and m.reported_change is None for m in column(table, "bleu").values())
    assert [dict(row.settings) for row in table.rows] == [{"model.num_heads": 4}, {"model.num_heads": 1}]


def test_the_first_row_is_base_where_no_row_is_base_itself(bench):
    bench.row("h4", {"model.num_heads": 4}, results=[(5.0, 20.0)]).row("h2", {"model.num_heads": 2})
    table = bench.table()
    assert table.base == "h4"
    assert column(table, "bleu")["h2"].change == pytest.approx(5.0)
    assert [dict(row.settings) for row in table.rows] == [{"model.num_heads": 4}, {"model.num_heads": 2}]


def test_perplexities_over_other_tokenizers_are_not_compared(bench):
    bench.row("base").row("V", {"data.vocab_size": 1000}, results=[(4.0, 26.0)])
    table = bench.table()
    assert column(table, "ppl")["V"].change is None
    assert column(table, "bleu")["V"].change == pytest.approx(1.0)
    assert not any(m.best for m in column(table, "ppl").values())
    assert any("PPL (dev)" in text and "left out" in text for text in table.warnings)


def test_the_tokenizer_that_was_trained_counts_too(bench):
    bench.row("base", record={"data": {"tokenizer": {"sha256": {"tokenizer.model": "aa"}}}})
    bench.row("B", {"model.d_k": 16}, record={"data": {"tokenizer": {"sha256": {"tokenizer.model": "bb"}}}})
    table = bench.table()
    assert column(table, "ppl")["B"].change is None
    assert any("2 tokenizers: aa (base); bb (B)" in text for text in table.warnings)


@pytest.mark.parametrize("other", [{"scored": {"signature": {"bleu": "tok:intl"}}}, {"inputs": {"text": "other"}}])
def test_bleu_of_other_sentences_or_signature_is_not_compared(bench, other):
    bench.row("base").row("B", {"model.d_k": 16}, **other)
    table = bench.table()
    assert column(table, "bleu")["B"].change is None
    assert not any(m.best for m in column(table, "bleu").values())
    assert any(text.startswith("BLEU (dev) was measured") for text in table.warnings)


class TestBold:
    """The best value of a column is bold, and on request also the values that no test distinguishes from it."""

    @staticmethod
    def best(bench, key="bleu"):
        return [m.best for m in column(bench.table(), key).values()]

    @staticmethod
    def seeds(ppl, bleu, spread=0.01):
        return [(ppl * (1 + step * spread), bleu + step) for step in (-0.1, 0.0, 0.1)]

    def test_the_best_and_its_equals(self, bench):
        bench.row("base", results=self.seeds(5.0, 25.0)).row("B", {"model.d_k": 16}, results=self.seeds(4.0, 26.0))
        bench.row("C", {"model.d_k": 32}, results=self.seeds(4.5, 26.1)).row(
            "D", {"model.d_k": 8}, results=self.seeds(6, 24)
        )
        assert self.best(bench) == [False, False, True, False]
        assert self.best(bench, "ppl") == [False, True, False, False]
        printed = [note for note, *_ in bench.table().footnotes if note.startswith("Bold:")]
        assert printed == ["Bold: the best of its column."]
        bench.study["bold"] = "undistinguished"
        assert self.best(bench) == [False, True, True, False]
        assert self.best(bench, "ppl") == [False, True, False, False]
        [note] = [note for note, *_ in bench.table().footnotes if note.startswith("Bold:")]
        assert note == "Bold: the best of its column, and rows that Welch's t test (Holm) cannot tell from it."

    def test_a_row_that_varies_is_no_best_beside_one_that_does_not(self, bench):
        """97.3 ± 0.8 was bold beside 99.1 ± 0.1, by the variance that all rows pool."""
        rows = {"base": (97.3, 0.8), "B": (99.1, 0.1), "C": (99.0, 0.2), "D": (95.0, 1.0)}
        for place, (key, (mean, sd)) in enumerate(rows.items()):
            values = [(5.0, mean + step * sd) for step in (-1, -0.5, 0, 0.5, 1)]
            bench.row(key, {"model.d_k": 16 + place} if place else {}, results=values)
        assert self.best(bench) == [False, True, False, False]
        bench.study["bold"] = "undistinguished"
        assert self.best(bench) == [False, True, True, False]

    def test_ties_are_all_bold(self, bench):
        bench.row("base", results=self.seeds(5.0, 25.0)).row("B", {"model.d_k": 16}, results=self.seeds(5.0, 26.0))
        bench.row("C", {"model.d_k": 32}, results=self.seeds(5.0, 26.0))
        assert self.best(bench) == [False, True, True]

    def test_without_a_spread_or_with_a_gap_nothing_is(self, bench):
        bench.row("base", results=[(5.0, 25.0)]).row("B", {"model.d_k": 16}, results=[(4.0, 29.0)])
        assert not any(self.best(bench)) and not any(self.best(bench, "ppl"))
        assert any("One seed: no significance test" in note for note, *_ in bench.table().footnotes)

    def test_a_row_without_a_value_leaves_none(self, bench):
        bench.row("base", results=self.seeds(5.0, 25.0)).row("B", {"model.d_k": 16}, results=self.seeds(4.0, 29.0))
        assert any(self.best(bench))
        bench.row("D", {"model.d_k": 128}, results=[None] * 3)
        assert not any(self.best(bench))


def test_every_evaluated_set_gets_a_column(bench):
    bench.row("base", sets=("dev", "test_2016", "test_2017"))
    table = bench.table()
    assert [(c.key, c.header) for c in table.columns] == [
        ("ppl", "PPL (dev)"), ("bleu", "BLEU (dev)"),
        ("bleu_test_2016", "BLEU (test_2016)"), ("bleu_test_2017", "BLEU (test_2017)"),
    ]  # fmt: skip
    assert record(table.rows[0], table)["bleu_test_2016"] == 25.0


def test_a_set_that_a_row_does_not_ask_for_is_no_gap(bench):
    bench.row("base", sets=("dev", "test")).row("B", {"model.d_k": 16}, sets=("dev",))
    table = bench.table()
    assert missing_cells(table) == 0
    assert column(table, "bleu_test")["B"].mean is None


def test_the_record_keeps_the_contract(bench):
    bench.row("base", paper={"perplexity": 4.92})
    found = record(bench.table().rows[0], bench.table())
    assert {"row", "ppl", "bleu", "num_params", "n", "paper", "run_ids"} <= set(found)
    assert {"state", "stale", "group", "label"} <= set(found)
    assert found["paper"] == {"perplexity": 4.92, "bleu": None, "params": None}


def test_a_rows_state_is_the_seed_that_wants_attention(bench):
    bench.row("base", results=[(5.0, 25.0)] * 2 + [None], states=["finished", "stale", "running"])
    row = bench.table().rows[0]
    assert (row.state, row.stale) == ("running", True)


@pytest.mark.parametrize(("sets", "heads"), [(("dev",), ["PPL", "BLEU"]), (("dev", "test"), ["PPL dev", "BLEU dev"])])
def test_in_mlflow_a_head_names_dev_where_there_are_other_sets(bench, sets, heads):
    table = bench.row("base", sets=sets).table()
    found = list(_heads(table).values())
    assert found == ([*heads, "BLEU test"] if len(sets) > 1 else heads)


@pytest.mark.parametrize(
    ("states", "says"),
    [
        (["missing", "missing"], "seeds done/requested, not run or not scored yet"),
        (["failed", "running"], "seeds done/requested, reason"),
        (["failed", "missing"], "seeds done/requested, reason, without a reason: not run or not scored yet"),
        (["failed"], "reason"),
    ],
)
def test_the_note_on_gaps_says_what_they_print(bench, states, says):
    bench.row("base", results=[(5.0, 25.0)] * 2).row("B", {"model.d_k": 8}, results=[None] * len(states), states=states)
    assert f"–: not available, in 2 cells ({says})." in [note for note, *_ in bench.table().footnotes]
