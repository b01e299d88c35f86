"""The study and the command select the printed columns and notes, in every format."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from ablations.service.tables import TableOptions
from ablations.study.study import Study
from experiments.errors import UserError
from reports.audit.verify import SUFFIXES, verify
from reports.render.formats import RENDERERS, render
from reports.render.markdown import escape
from reports.render.printed import printed
from reports.results.table import Row, Table
from reports.spec.choices import Choices
from reports.spec.table_spec import Note
from tests.unit.reports.conftest import Bench


@pytest.fixture
def table(bench: Bench) -> Table:
    """Make three rows with three seeds, published numbers and a tested difference."""
    bench.study["columns"] = {"model.num_heads": "h", "model.d_k": "d_k", "training.train_steps": "train steps"}
    seeds = [(5.0, 25.0), (5.1, 25.1), (5.2, 25.2)]
    better = [(4.0, 29.0), (4.1, 29.1), (4.2, 29.2)]
    paper = {"perplexity": 4.92, "bleu": 25.8, "params": 65}
    bench.row("base", results=seeds, paper=paper, sets=("dev", "test"))
    bench.row(
        "h4",
        {"model.num_heads": 4},
        results=better,
        paper={"perplexity": 4.9, "bleu": 26.0},
        sets=("dev", "test"),
        group="A",
    )
    return bench.row("k16", {"model.d_k": 16}, results=seeds, sets=("dev", "test"), group="B").table()


def heads(table: Table, format_: str = "markdown", **choices: Any) -> list[str]:
    """Return the keys of the printed columns, without the columns of names."""
    found = printed(replace(table, chosen=Choices(**choices)), format_).grid.heads
    return [head.key for head in found if head.kind not in ("group", "row", "label")]


SETTINGS = ["model.num_heads", "model.d_k", "training.train_steps"]


def test_latex_prints_what_varies_the_metrics_and_params_and_markdown_all(table: Table) -> None:
    assert heads(table, "latex") == [*SETTINGS, "ppl.ours", "bleu.ours", "bleu_test.ours", "params.ours"]
    assert {"ppl.change", "ppl.paper", "ppl.paper_change", "bleu.change", "params.paper", "n"} < set(heads(table))


def test_what_latex_leaves_out_stands_in_its_comments(table: Table) -> None:
    text = render(table, "latex")
    comments = [line for line in text.split("\n") if line.startswith("%")]
    assert any("| h4 " in line and "+4.0" in line and "26.0" in line for line in comments)
    notes = [line.removeprefix("% - ") for line in comments]
    shown = printed(table, "latex")
    assert {note.text for note in table.footnotes} == {*shown.notes, *shown.left_out} and set(shown.left_out) <= set(
        notes
    )
    assert all(line.startswith("%") for line in text.split(r"\end{table}")[1].strip().split("\n"))


@pytest.mark.parametrize("format_", ["markdown", "latex", "html"])
def test_columns_are_printed_in_the_asked_order(table: Table, format_: str) -> None:
    asked = heads(table, format_, columns=("params", "h", "BLEU", "ppl.change"), plain=True)
    assert asked == ["params.ours", "model.num_heads", "bleu.ours", "ppl.change"]
    assert heads(table, format_, columns=("bleu",), plain=False, paper=True) == [
        "bleu.ours", "bleu.change", "bleu.paper", "bleu.paper_change",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "key"),
    [("d_k", "model.d_k"), ("N", "model.num_heads"), ("n", "n"), ("perplexity", "ppl.ours"),
     ("num_params", "params.ours"), ("PPL (dev)", "ppl.ours"), ("ppl (DEV)", "ppl.ours"),
     ("train steps", "training.train_steps")],
)  # fmt: skip
def test_a_column_has_several_names(bench: Bench, name: str, key: str) -> None:
    bench.study["columns"] = {"model.num_heads": "N", "model.d_k": "d_k", "training.train_steps": "train steps"}
    table = bench.row("base").row("h4", {"model.num_heads": 4}).table()
    assert heads(table, columns=(name,), plain=True) == [key]


def test_any_setting_may_be_asked_for(table: Table) -> None:
    shown = printed(replace(table, chosen=Choices(columns=("warmup_steps", "model.d_k"))), "markdown").grid
    places = {head.key: i for i, head in enumerate(shown.heads)}
    warmup = [line.cells[places["training.warmup_steps"]].text for line in shown.lines]
    assert warmup == ["4000", "", ""], "blank: as in base"


@pytest.mark.parametrize("name", ["flops", "flops.ours", "flops_counted", "training FLOPs"])
def test_operations_and_hours_are_columns_of_every_table_that_names_them(table: Table, name: str) -> None:
    table = replace(table, rows=tuple(_trained(row) for row in table.rows))
    asked = Choices(columns=(name, "hours"), notes="full")
    table = replace(table, chosen=asked)
    assert heads(table, columns=asked.columns) == ["flops.ours", "hours.ours"]
    text = render(table, "markdown")
    assert "| training FLOPs (counted) | training hours |" in text and re.search(r"\| +1.2e9 \| +0\.00347 \|", text)
    assert "Training FLOPs: counted" in text and "By time is blank" not in text
    (first, *_) = json.loads(render(table, "json"))
    assert first["flops_counted"] == 1.2e9 and first["train_hours"] == 12.5 / 3600
    assert "flops_counted" in render(table, "csv")
    spec = replace(table.spec, sustained_flops={"processor": 1e9})
    by_time = heads(replace(table, spec=spec), columns=("flops", "hours"))
    assert by_time == ["flops.ours", "flops.by_time", "hours.ours"]


def _trained(row: Row) -> Row:
    """Return the row's runs with the facts that newer records have."""
    known = {"flops": 1.2e9, "train_s": 12.5}
    outcomes = [replace(o, record=o.record and o.record.model_copy(update=known)) for o in row.outcomes]
    return replace(row, outcomes=tuple(outcomes))


