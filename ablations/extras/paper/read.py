r"""Read a paper's comments on its tables, which are not printed, and the numbers that it prints.

    % table: table3 --profile small --store runs          in Markdown: <!-- table: … -->, in Typst: // table: …
    % claim: A-h1 is worse than base in bleu by at least 0.5

A claim is about the last table named before it, in the order in which a reader meets the files: those that `\input`,
`\include`, `\subfile` and `\import` name are read where they are named. `\abl{…}` prints numbers of the files that
`ablations report --macros` wrote.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from ablations.study.study import Study
from experiments.errors import UserError
from reports.render.latex import escape
from reports.render.numbers import defined, numbers, used
from reports.render.printed import MADE_BY, asked_for
from reports.results.table import Table
from reports.spec.sentences import Claim, compared, parse

DEEPEST = 20  # files within files
LARGEST = 16 << 20  # bytes of a text

_TEX_COMMENT = re.compile(r"(?<!\\)(?:\\\\)*(%+(.*))$", re.MULTILINE)
_LINE_COMMENT = re.compile(r"^[ \t]*(%+(.*))$", re.MULTILINE)  # in a file of another language: a whole line
_HTML_COMMENT = re.compile(r"(<!--(.*?)-->)", re.DOTALL)
_TYPST_COMMENT = re.compile(r"(?<!:)(//(.*))$", re.MULTILINE)
_SAID = re.compile(r"(table|[Cc]laim|CLAIM) ?: ?(.*)")
_INCLUDED = re.compile(
    r"\\(?:input|include|subfile|subfileinclude|InputIfFileExists)\s*\{(?P<name>[^{}]*)\}"
    r"|\\input[ \t]+(?P<word>[^\s{}\\%]+)"
    r"|\\(?:sub)?(?:import|inputfrom|includefrom)\*?\s*\{(?P<folder>[^{}]*)\}\s*\{(?P<within>[^{}]*)\}"
    r'|#include[ \t]*\(?[ \t]*"(?P<typst>[^"\n]+)"'
    r"|\{\{<[ \t]*include[ \t]+(?P<quarto>\S+)[ \t]*>\}\}"
)


@dataclass(frozen=True)
class PaperClaim:
    """A claim of a paper."""

    text: str
    file: Path
    line: int


@dataclass(frozen=True)
class PaperTable:
    """A table that a paper names, and what the paper says of it."""

    words: tuple[str, ...]  # that select it
    named_in: Path  # the file that names it
    claims: tuple[PaperClaim, ...] = ()
    file: Path | None = None  # of its numbers
    text: str = ""


@dataclass
class Paper:
    """A paper with the files that it reads."""

    file: Path
    tables: list[PaperTable] = field(default_factory=list)
    unread_claims: list[str] = field(default_factory=list)  # a sentence for each comment that looks like a claim
    unread_files: list[str] = field(default_factory=list)  # a sentence for each inclusion that was not read
    files: list[Path] = field(default_factory=list)  # in the order of reading
    texts: list[str] = field(default_factory=list)

    @property
    def unread(self) -> list[str]:
        """The claims and files that were not read, a sentence each."""
        return [*self.unread_claims, *self.unread_files]

    @property
    def says_something(self) -> bool:
        """Return whether it says which tables it is about, or prints their numbers."""
        return bool(self.tables) or any(used(text) for text in self.texts)

    def where(self, file: Path, line: int) -> str:
        """A place, for messages."""
        return f"{self.shown(file)}, line {line}"

    def shown(self, file: Path) -> str:
        """A file's name, from the folder of the paper if it lies in it."""
        within = file.is_relative_to(self.file.parent) and file != self.file
        return str(file.relative_to(self.file.parent)) if within else str(file)


class _Comment(NamedTuple):
    """A comment, and where in the text it begins."""

    start: int
    end: int
    text: str


