"""Tests of human-readable formats: gaps, digits, groups, and the layout of Markdown and LaTeX."""

import re
from dataclasses import replace

import pytest
from rich.cells import cell_len

from ablations.planning.declare_table import table_spec
from ablations.planning.plan import plan_study
from ablations.study.selectors import selection
from ablations.study.study import load_study
from experiments.run_state import RunState
from experiments.tasks.load import load_task
from reports.render.cells import gap
from reports.render.formats import RENDERERS, render
from reports.results.number_text import decimals, fixed, significant
from reports.results.table import Measure
from reports.table.build import build_table
from tests.unit.reports.conftest import FakeStore, lay_out


def shown(table, head):
    grid = lay_out(table)
    place = [h.key for h in grid.heads].index(head)
    return [line.cells[place].text for line in grid.lines]


@pytest.mark.parametrize(
    ("found", "lacking", "text"),
    [
        (0, [""], "–"),
        (0, ["failed"], "– (failed)"),
        (0, ["running"], "– (running)"),
        (0, ["nan"], "– (nan)"),
        (2, [""], "– (2/3)"),
        (1, ["failed", "running"], "– (1/3, 1 failed, 1 running)"),
        (0, ["waiting", "waiting", "waiting"], "– (0/3, 3 waiting)"),
    ],
)
def test_gaps_say_how_many_and_why(found, lacking, text):
    assert gap(Measure(values=(1.0,) * found, requested=found + len(lacking), lacking=tuple(lacking))) == text


@pytest.mark.parametrize(
    ("value", "digits", "signed", "text"),
    [
        (4.915, 2, False, "4.92"), (-0.25, 1, True, "−0.2"), (0.25, 2, True, "+0.25"), (-0.004, 2, True, "0.00"),
        (0.0, 1, True, "0.0"), (218.3, 1, False, "218.3"), (1244569.0, 0, False, "1244569"),
        (-1.2e7, 2, True, "−12000000.00"), (999999999999999.0, 0, True, "+999999999999999"),
        (1e15, 2, False, "1e+15"), (None, 2, False, ""),
        (-1234567890123457.0, 2, True, "−1.234567890123457e+15"), (1.7e308, 12, False, "1.7e+308"),
    ],
)  # fmt: skip
def test_numbers(value, digits, signed, text):
    assert fixed(value, digits, signed) == text


@pytest.mark.parametrize(
    ("value", "digits", "signed", "text"),
    [
        (26.8412, 5, False, "26.841"), (0.9, 5, False, "0.9"), (1244569.0, 5, False, "1244569"), (0.0, 3, True, "+0"),
        (10003.2, 3, True, "+10003"), (-1.5e-7, 3, True, "−1.5e-07"), (99999.7, 5, False, "100000"),
        (2e15, 3, False, "2e+15"),
    ],
)  # fmt: skip
def test_numbers_in_sentences_keep_the_digits_before_the_point(value, digits, signed, text):
    assert significant(value, digits, signed) == text


def test_published_numbers_keep_the_digits_that_are_written():
    assert [decimals([value]) for value in (4.92, 213.0, 1.25e-5, 1e-6, 1.5e16, None)] == [2, 0, 7, 6, 0, 0]


def test_a_row_named_after_a_size_prints_what_it_is_here(tmp_path):
    task, study = load_task("translation"), load_study("table3")

    def names(profile):
        chosen = selection(profile, None, None, None, ())
        plan = plan_study(study, chosen, task, tmp_path, lambda *_: RunState("missing"))
        return shown(build_table(table_spec(plan, task.columns), FakeStore()), "row")

    assert names("paper") == [row.key for row in study.variations]
    scaled = [name for name in names("demo") if "→" in name]
    assert scaled == [
        "B-dk16 (16 → 4)", "B-dk32 (32 → 8)", "C-N2 (2 → 1)", "C-N4 (4 → 2)", "C-N8 (8 → 4)", "C-dmodel256 (256 → 32)",
        "C-dmodel1024 (1024 → 128)", "C-dff1024 (1024 → 128)", "C-dff4096 (4096 → 512)",
    ]  # fmt: skip


