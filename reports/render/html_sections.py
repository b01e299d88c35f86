"""Sections of the page below the table: failures, runs."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape as escape_html

from experiments.identity import seed_in_words
from reports.render.text import plain
from reports.results.facts import run_facts
from reports.results.failures import Failure
from reports.results.table import Table
from reports.table.cost import training_seconds


def failures_section(failed: Sequence[Failure]) -> Iterator[str]:
    """Messages of failed runs, each in its own element."""
    if failed:
        yield "<section><h2>Failures</h2>"
        for failure in failed:
            head = f"{failure.row}, {seed_in_words(failure.seed)}: {failure.kind.replace('_', ' ') or 'ended'}"
            where = f"run {failure.run_id}, attempt {failure.attempt}"
            message = escape_html("\n".join(map(plain, failure.message.split("\n"))), quote=True)
            yield f"<details open><summary>{escape(head)} <span class=soft>{escape(where)}</span></summary>"
            yield f"<pre>{message}</pre></details>"
        yield "</section>"


def runs_section(table: Table) -> Iterator[str]:
    """A table with one line per run."""
    heads = ("row", "seed", "run", "state", "steps", "minutes", "device", "precision", "commit")
    yield "<section><h2>Runs</h2><details><summary>Every run of the table</summary>"
    yield f'<div class="scroll"><table class="runs"><thead><tr>{_line("th", heads)}</tr></thead><tbody>'
    for row in table.rows:
        for outcome in row.outcomes:
            run, facts, seconds = outcome.run, run_facts(outcome.record), training_seconds(outcome)
            minutes = f"{seconds / 60:.1f}" if seconds is not None else ""
            steps = "" if facts["steps"] is None else facts["steps"]
            made = (facts["device"] or "", facts["precision"] or "", (facts["commit"] or "")[:10])
            state = "imported" if run.imported and outcome.record else run.state
            named = (row.key, run.seed or "ensemble", run.run_id, state)
            yield f"<tr>{_line('td', (*named, steps, minutes, *made))}</tr>"
    yield "</tbody></table></div></details></section>"


def _line(tag: str, values: Iterable[object]) -> str:
    return "".join(f"<{tag}>{escape(value)}</{tag}>" for value in values)


def escape(text: object) -> str:
    """Text of an element or of a quoted attribute."""
    return escape_html(plain(text), quote=True)
