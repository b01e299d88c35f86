"""Verbs that check a printed table: `ablations verify`, `explain` (trace its cells to runs) and `compare`."""

import argparse
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from ablations.cli import options
from ablations.cli.terminal import DONE, FAILED, answer, say
from ablations.service.selected import SelectedTable, Selectors, StoreOptions, choose_table, holds_table
from ablations.service.tables import BY_STUDY, TableOptions, study_queued, table_of, with_corpus
from experiments.errors import UserError
from experiments.extensions import added, load
from experiments.messages import number
from experiments.store import ledger
from experiments.store.durable import read_regular
from reports.audit import explain as explaining
from reports.audit import paper as papers
from reports.audit import verify as verifying
from reports.audit.compare import as_records, as_text
from reports.audit.compare import compare as compare_tables
from reports.render.numbers import defined
from reports.render.printed import asked_for
from reports.results.results import counts_in
from reports.table.claims import HOLDS

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
        str | None, typer.Option(metavar="MODE", help="As given when the table was printed.")
    ] = None,
    format_: Annotated[str | None, typer.Option("--format", metavar="F", help=f"One of: {FORMATS}")] = None,
    printing: TableOptions,
    as_json: options.Json = False,
) -> None:
    """Compute a table again from the store and list the cells that changed. Exits 1 if any did.

    Of a bundle alone: which of its numbers follow from its files.
    A file contains its study, selectors and choices of columns; options given here replace those. Of a paper: its
    claims and the numbers that it prints (docs/paper.md).
    """
    if study is None or file.is_dir():
        for place in added("verifiers").values():
            load(place)(file, selectors, as_json)
    if file.is_dir() or study is None:
        read = _papers_of(file)
        if file.is_dir() or any(paper.says_something or paper.unread_claims for paper in read):
            _verify_papers(file, read, selectors, as_json)
            return
    facts, lines, same = _compared(file, study, selectors, significance, format_, printing)
    answer(as_json, facts, lines)
    raise typer.Exit(DONE if same else FAILED)


def text_of(file: Path) -> str:
    """A file's text. Raises UserError."""
    if file.exists() and not (file.is_file() or file.is_dir()):  # reading a pipe would block
        raise UserError(f"{file} is not a regular file.")
    try:
        return read_regular(file).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}.") from None


def _compared(
    file: Path,
    study: str | None,
    selectors: Selectors,
    significance: str | None = None,
    format_: str | None = None,
    printing: TableOptions = BY_STUDY,
) -> tuple[dict[str, Any], list[str], bool]:
    """A printed table beside what the store gives now: as JSON, in lines, and whether they are equal."""
    text = text_of(file)
    format_ = format_ or verifying.SUFFIXES.get(file.suffix, "")
    if format_ not in verifying.FORMATS:
        raise UserError(f"{file}: its format is unknown. Add --format with one of {FORMATS}.")
    said = _said(asked_for(text, format_))
    named, tests = said.pop("study", None), said.pop("significance", None)
    if study is None and named is None:
        raise UserError(f"{file} does not name its study: write it behind the file.")
    chosen = _chosen(said, study or str(named), file, selectors)
    said_printing = {name: said[name] for name in _PRINTING if name in said and getattr(printing, name) is None}
    printing = replace(printing, **said_printing)
    table = table_of(chosen, significance or tests or "auto", printing=printing)
    verdict = verifying.verify(text, table, format_)
    unchecked = list(verifying.unchecked(table))
    if not verdict.same and (stale := [row.key for row in table.rows if row.stale]):
        # A table that was printed before the code changed has no marks of it; its numbers are still those of the runs.
        plan = chosen.plan.without_stale_marks()
        unmarked = table_of(replace(chosen, replan=lambda: plan), significance or tests or "auto", printing=printing)
        before = verifying.verify(text, unmarked, format_)
        if len(before.changed) < len(verdict.changed):
            verdict = before
            unchecked.append(
                f"Made by other code than the present one: {', '.join(stale)}. The numbers are as recorded."
            )
    wrong = ledger.damaged(chosen.store)
    facts = {"file": str(file), "cells": verdict.cells, "changed": list(verdict.changed), "unchecked": unchecked}
    lines = [f"{file}: {number(verdict.cells, 'cell')}, all equal to the store's", *unchecked]
    lines = [*(lines if verdict.same else listed(file, verdict.changed)), *wrong]
    return facts | {"ledger": wrong}, lines, verdict.same and not wrong


def _papers_of(file: Path) -> list[papers.Paper]:
    """A paper, or those of a folder: files of LaTeX that name tables or were printed, and that no other one reads."""
    if not file.is_dir():
        return [] if is_data(file) else [papers.read_paper(file, text_of(file))]
    texts = {path: text_of(path) for path in sorted(file.rglob("*.tex")) if path.is_file()}
    within = {other.absolute() for path, text in texts.items() for other in papers.included(path, text, file)}
    read = [papers.read_paper(path, text) for path, text in texts.items() if path.absolute() not in within]
    return [one for one in read if one.says_something or one.unread_claims or papers.is_printed(texts[one.file])]


def is_data(file: Path) -> bool:
    """Whether a file is a printed table for programs, which has no comments."""
    return file.suffix in (".csv", ".json", ".html")