def test_states_of_rows_reach_their_cells(bench):
    bench.row("base").row("B", {"model.d_k": 16}, results=[None], states=["failed"])
    bench.row("C", {"model.d_k": 32}, results=[None] * 2, states=["missing", "running"])
    assert shown(bench.table(), "bleu.ours") == ["25.0", "– (failed)", "– (0/2, 1 running)"]
    assert shown(bench.table(), "n") == ["1", "0/1", "0/2"]


class TestProvisional:
    """Tests of unfinished rows, as `report --provisional` prints them."""

    @pytest.fixture
    def half_done(self, bench):
        bench.row("base", results=[(5.0, 24.0), (5.2, 26.0)])
        bench.row("B", {"model.d_k": 16}, results=[(5.0, 28.0), None], states=["finished", "running"])
        return bench.row("C", {"model.d_k": 32}, results=[None, None])

    def test_a_mean_so_far_stands_with_its_seeds_and_is_never_final(self, half_done):
        table = half_done.table(provisional=True)
        assert shown(table, "bleu.ours") == ["25.0 ± 1.4", "28.0 (1/2)", "– (0/2)"]
        assert shown(table, "bleu.change") == ["", "+3.0", ""]
        measure = table.rows[1].measures["bleu"]
        assert (measure.mean, measure.change, measure.test, measure.best) == (None, None, None, False)
        assert shown(half_done.table(), "bleu.ours")[1] == "– (1/2, 1 running)"
        assert "--provisional" in render(half_done.table(), "markdown")

    @pytest.mark.parametrize(
        ("form", "text"), [("markdown", "*28.0 (1/2)*"), ("latex", r"\textit{28.0 (1/2)}"), ("html", "cell gap")]
    )
    def test_every_format_for_readers_marks_it(self, half_done, form, text):
        printed = render(half_done.table(provisional=True), form)
        assert text in printed
        assert re.search("provisional means over the seeds done so far", printed)

    @pytest.mark.parametrize("form", ["json", "csv"])
    def test_formats_for_programs_have_no_number_there(self, half_done, form):
        provisional, plain = (replace(half_done.table(provisional=p), footnotes=()) for p in (True, False))
        assert render(provisional, form) == render(plain, form)  # notes apart, which JSON has too

    def test_a_change_from_a_base_that_is_half_done_is_provisional_too(self, bench):
        bench.row("base", results=[(5.0, 24.0), None]).row("B", {"model.d_k": 16}, results=[(5.0, 28.0)] * 2)
        assert shown(bench.table(provisional=True), "bleu.change") == ["", "+4.0"]
        assert "*+4.0*" in render(bench.table(provisional=True), "markdown")
        assert "bleu.change" not in [head.key for head in lay_out(bench.table()).heads]


def test_mean_deviation_and_the_papers_own_digits(bench):
    bench.row("base", results=[(5.0, 25.0), (5.1, 26.0)], paper={"perplexity": 5.0, "bleu": 26.0, "params": 65})
    bench.row("B", {"model.d_k": 16}, results=[(5.0, 25.0), (5.1, 26.0)], paper={"perplexity": 4.91, "bleu": 25.8})
    table = bench.table()
    assert shown(table, "ppl.ours")[0] == "5.05 ± 0.07"
    assert shown(table, "bleu.ours")[0] == "25.5 ± 0.7"
    assert shown(table, "ppl.paper") == ["5.00", "4.91"]
    assert shown(table, "ppl.paper_change") == ["", "−0.018"]
    assert shown(table, "bleu.paper_change") == ["", "−0.2"]
    assert shown(table, "params.paper") == ["65", ""]