def test_an_own_setting_or_metric_of_that_name_comes_before(bench: Bench) -> None:
    bench.study["columns"] = {"model.d_k": "hours", "model.num_heads": "h"}
    assert heads(bench.row("base").table(), columns=("hours",)) == ["model.d_k"]


def test_columns_of_one_name_are_told_apart(bench: Bench) -> None:
    bench.row("base").row("a", {"training.precision": "fp32", "evaluation.precision": "bf16"})
    table = bench.table()
    told = ["training.precision", "evaluation.precision"]
    for columns in ((), told, ("warmup_steps", "d_k", *told)):
        shown = printed(replace(table, chosen=Choices(columns=tuple(columns))), "markdown").grid.heads
        assert {head.key: head.top for head in shown if head.key in told} == {name: name for name in told}
    assert "warmup_steps" in [head.top for head in shown]


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        ({"columns": ("blue",)}, "no column 'blue'. Nearest columns: bleu"),
        ({"hide": ("d_x",)}, "no column 'd_x'"),
        ({"columns": ("row",)}, "row cannot be chosen"),
        ({"columns": ("bleu",), "hide": ("bleu",)}, "no column to print"),
        ({"digits": {"bleuu": 2}}, "digits: small has no column 'bleuu'"),
    ],
)
def test_a_column_that_is_not_there_is_refused(table: Table, choices: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says.replace("'", ".").replace("(", r"\(")):
        printed(replace(table, chosen=Choices(**choices)), "markdown")


def test_plain_moves_the_marks_of_tests_to_the_values(table: Table) -> None:
    assert "+4.0\\*" in render(table, "markdown")
    plain = render(replace(table, chosen=Choices(plain=True)), "markdown")
    assert "29.1 ± 0.1**\\*" in plain and "+4.0" not in plain and "25.8" not in plain
    assert "Δ" not in plain and "paper" not in plain and "Dunnett" in plain