def _verify_papers(file: Path, read: Sequence[papers.Paper], selectors: Selectors, as_json: bool) -> None:
    """Check papers, print what is found, and exit.

    Raises UserError if nothing was checked; and for claims that cannot be checked, after the others are.
    """
    wrong: list[str] = []
    found = [line for paper in read for line in _of_paper(paper, selectors, wrong)]
    unread = [line for paper in read for line in paper.unread]
    claims = sum(len(table.claims) for paper in read for table in paper.tables)
    if not wrong and (not found or (not claims and any(paper.unread_claims for paper in read))):
        raise UserError(
            f"{file}: no sentence was checked. Write % table: STUDY and % claim: SENTENCE (docs/paper.md). "
            f"{' '.join(unread)}".rstrip()
        )
    facts = {"found": [{"text": text, "holds": holds} for text, holds in found], "unread": unread}
    answer(as_json, {"file": str(file)} | facts | {"wrong": wrong}, [*(text for text, _ in found), *unread])
    if wrong:
        raise UserError("\n".join(wrong))
    raise typer.Exit(DONE if all(holds for _, holds in found) else FAILED)


def _of_paper(paper: papers.Paper, selectors: Selectors, wrong: list[str]) -> Iterator[tuple[str, bool]]:
    """What is found of each claim, each file of numbers and each table, and whether that is as the paper says.

    wrong: takes a message for each claim that cannot be checked.
    """
    if not paper.says_something:
        if papers.is_printed(text_of(paper.file)):
            _, lines, same = _compared(paper.file, None, selectors)
            yield from ((line, same) for line in lines)
        return
    for one in paper.tables:
        chosen = named_table(one, paper, selectors)
        claims, refused = papers.checkable(chosen.plan.study, one.claims, paper)
        wrong += refused
        table = table_of(_with_claims(chosen, claims))
        for claim, sentence in zip(table.claims, claims, strict=True):
            place = "" if sentence.file == paper.file else f"{paper.shown(sentence.file)}: "
            yield f"{place}{claim.check}: {claim.here.state} ({claim.here.words})", claim.here.state == HOLDS
        if one.file:
            differences = list(papers.changed(one, table))
            yield from ((line, False) for line in differences)
            if not differences:
                yield f"{one.file.name}: {number(len(defined(one.text)), 'number')}, all equal to the store's", True


def named_table(one: papers.PaperTable, paper: papers.Paper, selectors: Selectors) -> SelectedTable:
    """The table that a line of a paper names, without the study's claims. Raises UserError."""
    said = _said(list(one.words), paper.shown(one.named_in) if one.file is None else "")
    if "study" not in said:
        raise UserError(f"{paper.shown(one.named_in)}: this line names no study: table: {' '.join(one.words)}")
    places = (one.named_in, paper.file)
    beside = next((place for place in places if (place.parent / said["study"]).is_file()), paper.file)
    return _with_claims(_chosen(said, said["study"], beside, selectors), ())  # the study's own are not the paper's


def _with_claims(chosen: SelectedTable, claims: Sequence[papers.Sentence]) -> SelectedTable:
    """The table with a paper's claims."""
    plan = chosen.plan
    plan = replace(plan, study=papers.with_claims(plan.study, claims))
    return replace(chosen, study=plan.study, replan=lambda: plan)


SELECTING = ("profile", "corpus", "rows", "seeds", "sets", "store", "state_dir")


def _chosen(said: Mapping[str, Any], study: str, file: Path, selectors: Selectors) -> SelectedTable:
    """The table of a file's own words, where the command has no others.

    Its study is a built-in one, or a .toml file beside the file, here, or where it was queued.
    """
    if not holds_table(study):
        unset = (None, StoreOptions().store)
        own = {n: value for n, value in said.items() if n in SELECTING and getattr(selectors, n) in unset}
        selectors = with_corpus(replace(selectors, **own))
        if study.endswith(".toml"):
            beside = file.parent / study
            study = str(beside) if beside.is_file() else study_queued(selectors, study)
    return choose_table(study, selectors, say)


def listed(file: Path, differences: Sequence[str]) -> list[str]:
    """Lines that name the differences that were found in a file."""
    return [f"{file}: {number(len(differences), 'difference')}", *differences]


def _said(words: list[str], where: str = "") -> dict[str, Any]:
    """The selectors recorded in a file; {} if they cannot be parsed.

    where: of a line that a person wrote, its place. Then UserError is raised for what cannot be parsed.
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
        raise UserError(
            f"{where}: table: {shlex.join(words)}: {' '.join(unknown)} cannot be read as options of `report`."
        )
    return {name: value for name, value in vars(found).items() if value is not None}


def explain(
    study: options.StudyOrBundle,
    cell: Annotated[
        str, typer.Argument(metavar="ROW.COLUMN", help="For example A-h16.bleu, or ROW alone for all its cells.")
    ],
    *,
    selectors: Selectors,
    significance: options.Significance = "auto",
    full: Annotated[bool, typer.Option("--full", help="All facts, not the first ten lines.")] = False,
    as_json: options.Json = False,
) -> None:
    """Trace a cell to its runs: values, command, commit, files; with --full data digests, decoding, signatures too."""
    chosen = choose_table(study, selectors, say)
    found = explaining.explain(table_of(chosen, significance), cell)
    answer(as_json, found, [(explaining.as_text if full else explaining.in_short)(found).rstrip("\n")])


# --- `ablations compare`: compare a table with another study, store or bundle


def compare(
    study: options.StudyOrBundle,
    against: Annotated[str, typer.Argument(metavar="OTHER", help="Another store, a bundle, another study.")],
    *,
    selectors: Selectors,
    as_json: options.Json = False,
) -> None:
    """List the cells that differ, with intervals. Selectors apply to both sides; so does STUDY for another store."""

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
        raise UserError(f"{name} has no number for any cell of {table.name}, so there is nothing to compare.")
    text = as_text(cells, f"{table.title or table.name}: here and there", {"there": name})
    answer(as_json, as_records(cells), [text.rstrip("\n")])