@pytest.mark.parametrize(
    ("sizes", "head", "texts"),
    [
        ([65_000_000, 218_300_000], "params ×10⁶", ["65.0", "218.3"]),
        ([325_100, 1_520_000], "params ×10⁶", ["0.325", "1.520"]),
        ([12_340], "params ×10³", ["12.3"]),
        ([65, 257], "params", ["65", "257"]),
        ([0], "params", ["0"]),
    ],
)
def test_params_have_a_unit_that_fits_and_three_figures_of_the_smallest(bench, sizes, head, texts):
    for number, size in enumerate(sizes):
        bench.row(f"r{number}", {"model.d_ff": 64 + number}, num_params=size)
    table = bench.table()
    assert shown(table, "params.ours") == texts
    assert head in [one.top for one in lay_out(table).heads]


def test_params_beside_published_ones_have_their_unit(bench):
    table = bench.row("base", num_params=12_340, paper={"params": 65}).table()
    assert shown(table, "params.ours") == ["0.0123"]


def paper_like(bench):
    bench.study["columns"] = {"model.num_heads": "h", "model.d_k": "d_k", "training.train_steps": "train steps"}
    bench.row("base", paper={"bleu": 25.8}).row("A-h4", {"model.num_heads": 4}, group="A")
    bench.row("A-h1", {"model.num_heads": 1}, group="A").row("B", {"model.d_k": 16}, group="B")
    bench.row("E", {"model.positions": "learned"}, group="E", label="learned positions")
    bench.row("big", {"model.num_heads": 16, "training.train_steps": 300_000})
    return bench.table()


def test_markdown_lines_up_and_escapes_its_cells(bench):
    lines = render(paper_like(bench), "markdown").split("\n")
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 8
    assert len({cell_len(line) for line in table}) == 1
    assert [[i for i, c in enumerate(line) if c == "|"] for line in table] == [
        [i for i, c in enumerate(table[0]) if c == "|"]
    ] * 8
    assert table[3].startswith("| (A) | A-h4 ")
    assert table[4].startswith("|     | A-h1 ")
    assert "300K" in table[7]


def test_latex_has_rules_between_groups_only_and_the_label_across_the_settings(bench):
    text = render(paper_like(bench), "latex")
    body = text.split(r"\midrule", 1)[1].split(r"\bottomrule")[0].strip().split("\n")
    assert [line.split("&")[0].strip() for line in body] == [
        "base", r"\midrule", "(A)", "", r"\midrule", "(B)", r"\midrule", "(E)", r"\midrule", "big",
    ]  # fmt: skip
    assert r"(E) & \multicolumn{3}{c}{learned positions} & " in text
    assert r"& train &" in text
    assert r"& $h$ & $d_k$ & steps &" in text
    assert r"\input" not in text


def test_latex_without_settings_gives_the_label_a_column(bench):
    bench.row("base").row("B", {"model.positions": "none"}, label="no positions")
    bench.row("C", {"model.d_k": 16}, group="C", label="")
    assert r"\multicolumn{1}{c}{no positions}" in render(bench.table(), "latex")
    bench.rows.pop(), bench.runs.pop(), bench.study["variation"].pop()
    assert r"B & no positions & " in render(bench.table(), "latex")


def test_stale_numbers_are_marked(bench):
    bench.row("base", states=["stale"])
    assert "25.0† |" in render(bench.table(), "markdown")
    assert r"25.0\rlap{$^{\dag{}}$} &" in render(bench.table(), "latex")


def test_best_is_bold(bench):
    bench.row("base", results=[(5.0, 25.0), (5.01, 25.0), (5.02, 25.0)])
    bench.row("B", {"model.d_k": 16}, results=[(4.0, 24.0), (4.01, 24.0), (3.99, 24.0)])
    assert "**4.00 ± 0.01**" in render(bench.table(), "markdown")
    assert r"\textbf{4.00 ± 0.01}" in render(bench.table(), "latex").replace(r"$\pm$", "±")


def test_the_same_results_give_the_same_bytes(new_bench):
    first, second = paper_like(new_bench()), paper_like(new_bench())
    for name in RENDERERS:
        assert render(first, name) == render(second, name)
        assert render(first, name).endswith("\n")
        assert not re.search(r"[ \t]\n", render(first, name))
