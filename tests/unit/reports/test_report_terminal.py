"""A table on a terminal fits its width, separates groups, uses colours and hides notes behind an option."""

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from reports.render.formats import render
from reports.render.terminal import for_terminal, so_far
from reports.results.table import Table
from reports.spec.choices import Choices
from reports.spec.table_spec import Note
from tests.planned_runs import described
from tests.unit.reports.conftest import Bench


@pytest.fixture
def table(bench: Bench) -> Table:
    """Return a table as wide as Table 3, with published numbers, two sets, a label and a failed row."""
    bench.study["columns"] = {"model.num_heads": "h", "model.d_k": "d_k", "training.train_steps": "train steps"}
    three = [(5.0, 25.0), (5.1, 25.1), (5.2, 25.2)]
    sets: dict[str, Any] = {"sets": ("dev", "test")}
    bench.row("base", results=three, paper={"perplexity": 4.92, "bleu": 25.8, "params": 65}, **sets)
    better = [(4.0, 29.0), (4.1, 29.1), (4.2, 29.2)]
    bench.row("A-h4", {"model.num_heads": 4}, results=better, paper={"bleu": 26.0}, group="A", **sets)
    bench.row("A-h1", {"model.num_heads": 1}, results=[None] * 3, states=["failed"] * 3, group="A", **sets)
    label = "learned vectors in place of sinusoids"
    return bench.row("E", {"model.positions": "learned"}, results=three, label=label, group="E", **sets).table()


def shown(table: Table, columns: int, colour: bool = False) -> str:
    stream = io.StringIO()
    system: Any = "standard" if colour else None
    console = Console(file=stream, width=columns, color_system=system, force_terminal=colour, highlight=False)
    console.print(for_terminal(table, columns))
    return stream.getvalue()


@pytest.mark.parametrize("columns", [40, 60, 80, 100, 140, 200])
def test_it_fits_its_width_and_keeps_what_matters_most(table: Table, columns: int) -> None:
    lines = shown(table, columns).split("\n")
    assert max(map(cell_len, lines)) <= columns
    (base,) = [line for line in lines if line.startswith("base ")]
    assert "5.10 ± 0.10" in base
    (row,) = [line for line in lines if line.startswith("A-h4 ")]
    assert "4.10 ± 0.10" in row and ("29.1 ± 0.1" in row) == (columns >= 60)


def test_wider_terminals_show_no_less(table: Table) -> None:
    numbers = [len(shown(table, columns).split()) for columns in (60, 80, 120, 240)]
    assert numbers[0] < numbers[1] < numbers[2] <= numbers[3]
    assert "more column" in shown(table, 60) and "more column" not in shown(table, 400)


def test_groups_stand_apart(table: Table) -> None:
    lines = [line.strip().split(" ")[0] for line in shown(table, 120).split("\n")]
    assert lines[lines.index("base") : lines.index("E") + 1] == ["base", "", "A-h4", "A-h1", "", "E"]


def test_colours_say_better_missing_and_base(table: Table) -> None:
    coloured = shown(table, 200, colour=True)
    assert "\x1b[32m+4.0*\x1b[0m" in coloured  # green: better, and tested
    assert "\x1b[31m– (0/3, 3 failed)\x1b[0m" in coloured
    assert "\x1b[1mbase\x1b[0m" in coloured
    assert "\x1b" not in shown(table, 200)


def test_the_short_notes_are_printed_and_the_others_counted(table: Table) -> None:
    short = [note.text for note in table.footnotes if note.kind in ("sign", "gap")]
    assert all(" ".join(text.split()) in " ".join(shown(table, 80).split()) for text in short)
    assert f"{len(table.footnotes) - len(short)} more notes: --notes full" in " ".join(shown(table, 80).split())
    full = " ".join(shown(replace(table, chosen=Choices(notes="full")), 80).split())
    assert all(" ".join(note.split()) in full for note, *_ in table.footnotes if " " in note)


def test_named_columns_are_all_printed(table: Table) -> None:
    chosen = replace(table, chosen=Choices(columns=("bleu", "bleu_test", "params", "n", "h"), plain=True))
    text = shown(chosen, 50)
    assert (
        all(head in text for head in ("(dev)", "(test)", "params", "h")) and max(map(cell_len, text.split("\n"))) <= 50
    )


def test_hostile_text_does_not_steer_the_terminal(table: Table) -> None:
    evil = "\x1b[2Jx\r\x9b31m[red]y[/red]"
    rows = (described(table.rows[0], key=evil), *table.rows[1:-1], described(table.rows[-1], label=evil))
    text = shown(replace(table, rows=rows, title=evil, footnotes=(Note(evil),), chosen=Choices(notes="full")), 120)
    assert "\x1b" not in text and "\x9b" not in text and "[red]y[/red]" in text


def test_without_a_terminal_it_is_plain_text(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    text = render(table, "terminal")
    assert max(map(cell_len, text.split("\n"))) <= 70 and not any(line.endswith(" ") for line in text.split("\n"))


def test_while_it_fills_it_has_all_rows_where_they_fit_and_else_those_with_a_number(table: Table) -> None:
    def keys(lines: int) -> list[str]:
        stream = io.StringIO()
        Console(file=stream, width=80, color_system=None).print(so_far(table, 80, lines))
        return [line.split(" ")[0] for line in stream.getvalue().split("\n")[1:] if line.strip()]

    assert [key for key in keys(40) if key in ("base", "A-h4", "A-h1", "E")] == ["base", "A-h4", "A-h1", "E"]
    assert [key for key in keys(8) if key in ("base", "A-h4", "A-h1", "E")] == ["base", "A-h4", "E"]
