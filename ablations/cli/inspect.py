"""Commands that check a printed table: `ablations verify`, `explain` (trace its cells to runs) and `compare`."""

import argparse
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from ablations.cli import options
from ablations.cli.terminal import DONE, FAILED, answer, say
from ablations.service.selected import SelectedTable, Selectors, StoreOptions, choose_table, holds_table
from ablations.service.tables import BY_STUDY, TableOptions, study_queued, table_of, with_corpus
from experiments.errors import UserError
from experiments.messages import number
from experiments.store import ledger
from experiments.store.durable import read_regular
from model.extensions import added, load
from reports.audit import explain as explaining
from reports.audit import verify as verifying
from reports.audit.compare import as_records, as_text
from reports.audit.compare import compare as compare_tables
from reports.render.printed_command import asked_for
from reports.results.evaluation_readers import counts_in

_PRINTING = [field.name for field in fields(TableOptions)]
FORMATS = ", ".join(verifying.FORMATS)


def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A printed table, a bundle, a paper, or its folder.")],
    study: Annotated[
        str | None, typer.Argument(metavar="[STUDY]", help="A study or a bundle, if the file does not name it.")
    ] = None,
    *,
    selectors: Selectors,
    significance: Annotated[
        str | None,
        typer.Option(
            metavar="MODE", help="The test, if the file does not name it: auto, seeds, paired, sentences or none."
        ),
    ] = None,
    format_: Annotated[str | None, typer.Option("--format", metavar="F", help=f"One of: {FORMATS}")] = None,
    printing: TableOptions,
    as_json: options.Json = False,
) -> None:
    """Compute a table again from the store and list the cells that changed. Exits 1 if any did.

    A printed table contains its study, selectors and columns; options given here replace them. For a bundle, check
    which numbers follow from its files. For a paper, check its claims and numbers.
    """
    if study is None or file.is_dir():
        for place in added("verifiers").values():
            load(place)(file, selectors, as_json)
    facts, lines, same = compared(file, study, selectors, significance, format_, printing)
    answer(as_json, facts, lines)
    raise typer.Exit(DONE if same else FAILED)


def text_of(file: Path) -> str:
    """Return the text of a file. Raises UserError if the file cannot be read."""
    if file.exists() and not (file.is_file() or file.is_dir()):  # reading a pipe would block
        raise UserError(f"{file} is not a regular file.")
    try:
        return read_regular(file).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}.") from None


def compared(
    file: Path,
    study: str | None,
    selectors: Selectors,
    significance: str | None = None,
    format_: str | None = None,
    printing: TableOptions = BY_STUDY,
) -> tuple[dict[str, Any], list[str], bool]:
    """Compare a printed table with the results in the store.

    Returns the comparison as JSON and as lines of text, and whether all cells are equal and the ledger is undamaged.
    """
    text = text_of(file)
    format_ = format_ or verifying.SUFFIXES.get(file.suffix, "")
    if format_ not in verifying.FORMATS:
        raise UserError(f"The format of {file} is unknown. Add --format with one of {FORMATS}.")
    recorded = selectors_in(asked_for(text, format_))
    named, tests = recorded.pop("study", None), recorded.pop("significance", None)
    if study is None and named is None:
        raise UserError(f"{file} does not name its study. Name it: ablations verify {file} STUDY.")
    chosen = table_named(recorded, study or str(named), file, selectors)
    recorded_printing = {
        name: recorded[name] for name in _PRINTING if name in recorded and getattr(printing, name) is None
    }
    printing = replace(printing, **recorded_printing)
    table = table_of(chosen, significance or tests or "auto", printing=printing)
    verdict = verifying.verify(text, table, format_)
    unchecked = list(verifying.unchecked(table))
    if not verdict.same and (stale := [row.key for row in table.rows if row.stale]):
        # A table that was printed before the code changed has no marks of stale results. Compare it without marks too.
        plan = chosen.plan.without_stale_marks()
        unmarked = table_of(replace(chosen, replan=lambda: plan), significance or tests or "auto", printing=printing)
        before = verifying.verify(text, unmarked, format_)
        if len(before.changed) < len(verdict.changed):
            verdict = before
            unchecked.append(
                f"Results of other code than the present: {', '.join(stale)}. Their recorded numbers were compared."
            )
    wrong = ledger.damaged(chosen.store)
    facts = {"file": str(file), "cells": verdict.cells, "changed": list(verdict.changed), "unchecked": unchecked}
    lines = [f"{file}: {number(verdict.cells, 'cell')}, all equal to the store's", *unchecked]
    lines = [*(lines if verdict.same else listed(file, verdict.changed)), *wrong]
    return facts | {"ledger": wrong}, lines, verdict.same and not wrong