def test_digits(table: Table) -> None:
    text = render(replace(table, chosen=Choices(digits={"": 3, "bleu": 0, "params": 2})), "markdown")
    assert "5.100 ± 0.100" in text and " 25 ± 0 " in text and "65.00" in text


@pytest.mark.parametrize("name", ["ppl", "perplexity", "PPL (dev)"])
def test_digits_are_of_a_column_by_any_of_its_names(table: Table, name: str) -> None:
    chosen = replace(table, chosen=Choices(digits={name: 4}))
    [ppl] = [column for column in printed(chosen, "markdown").table.columns if column.key == "ppl"]
    assert ppl.digits == 4


def test_caption_label_and_wide(table: Table) -> None:
    text = render(table, "latex")
    assert r"\caption{A small table}" in text and r"\label{tab:small}" in text
    chosen = replace(table, chosen=Choices(caption="5 % of $x_1$", label="t:1", wide=True))
    text = render(chosen, "latex")
    assert r"\caption{5 \% of \$x\_1\$}" in text and r"\label{t:1}" in text and r"\begin{table*}[t]" in text
    assert render(chosen, "markdown").startswith("**5 % of \\$x_1\\$**") and "<h1>5 % of $x_1$</h1>" in render(
        chosen, "html"
    )


def test_notes_are_all_those_a_reader_needs_or_gaps_alone(table: Table) -> None:
    """By kind, in every format for readers; a page folds the others, and warnings are always there."""
    gap = Note("–: not available, in 1 cell (seeds done/requested, reason).", "gap")
    table = replace(table, footnotes=(*table.footnotes, gap), warnings=("The rows mix 2 precisions.",))
    by_choice = {n: printed(replace(table, chosen=Choices(notes=n)), "markdown") for n in ("none", "short", "full")}
    notes = {name: shown.notes for name, shown in by_choice.items()}
    assert notes["full"] == tuple(note.text for note in table.footnotes) and notes["none"] == (gap.text,)
    assert set(notes["short"]) == {note.text for note in table.footnotes if note.kind in ("sign", "gap")}
    for start in ("Δ: ", "paper: ", "Bold: ", "*: ", "bleu: ", "–: "):
        assert any(note.startswith(start) for note in notes["short"])
    assert not any(note.startswith(("Code", "Corpus", "Evaluated", "BLEU (dev): ")) for note in notes["short"])
    assert all(shown.warnings == table.warnings for shown in by_choice.values())
    rest = [note.text for note in table.footnotes if note.text not in notes["short"]]
    for format_ in ("markdown", "terminal"):
        assert printed(table, format_).notes == notes["short"] and f"{len(rest)} more notes" in render(table, format_)
    assert set(printed(table, "latex").notes) == {text for text in notes["short"] if text[:3] not in ("Δ: ", "pap")}
    above, _, folded = render(table, "html").partition("<details><summary>")
    assert folded.startswith(f"{len(rest)} more notes") and "Bold: " in above and "<li>Training of" not in above


def test_the_setup_and_json_have_all_notes(table: Table) -> None:
    table = replace(table, warnings=("The rows mix 2 precisions.",))
    texts = [note.text for note in table.footnotes]
    assert all(escape(text) in render(table, "setup") for text in (*table.warnings, *texts))
    first, *others = json.loads(render(table, "json"))
    assert [one["kind"] for one in first["notes"]] == ["warning", *(note.kind for note in table.footnotes)]
    assert [one["text"] for one in first["notes"]] == [*table.warnings, *texts]
    assert not any("notes" in other for other in others)


@pytest.mark.parametrize("format_", ["csv", "json"])
def test_formats_for_programs_are_whole(table: Table, format_: str) -> None:
    study = table.spec.choices.model_copy(update={"columns": ("bleu",), "plain": True, "caption": "other"})
    whole = render(table, format_)
    assert render(replace(table, spec=replace(table.spec, choices=study)), format_) == whole
    assert render(replace(table, chosen=Choices(columns=("bleu", "d_k"), hide=("ppl",))), format_) == whole


