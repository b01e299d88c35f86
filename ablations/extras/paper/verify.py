"""The command `ablations verify` for a paper: check its claims, its tables and the numbers that it prints."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import typer

from ablations.cli.inspect import compared, selectors_in, table_named, text_of
from ablations.cli.terminal import DONE, FAILED, answer
from ablations.extras.paper import read as papers
from ablations.service.selected import SelectedTable, Selectors
from ablations.service.tables import table_of
from experiments.errors import UserError
from experiments.messages import number
from reports.render.numbers import defined
from reports.table.claims import HOLDS


def verify_paper(file: Path, selectors: Selectors, as_json: bool) -> None:
    """Check a paper, or the papers in a folder, print the findings, and exit.

    Return without output if the file is not a paper.
    """
    read = _papers_of(file)
    if file.is_dir() or any(paper.says_something or paper.unread_claims for paper in read):
        _verify_papers(file, read, selectors, as_json)


def _papers_of(file: Path) -> list[papers.Paper]:
    """Read the paper `file`, or the papers in the folder `file`.

    A paper in a folder is a LaTeX file that no other LaTeX file includes. It names a table, prints a number of a table,
    is a printed table, or contains a comment that resembles a claim.
    """
    if not file.is_dir():
        return [] if is_data(file) else [papers.read_paper(file, text_of(file))]
    texts = {path: text_of(path) for path in sorted(file.rglob("*.tex")) if path.is_file()}
    within = {other.absolute() for path, text in texts.items() for other in papers.included(path, text, file)}
    read = [papers.read_paper(path, text) for path, text in texts.items() if path.absolute() not in within]
    return [one for one in read if one.says_something or one.unread_claims or papers.is_printed(texts[one.file])]


def is_data(file: Path) -> bool:
    """Return whether a file is a printed table in a format for programs, which has no comments."""
    return file.suffix in (".csv", ".json", ".html")


def _verify_papers(file: Path, read: Sequence[papers.Paper], selectors: Selectors, as_json: bool) -> None:
    """Check papers, print the findings, and exit.

    Raises UserError if nothing was checked, if comments resemble claims but no claim was read, and, after all checks,
    if some claims cannot be checked.
    """
    wrong: list[str] = []
    found = [line for paper in read for line in _of_paper(paper, selectors, wrong)]
    unread = [line for paper in read for line in paper.unread]
    claims = sum(len(table.claims) for paper in read for table in paper.tables)
    if not wrong and (not found or (not claims and any(paper.unread_claims for paper in read))):
        raise UserError(
            f"{file}: no claim was found. Write % table: STUDY and % claim: SENTENCE "
            f"(ablations/extras/paper/paper.md). {' '.join(unread)}".rstrip()
        )
    facts = {"found": [{"text": text, "holds": holds} for text, holds in found], "unread": unread}
    answer(as_json, {"file": str(file)} | facts | {"wrong": wrong}, [*(text for text, _ in found), *unread])
    if wrong:
        raise UserError("\n".join(wrong))
    raise typer.Exit(DONE if all(holds for _, holds in found) else FAILED)


def _of_paper(paper: papers.Paper, selectors: Selectors, wrong: list[str]) -> Iterator[tuple[str, bool]]:
    """Yield lines for messages, each with True if it reports no error.

    There is one line for each claim, for each wrong number, and for each file whose numbers are all right. If the paper
    is a printed table, the lines are those of its comparison with the store.

    wrong: receives a message for each claim that cannot be checked.
    """
    if not paper.says_something:
        if papers.is_printed(text_of(paper.file)):
            _, lines, same = compared(paper.file, None, selectors)
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
    """Return the table that a line of a paper names, without the claims of its study.

    Raises UserError if the line names no study, or if the table cannot be selected.
    """
    said = selectors_in(list(one.words), paper.shown(one.named_in) if one.file is None else "")
    if "study" not in said:
        raise UserError(f"{paper.shown(one.named_in)}: this line names no study: table: {' '.join(one.words)}")
    places = (one.named_in, paper.file)
    beside = next((place for place in places if (place.parent / said["study"]).is_file()), paper.file)
    # Claims of the study are dropped, because only those of the paper are checked.
    return _with_claims(table_named(said, said["study"], beside, selectors), ())


def _with_claims(chosen: SelectedTable, claims: Sequence[papers.PaperClaim]) -> SelectedTable:
    """Return the table with the claims of a paper."""
    plan = chosen.plan
    plan = replace(plan, study=papers.with_claims(plan.study, claims))
    return replace(chosen, study=plan.study, replan=lambda: plan)