def read_paper(file: Path, text: str) -> Paper:
    """A paper with its tables, their claims, and its files of numbers.

    Raises UserError for a claim before any table, and for a number that no file defines.
    """
    paper = Paper(file)
    numbers_files: dict[Path, str] = {}
    _read(paper, file, text, (file.absolute(),), numbers_files)
    missing = {name for one in paper.texts for name in used(one)}
    for path, content in numbers_files.items():
        paper.tables.append(_of_numbers(paper, path, content))
        missing -= set(defined(content))
    if missing:
        raise UserError(f"{file}: the numbers {', '.join(sorted(missing))} are in no file that it includes.")
    return paper


def _read(paper: Paper, file: Path, text: str, opened: tuple[Path, ...], numbers_files: dict[Path, str]) -> None:
    """Read a file and, where they are named, those that it includes. opened: the files around it, and itself."""
    paper.files.append(file)
    if defined(text):
        numbers_files[file] = text
        return
    paper.texts.append(text)
    comments = list(_comments(file, text))
    without = _blanked(text, comments)
    found: list[tuple[int, _Comment | re.Match[str]]] = [(comment.start, comment) for comment in comments]
    found += [(match.start(), match) for match in _INCLUDED.finditer(without)]
    for start, one in sorted(found, key=lambda item: item[0]):
        line = text.count("\n", 0, start) + 1
        if isinstance(one, _Comment):
            _take(paper, file, line, one.text)
            continue
        path, why = _file_of(one, file, paper.file.parent)
        content = "" if why else _content(path)
        if not why and content is None:
            why = "it cannot be read as text"
        if not why and (path.absolute() in opened or len(opened) > DEEPEST):
            why = "it includes itself" if path.absolute() in opened else "files are nested too deep"
        if why:
            paper.unread_files.append(f"{paper.where(file, line)}: {one[0].strip()} was not read: {why}.")
        elif content is not None:
            _read(paper, path, content, (*opened, path.absolute()), numbers_files)


def _take(paper: Paper, file: Path, line: int, comment: str) -> None:
    """Add a comment's table or claim to the paper, or a warning if it only looks like a claim."""
    words = " ".join(comment.split())
    said = _SAID.fullmatch(words)
    if said is None or (said[1] not in ("table", "claim") and not _is_claim(said[2])):
        if _looks_like_a_claim(words):
            paper.unread_claims.append(
                f'{paper.where(file, line)}: the comment "{words[:200]}" was not read as a claim. If it is one, write '
                "claim: and the sentence."
            )
    elif said[1] == "table":
        try:
            paper.tables.append(PaperTable(tuple(shlex.split(said[2])), file))
        except ValueError as error:
            raise UserError(f"{paper.where(file, line)}: table: {said[2]}: {error}. Close the quotes.") from None
    elif not paper.tables:
        raise UserError(
            f'{paper.where(file, line)}: the claim "{said[2]}" has no table. Name the table above it: % table: STUDY …'
        )
    else:
        last = paper.tables[-1]
        paper.tables[-1] = replace(last, claims=(*last.claims, PaperClaim(said[2], file, line)))


def _looks_like_a_claim(words: str) -> bool:
    """Return whether a comment begins with the word claim, or has the form of a claim, perhaps behind another word."""
    if re.match(r"(?i)\W*claims?\b", words):
        return True
    return any(map(_is_claim, (words, words.partition(":")[2])))


def _is_claim(sentence: str) -> bool:
    try:
        parse(sentence)
    except ValueError:
        return False
    return True


def _comments(file: Path, text: str) -> Iterator[_Comment]:
    """All comments of a text: of LaTeX also those behind text on their line."""
    if file.suffix in (".tex", ".ltx", ".sty"):
        forms = [_TEX_COMMENT]
    else:
        forms = [_HTML_COMMENT, _LINE_COMMENT, *([_TYPST_COMMENT] if file.suffix == ".typ" else [])]
    taken: list[tuple[int, int]] = []
    for form in forms:
        for found in form.finditer(text):
            if not any(start <= found.start(1) < stop for start, stop in taken):
                taken.append(found.span(1))
                yield _Comment(*found.span(1), found[2].strip())


