"""What a paper says of its tables, in comments that readers do not see, and the numbers that it prints.

    % table: table3 --profile small --store runs          in Markdown: <!-- table: … -->
    % claim: A-h1 is worse than base in bleu by at least 0.5

A claim is about the last table named before it; `\abl{…}` prints numbers of the files that `\\input` names.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ablations.study.claims import Claim, compared, parse
from ablations.study.study import Study
from experiments.errors import UserError
from reports.render.latex import escape
from reports.render.numbers import defined, numbers, used
from reports.render.printed import asked_for
from reports.results.table import Table

_SAID = re.compile(r"^\s*(?:%|<!--)\s*(table|claim):\s*(.*?)\s*(?:-->)?\s*$", re.MULTILINE)
_INPUT = re.compile(r"\\(?:input|include)\{([^{}]+)\}")


@dataclass(frozen=True)
class PaperTable:
    """A table that a paper names, and what the paper says of it."""

    words: tuple[str, ...]  # that select it
    claims: tuple[str, ...] = ()
    file: Path | None = None  # of its numbers
    text: str = ""


def names_tables(text: str) -> bool:
    """Whether a text says which tables it is about, or prints their numbers."""
    return bool(_SAID.search(text) or used(text) or defined(text))


def tables_of(file: Path, text: str) -> list[PaperTable]:
    """The tables of a paper with their claims, then its files of numbers. Raises UserError for a claim before any."""
    found: list[PaperTable] = []
    if defined(text):
        return [PaperTable(tuple(asked_for(text, "latex")), file=file, text=text)]
    for kind, words in _SAID.findall(text):
        if kind == "table":
            found.append(PaperTable(tuple(shlex.split(words))))
        elif not found:
            raise UserError(
                f'{file}: the claim "{words}" stands before any line that names its table: % table: STUDY …'
            )
        else:
            found[-1] = PaperTable(found[-1].words, (*found[-1].claims, words))
    names = [name if Path(name).suffix else f"{name}.tex" for name in _INPUT.findall(text)]
    missing = set(used(text))
    for path in (file.parent / name for name in names):
        if path.is_file() and (known := defined(content := path.read_text(encoding="utf-8"))):
            asked = asked_for(content, "latex")
            place = next((one.words for one in found if asked and Path(one.words[0]).name == asked[0]), asked[:1])
            found.append(PaperTable((*place, *asked[1:]), file=path, text=content))  # where the paper says it lies
            missing -= set(known)
    if missing:
        raise UserError(f"{file}: no file of numbers that it reads has {', '.join(sorted(missing))}.")
    return found


def with_claims(study: Study, claims: tuple[str, ...], file: Path) -> Study:
    """The study with a paper's claims in place of its own. Raises UserError for a sentence that cannot be checked."""
    for sentence in claims:
        try:
            compared(parse(sentence), study.variations, study.cited)
        except ValueError as error:
            raise UserError(f'{file}, claim "{sentence}": {error}.') from None
    return study.model_copy(update={"claims": tuple(Claim(check=sentence) for sentence in claims)})


def changed(paper: PaperTable, table: Table) -> Iterator[str]:
    """A line for each number of a file that the store gives otherwise now."""
    now = {name: escape(text) for name, text in numbers(table).items()}
    for name, text in defined(paper.text).items():
        if now.get(name) != text:
            yield f"{name}: {text} in {paper.file.name if paper.file else ''}, {now.get(name, 'a gap')} in the store"