def test_the_study_makes_the_same_choices_and_the_command_is_stronger(bench: Bench) -> None:
    bench.study["table"] = {
        "hide": ["ppl"],
        "caption": "By the study",
        "latex": {"columns": ["bleu"]},
        "notes": "short",
    }
    bench.row("base").row("h4", {"model.num_heads": 4})
    table = bench.table()
    assert not any(key.startswith("ppl") for key in heads(table)) and heads(table, "latex") == ["bleu.ours"]
    assert heads(table, columns=("ppl",), plain=True) == ["ppl.ours"]
    assert printed(table, "html").table.title == "By the study"
    assert printed(replace(table, chosen=Choices(notes="full", caption="")), "html").table.title == ""


@pytest.mark.parametrize(
    "wrong",
    [{"columns": ["a"], "hide": ["a"]}, {"notes": "few"}, {"label": r"x}\input{y"}, {"latex": {"wide": 3}}, {"x": 1}],
)
def test_a_study_with_other_choices_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="table"):
        Study.model_validate({"name": "s", "title": "S", "variation": [{"key": "base"}], "table": wrong})


def test_published_numbers_print_where_the_corpus_is_the_papers_or_when_asked_for(bench: Bench) -> None:
    bench.study["table"] = {"paper_corpus": ["wmt14"]}
    bench.study["cited"] = [{"label": "GNMT", "values": {"bleu": 24.62}}]
    bench.row("base", {"data.corpus": "/data/other"}, paper={"bleu": 25.8}).row(
        "B", {"model.d_k": 16}, paper={"bleu": 25.1}
    )
    table = bench.table()
    assert "bleu.paper" not in heads(table) and "GNMT" not in render(table, "markdown")
    assert {"bleu.paper", "bleu.paper_change"} < set(heads(table, paper=True))
    assert "24.62" in render(replace(table, chosen=Choices(paper=True)), "markdown")
    bench.study["variation"], bench.rows, bench.runs = [], [], []
    table = bench.row("base", {"data.corpus": "/data/wmt14"}, paper={"bleu": 25.8}).table()
    assert "bleu.paper" in heads(table) and "bleu.paper" not in heads(table, "latex")
    cited = next(
        line for line in render(table, "latex").split("\n") if line.startswith(("cited", " & cited")) or "GNMT" in line
    )
    assert "24.62" in cited, "in our own column, as papers print it"


OPTIONS = TableOptions(
    columns="h,bleu, params", hide="n", plain=False, paper=True, digits="2,bleu=3", caption="C",
    notes="short", label="t", wide=True,
)  # fmt: skip


def test_the_command_line_says_the_same(table: Table) -> None:
    assert OPTIONS.choices() == Choices(
        columns=("h", "bleu", "params"), hide=("n",), plain=False, paper=True, digits={"": 2, "bleu": 3},
        caption="C", notes="short", label="t", wide=True,
    )  # fmt: skip
    assert OPTIONS.words()[:6] == ["--columns", "h,bleu, params", "--hide", "n", "--no-plain", "--paper"]


@pytest.mark.parametrize(
    "wrong",
    [{"digits": "x"}, {"digits": "bleu="}, {"digits": "=2"}, {"notes": "some"}, {"label": "{"}, {"caption": "a\nb"}],
)
def test_a_wrong_option_is_refused_by_name(wrong: dict[str, str]) -> None:
    with pytest.raises(UserError, match=f"--{next(iter(wrong))}"):
        TableOptions(**wrong).choices()


@pytest.mark.parametrize("format_", SUFFIXES.values())
def test_a_file_with_choices_is_verified(table: Table, format_: str) -> None:
    table = replace(table, chosen=Choices(columns=("h", "bleu"), paper=True))
    text = RENDERERS[format_](table)
    assert verify(text, table, format_).same
    assert verify(text.replace("29.", "28."), table, format_).changed
