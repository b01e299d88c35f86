r"""Read the tables and claims that a paper names in comments, and the numbers that it prints.

    % table: table3 --profile small --store runs          in Markdown: <!-- table: … -->, in Typst: // table: …
    % claim: A-h1 is worse than base in bleu by at least 0.5

A claim is checked in the last table that a comment names before it. A file that `\input`, `\include`, `\subfile` or
`\import` names is read at the place of this command in the text. `\abl{…}` prints a number from a file that
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
from reports.render.latex_text import escape
from reports.render.numbers import defined, numbers, used
from reports.render.printed_command import MADE_BY, asked_for
from reports.results.table import Table
from reports.spec.sentences import Claim, compared, parse

DEEPEST = 20  # levels of nested inclusions
LARGEST = 16 << 20  # bytes of a file

_TEX_COMMENT = re.compile(r"(?<!\\)(?:\\\\)*(%+(.*))$", re.MULTILINE)
_LINE_COMMENT = re.compile(r"^[ \t]*(%+(.*))$", re.MULTILINE)  # in files other than LaTeX, a comment is a whole line
_HTML_COMMENT = re.compile(r"(<!--(.*?)-->)", re.DOTALL)
_TYPST_COMMENT = re.compile(r"(?<!:)(//(.*))$", re.MULTILINE)
_DIRECTIVE = re.compile(r"(table|[Cc]laim|CLAIM) ?: ?(.*)")
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
    """A table that a paper names, with the claims that the paper makes about it."""

    words: tuple[str, ...]  # command-line arguments that select the table
    named_in: Path  # the file that names the table
    claims: tuple[PaperClaim, ...] = ()
    file: Path | None = None  # the file of numbers, if the paper includes one
    text: str = ""  # content of this file


@dataclass
class Paper:
    """A paper, with the files that it includes."""

    file: Path
    tables: list[PaperTable] = field(default_factory=list)
    unread_claims: list[str] = field(default_factory=list)  # one sentence for each comment that only resembles a claim
    unread_files: list[str] = field(default_factory=list)  # one sentence for each included file that was not read
    files: list[Path] = field(default_factory=list)  # all files of the paper, in the order in which they are read
    texts: list[str] = field(default_factory=list)  # contents of these files, without files of numbers

    @property
    def unread(self) -> list[str]:
        """One sentence for each claim and each file that was not read."""
        return [*self.unread_claims, *self.unread_files]

    @property
    def says_something(self) -> bool:
        """True if the paper names a table or prints a number of a table."""
        return bool(self.tables) or any(used(text) for text in self.texts)

    def where(self, file: Path, line: int) -> str:
        """Return a file and a line, for messages."""
        return f"{self.shown(file)}, line {line}"

    def shown(self, file: Path) -> str:
        """Return the name of a file for messages, relative to the folder of the paper if the file is in it."""
        within = file.is_relative_to(self.file.parent) and file != self.file
        return str(file.relative_to(self.file.parent)) if within else str(file)


class _Comment(NamedTuple):
    """A comment and its position in the text."""

    start: int
    end: int
    text: str


def read_paper(file: Path, text: str) -> Paper:
    """Read a paper with its tables, claims and files of numbers.

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
    """Read a file and the files that it includes, in the order of the text.

    opened: the file and the files that include it, directly or indirectly.
    """
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
    """Add the table or claim in a comment to the paper, or a warning if the comment only resembles a claim."""
    words = " ".join(comment.split())
    found = _DIRECTIVE.fullmatch(words)
    if found is None or (found[1] not in ("table", "claim") and not _is_claim(found[2])):
        if _looks_like_a_claim(words):
            paper.unread_claims.append(
                f'{paper.where(file, line)}: the comment "{words[:200]}" was not read as a claim. If it is one, write '
                "claim: and the sentence."
            )
    elif found[1] == "table":
        try:
            paper.tables.append(PaperTable(tuple(shlex.split(found[2])), file))
        except ValueError as error:
            raise UserError(f"{paper.where(file, line)}: table: {found[2]}: {error}. Close the quotes.") from None
    elif not paper.tables:
        raise UserError(
            f'{paper.where(file, line)}: the claim "{found[2]}" has no table. Name the table above it: % table: STUDY …'
        )
    else:
        last = paper.tables[-1]
        paper.tables[-1] = replace(last, claims=(*last.claims, PaperClaim(found[2], file, line)))


def _looks_like_a_claim(words: str) -> bool:
    """Return whether a comment begins with the word "claim", or has the form of a claim, perhaps after a colon."""
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
    """Yield the comments of a text. In LaTeX, a comment may follow text on the same line."""
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
    """Return the text with its comments replaced by spaces, so that positions do not change."""
    for comment in comments:
        blanks = re.sub(r"[^\n]", " ", text[comment.start : comment.end])
        text = text[: comment.start] + blanks + text[comment.end :]
    return text


def included(file: Path, text: str, folder: Path) -> Iterator[Path]:
    """Yield the existing files that `file` includes. folder: the folder of the paper."""
    for found in _INCLUDED.finditer(_blanked(text, list(_comments(file, text)))):
        for top in (folder, file.parent):
            path, why = _file_of(found, file, top)
            if not why:
                yield path


def _file_of(found: re.Match[str], file: Path, top: Path) -> tuple[Path, str]:
    """Return the file that an inclusion names, and the reason why it cannot be read ("" if it can).

    LaTeX resolves names in the folder of the paper. Packages for sub-files resolve names in the folder of the including
    file. This function tries `top` first, then the folder of the including file.
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
    """Return the text of a file in any encoding; None if the file cannot be read or is not text."""
    try:
        if path.stat().st_size > LARGEST:
            return None
        content = path.read_bytes()
    except OSError:
        return None
    return None if b"\0" in content else content.decode("utf-8", errors="replace")


def _of_numbers(paper: Paper, path: Path, content: str) -> PaperTable:
    """Return the table of a file of numbers.

    The file contains the arguments of the command that wrote it. If the paper names the same study, its path is used.
    """
    asked = asked_for(content, "latex")
    named = next((one for one in paper.tables if asked and one.words and Path(one.words[0]).name == asked[0]), None)
    words = named.words if named else tuple(asked[:1])
    return PaperTable((*words, *asked[1:]), named.named_in if named else path, file=path, text=content)


def is_printed(text: str) -> bool:
    """Return whether `ablations report` wrote the file, as a table or as numbers."""
    return MADE_BY in text


def checkable(study: Study, claims: Sequence[PaperClaim], paper: Paper) -> tuple[list[PaperClaim], list[str]]:
    """Return the claims that can be checked in the table of a study, and a message for each other claim.

    The messages contain file and line.
    """
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
    """Return the study with its claims replaced by those of a paper."""
    return study.model_copy(update={"claims": tuple(Claim(check=sentence.text) for sentence in claims)})


def changed(paper: PaperTable, table: Table) -> Iterator[str]:
    """Yield a line for each number of a file that differs from the number in the store."""
    now = {name: escape(text) for name, text in numbers(table).items()}
    for name, text in defined(paper.text).items():
        if now.get(name) != text:
            yield f"{name}: {text} in {paper.file.name if paper.file else ''}, {now.get(name, 'a gap')} in the store"