def _blanked(text: str, comments: Sequence[_Comment]) -> str:
    """The text with blanks in place of its comments, so that places stay."""
    for comment in comments:
        blanks = re.sub(r"[^\n]", " ", text[comment.start : comment.end])
        text = text[: comment.start] + blanks + text[comment.end :]
    return text


def included(file: Path, text: str, folder: Path) -> Iterator[Path]:
    """The files that a file of a folder includes, as far as they are there."""
    for found in _INCLUDED.finditer(_blanked(text, list(_comments(file, text)))):
        for top in (folder, file.parent):
            path, why = _file_of(found, file, top)
            if not why:
                yield path


def _file_of(found: re.Match[str], file: Path, top: Path) -> tuple[Path, str]:
    """The file that an inclusion names, and why it is not read; "" if it can be.

    LaTeX looks from the folder of the paper, packages for sub-files from that of the file.
    """
    name = next(found[part] for part in ("name", "word", "within", "typst", "quarto") if found[part] is not None)
    name = f"{found['folder'] or ''}{'/' if found['folder'] and not found['folder'].endswith('/') else ''}{name}"
    name = name.strip().strip('"')
    if not name or set(name) & set("\\#$"):
        return file, "its name contains a command"
    try:
        for folder in dict.fromkeys((top, file.parent)):
            for path in (folder / f"{name}.tex", folder / name):
                if path.is_file():
                    return path, ""
    except (OSError, ValueError):
        return file, "no file can have this name"
    return file, "the file does not exist"


def _content(path: Path) -> str | None:
    """A file's text, whatever its encoding; None if it cannot be read, or is no text."""
    try:
        if path.stat().st_size > LARGEST:
            return None
        content = path.read_bytes()
    except OSError:
        return None
    return None if b"\0" in content else content.decode("utf-8", errors="replace")


def _of_numbers(paper: Paper, path: Path, content: str) -> PaperTable:
    """The table of a file of numbers: by the file's own words, where the paper says that its study lies."""
    asked = asked_for(content, "latex")
    named = next((one for one in paper.tables if asked and one.words and Path(one.words[0]).name == asked[0]), None)
    words = named.words if named else tuple(asked[:1])
    return PaperTable((*words, *asked[1:]), named.named_in if named else path, file=path, text=content)


def is_printed(text: str) -> bool:
    """Return whether a file was written by `ablations report`: a table or numbers."""
    return MADE_BY in text


def checkable(study: Study, claims: Sequence[PaperClaim], paper: Paper) -> tuple[list[PaperClaim], list[str]]:
    """The claims that can be checked in a study's table, and a message for each of the others, with its place."""
    found, wrong = list[PaperClaim](), list[str]()
    for sentence in claims:
        try:
            compared(parse(sentence.text), study.variations, study.cited)
        except ValueError as error:
            said = str(error).removeprefix(f'"{sentence.text}" ')
            wrong.append(f'{paper.where(sentence.file, sentence.line)}: claim "{sentence.text}": {said}.')
        else:
            found.append(sentence)
    return found, wrong


def with_claims(study: Study, claims: Sequence[PaperClaim]) -> Study:
    """The study with a paper's claims in place of its own."""
    return study.model_copy(update={"claims": tuple(Claim(check=sentence.text) for sentence in claims)})


def changed(paper: PaperTable, table: Table) -> Iterator[str]:
    """A line for each number of a file that the store gives otherwise now."""
    now = {name: escape(text) for name, text in numbers(table).items()}
    for name, text in defined(paper.text).items():
        if now.get(name) != text:
            yield f"{name}: {text} in {paper.file.name if paper.file else ''}, {now.get(name, 'a gap')} in the store"