SELECTING = ("profile", "corpus", "rows", "seeds", "sets", "store", "state_dir")


def table_named(recorded: Mapping[str, Any], study: str, file: Path, selectors: Selectors) -> SelectedTable:
    """Return the table that a printed file names. Selectors of the command replace the selectors in the file.

    study: a built-in study, a bundle, or a .toml file. A .toml file is looked up in the folder of the printed file, in
    the working directory, and in the folders from which this user queued studies.
    """
    if not holds_table(study):
        unset = (None, StoreOptions().store)
        own = {n: value for n, value in recorded.items() if n in SELECTING and getattr(selectors, n) in unset}
        selectors = with_corpus(replace(selectors, **own))
        if study.endswith(".toml"):
            beside = file.parent / study
            study = str(beside) if beside.is_file() else study_queued(selectors, study)
    return choose_table(study, selectors, say)


def listed(file: Path, differences: Sequence[str]) -> list[str]:
    """Return the lines that list the differences found in a file."""
    return [f"{file}: {number(len(differences), 'difference')}", *differences]


def selectors_in(words: list[str], where: str = "") -> dict[str, Any]:
    """Parse recorded arguments of `ablations report`. Return the options by name; {} if `words` cannot be parsed.

    where: if a person wrote the words, their place in a file, for messages. In this case, words that cannot be parsed
    raise UserError.
    """
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
    parser.add_argument("study", nargs="?")
    for name in ("--profile", "--corpus", "--rows", "--significance"):
        parser.add_argument(name)
    parser.add_argument("--seeds", type=int)
    for name in ("--store", "--state-dir"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--set", action="append", dest="sets")
    for name, kind in get_type_hints(TableOptions).items():
        of_bool = bool in get_args(kind)
        parser.add_argument(f"--{name}", action=argparse.BooleanOptionalAction if of_bool else "store", default=None)
    try:
        found, unknown = parser.parse_known_args(words)
    except (argparse.ArgumentError, SystemExit) as error:
        found, unknown = argparse.Namespace(), [str(error)]
        if not where:
            return {}
    if where and unknown:
        raise UserError(f"{where}: table: {shlex.join(words)}: {' '.join(unknown)} are not options of `report`.")
    return {name: value for name, value in vars(found).items() if value is not None}


def explain(
    study: options.StudyOrBundle,
    cell: Annotated[
        str, typer.Argument(metavar="ROW.COLUMN", help="For example A-h16.bleu, or ROW alone for all its cells.")
    ],
    *,
    selectors: Selectors,
    significance: options.Significance = "auto",
    full: Annotated[bool, typer.Option("--full", help="Print all facts, not only ten lines.")] = False,
    as_json: options.Json = False,
) -> None:
    """Trace a cell to its runs: values, command, commit and files; with --full also data, decoding and signatures."""
    chosen = choose_table(study, selectors, say)
    found = explaining.explain(table_of(chosen, significance), cell)
    answer(as_json, found, [(explaining.as_text if full else explaining.in_short)(found).rstrip("\n")])


def compare(
    study: options.StudyOrBundle,
    against: Annotated[str, typer.Argument(metavar="OTHER", help="Another store, a bundle or another study.")],
    *,
    selectors: Selectors,
    as_json: options.Json = False,
) -> None:
    """List the cells that differ between two tables, with intervals. Selectors apply to both tables."""

    def choose(name: str, store: Path) -> SelectedTable:
        chosen = replace(Selectors() if holds_table(name) else selectors, store=store)
        return choose_table(name, chosen, say)

    chosen = choose(study, selectors.store)
    path = Path(against)
    other = choose(study, path) if path.is_dir() else choose(against, selectors.store)
    table, name = table_of(chosen, "none"), path.name or str(path)
    counts = counts_in(chosen.store), counts_in(other.store)
    cells = list(compare_tables(table, table_of(other, "none"), counts))
    if not any(cell.there is not None for cell in cells):
        raise UserError(f"{name} has no number for any cell of {table.spec.name}, so nothing can be compared.")
    text = as_text(cells, f"{table.title or table.spec.name}: here and in {name}", {"there": name})
    answer(as_json, as_records(cells), [text.rstrip("\n")])
