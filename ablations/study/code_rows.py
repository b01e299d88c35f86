"""Rows that change code: `patch`, `commit`, and the rows for which [[ablate]] stands. docs/code-rows.md describes them.

A row's change becomes a tree of git (experiments/store/trees.py) when the study is loaded, so all mistakes in patches
are reported before anything is queued. Base is the last commit with the uncommitted changes of tracked files.
"""

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError

from ablations.study.messages import plain
from experiments.errors import UserError
from experiments.store.trees import LINK, SUBMODULE, GitError, Part, Repository, leads_out, made_by, parts_of
from model.settings import StrictModel

_INSTALLS = re.compile(r"(^|/)(requirements[^/]*\.txt|pyproject\.toml|setup\.(py|cfg)|environment\.ya?ml|[^/]*\.lock)$")
_SHOWN = 5  # names in a sentence


class Ablate(StrictModel):
    """[[ablate]]: a row without each part of a change, or with each alone; its other fields are those of the rows."""

    key: str = ""
    patch: str = ""
    commits: str = ""
    by: Literal["hunk", "file", "commit"] | None = None
    only: bool = False


class Change(NamedTuple):
    """A row's change of code: a patch, a commit in place of base's, or a range of commits. parts: None for all."""

    patch: str
    commit: str
    commits: str
    by_file: bool = False
    parts: tuple[int, ...] | None = None


class CodeOfRow(NamedTuple):
    """A row's tree, what it has otherwise than base's with its size, and the change in words."""

    tree: str
    diff: str
    lines: int
    words: str


def with_rows(table: Mapping[str, Any], origin: str, folder: Path | None) -> dict[str, Any]:
    """The study's table with rows in place of [[ablate]]. Raises UserError."""
    entries, found = table.get("ablate", []), list[dict[str, Any]]()
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UserError(f"{origin}: write [[ablate]] above each entry.")
    code = Code(folder, origin) if entries else None
    for count, entry in enumerate(entries, start=1):
        where = f"{origin}, [[ablate]] number {count}"
        try:
            asked = Ablate.model_validate({n: v for n, v in entry.items() if n in Ablate.model_fields})
        except ValidationError as error:
            raise UserError(f"{where}: {error.errors()[0]['loc'][0]}: {plain(error.errors()[0])}.") from None
        if bool(asked.patch) == bool(asked.commits) or asked.by not in (None, *_BY[bool(asked.commits)]):
            raise UserError(f'{where}: write patch = "everything.diff", with by = "hunk" or "file", or '
                            'commits = "main..feature".')  # fmt: skip
        change = Change(asked.patch, "", asked.commits, asked.by == "file")
        assert code is not None
        for place, part in enumerate(parts := code.parts(change, where), start=1):
            kept = [place] if asked.only else [n for n in range(1, len(parts) + 1) if n != place]
            word = "only" if asked.only else "without"
            short = part.name[:7] if asked.commits else re.sub(r"[^\w.-]+", "_", part.file) if change.by_file else place
            found.append(
                {"label": f"{word} {part.name}", "group": asked.key}
                | {name: value for name, value in entry.items() if name not in ("by", "only")}
                | {"key": f"{asked.key or word}-{short}"[:64], "by_file": change.by_file, "parts": kept}
            )
    rest = {name: value for name, value in table.items() if name != "ablate"}
    return {**rest, "variation": [*table.get("variation", ()), *found]} if found else rest


_BY = (("hunk", "file"), ("commit",))


class Code:
    """The code of a study's rows. Raises UserError for a study that lies in no repository."""

    def __init__(self, folder: Path | None, origin: str) -> None:
        if folder is None:
            raise UserError(f"{origin}: rows that change code are for your own study, beside your own code.")
        self._origin, self._folder = origin, folder.resolve()
        try:
            self._git = Repository(folder)
        except UserError as error:
            raise UserError(f"{origin}: {error}") from None
        self._hidden = list[str]()  # the study and its patches: no part of any tree
        self._protected, self._linked, self._installs = list[str](), list[str](), dict[str, None]()
        self.links, self.base = list[str](), ""  # links: what git does not track, from the study's folder

    # --- base

    def begin(self, changes: Iterable[Change], links: Sequence[str], command: str, protected: Sequence[str]) -> None:
        """Make base's tree, and find what of `links` git does not track. Raises UserError.

        protected: paths from the study's folder that no row may change.
        """
        git = self._git
        self._hidden = [self._path(one) for one in (Path(self._origin).name, *{c.patch for c in changes if c.patch})]
        self._protected = [self._path(path) for path in protected]
        whole, asked = git.base(), [self._path(name) for name in links]
        there = git.entries(git.nothing, whole)
        modules, pointers = {entry.path for entry in there if entry.mode == SUBMODULE}, set(git.pointers())
        found = git.untracked(asked, ignored=True) if asked else []
        linked = dict.fromkeys(path.rstrip("/") for path in (*found, *sorted((modules | pointers) & {*asked})))
        for what, paths in (("a submodule, exported as an empty folder", modules), ("a pointer of git LFS", pointers)):
            if lost := sorted(paths - {*linked}):
                raise UserError(
                    f"{self._origin}: in the trees of the rows, {_names(lost)} is {what}: the content is not in this "
                    f'repository. Give runs that of your working copy: links = ["{lost[0]}"].'
                )
        self.links = [os.path.relpath(path, git.prefix) for path in linked]
        self._linked = list(linked)
        self._hidden += linked
        self.base = git.without(whole, self._hidden)
        self._check(git.nothing, self.base, self._origin)
        made_by[self.base] = git
        tracked = {entry.path for entry in there}
        for word in command.split():
            path = os.path.normpath(git.prefix / word)
            known = (path == one or one.startswith(f"{path}/") for one in tracked)
            if (self._folder / word).exists() and not word.startswith("/") and not (any(known) or _below(path, linked)):
                raise UserError(
                    f"{self._origin}: the command names {word}, which git does not track, so the rows' trees lack it: "
                    f'`git add` it, or give runs that of your working copy: links = ["{word.split("/")[0]}"].'
                )

    def notes(self) -> tuple[str, ...]:
        """What base's code is, for the reader of the table."""
        changed = [path for path in self._git.uncommitted() if path not in self._hidden]
        new = [path for path in self._git.untracked() if path.endswith(".py")]
        said = f"with uncommitted changes in {_names(changed)}" if changed else "without uncommitted changes"
        left = f" Not in it, because git does not track it: {_names(new)}." if new else ""
        installs = f" Rows change {_names([*self._installs])}; nothing is installed anew." if self._installs else ""
        linked = f", and link {_names(self.links)}" if self.links else ""
        return (
            f"Base's code is commit {self._git.head[:12]} of {self._git.top.name}, {said}.{left} All rows run with the "
            f"same interpreter and packages{linked}; each has a tree of its own.{installs}",
        )

    # --- rows

    def of(self, change: Change, where: str) -> CodeOfRow:
        """The code of a row. Raises UserError for a change that no row may have, or that does not apply."""
        git = self._git
        if change.commit:
            commit = self._commit(change.commit, where)
            tree, words = (
                git.without(f"{commit}^{{tree}}", self._hidden),
                f"commit {commit[:7]} {git.log('-1', commit)[0][1]}",
            )
        else:
            parts = self.parts(change, where)
            if refused := [part.file for part in parts if part.file in self._hidden and not change.commits]:
                raise UserError(f"{where}: its patch changes {refused[0]}, which is the study, or a patch or link. "
                                "Take this file out of the patch.")  # fmt: skip
            tree = self._applied(change, parts, where)
            words = f"patch {change.patch}" if change.patch else f"commits {change.commits}"
        changed = self._check(self.base, tree, where)
        if found := [path for path in changed if _below(path, self._protected)]:
            raise UserError(f"{where}: it changes {_names(found)}, which [protected] names: a row must not change what "
                            "measures it.")  # fmt: skip
        self._installs |= dict.fromkeys(path for path in changed if _INSTALLS.search(path))
        made_by[tree] = git
        diff = git.diff(self.base, tree, "--find-renames").decode(errors="replace")
        return CodeOfRow(tree, diff, git.lines(self.base, tree), words)

    def parts(self, change: Change, where: str) -> list[Part]:
        """The hunks or files of a patch, or the commits of a range. Raises UserError."""
        if change.patch:
            found = parts_of(self._read(change.patch, where), by_file=change.by_file)
            if not found:
                raise UserError(f"{where}: {change.patch} has no change: expected what `git diff` prints.")
            return found
        listed = self._git.log("--reverse", "--no-merges", "..".join(self._ends(change, where)))
        if not listed:
            raise UserError(f'{where}: commits = "{change.commits}" has no commits.')
        hide = [f":(exclude,top,literal){path}" for path in self._hidden]
        text = {one: self._git.diff(f"{one}^", one, "--binary", paths=hide) for one, _ in listed}
        return [Part(one, f"{one[:7]} {subject}"[:60], text[one]) for one, subject in listed]

    def _applied(self, change: Change, parts: Sequence[Part], where: str) -> str:
        """The tree with the change, or with some parts of it. Raises UserError, with the parts that others need."""
        git, every = self._git, b"".join(part.text for part in parts)
        begin = self.base
        try:
            if change.commits:
                first, last = self._ends(change, where)
                fork = git.fork(first, last)
                begin = git.without(f"{fork}^{{tree}}", self._hidden) if fork else git.nothing
                if git.apply(begin, every) != git.without(f"{last}^{{tree}}", self._hidden):
                    raise GitError("merges are among them; rebase them to a line")
            elif change.parts is None:
                return git.apply(begin, every)
            else:  # base has all of the patch, or nothing of it
                try:
                    git.apply(begin, every)
                except GitError as error:
                    try:
                        begin = git.apply(begin, every, reverse=True)
                    except GitError:
                        raise error from None
        except GitError as error:
            raise UserError(f"{where}: {_why(str(error), change, parts)}") from None
        numbers = range(1, len(parts) + 1) if change.parts is None else change.parts
        if wrong := [n for n in numbers if not 0 < n <= len(parts)]:
            raise UserError(f"{where}: parts = {wrong}: {change.patch or change.commits} has {len(parts)} parts.")
        kept = [parts[n - 1] for n in sorted(numbers)]
        try:
            return git.apply(begin, b"".join(part.text for part in kept))
        except GitError as error:
            raise UserError(f"{where}: {self._needs(begin, parts, kept) or _why(str(error), change, parts)}") from None

    def _needs(self, begin: str, parts: Sequence[Part], kept: Sequence[Part]) -> str:
        """Which part does not apply without which other; "" if it is more than one other."""
        for count, part in enumerate(kept, start=1):
            if not self._applies(begin, kept[:count]):
                others = [one for one in parts if one not in kept]
                for other in others:
                    if self._applies(begin, [one for one in parts if one in kept[:count] or one is other]):
                        return (f"{part.name} does not apply without {other.name}: leave them in one row, with "
                                'by = "file", or as `parts` of a row of your own.')  # fmt: skip
                return f"{part.name} does not apply without {', '.join(one.name for one in others)}."
        return ""

    def _applies(self, tree: str, parts: Iterable[Part]) -> bool:
        try:
            self._git.apply(tree, b"".join(part.text for part in parts))
        except GitError:
            return False
        return True

    # --- what is checked

    def _check(self, before: str, tree: str, where: str) -> list[str]:
        """The paths in which a tree differs. Raises UserError for a link that leads out, and what no tree may have."""
        changed = self._git.entries(before, tree)
        for path, mode, name in changed:
            if mode == LINK and leads_out(path, target := os.fsdecode(self._git.read(name))):
                raise UserError(f"{where}: {path} is a link to {target}, which leads out of the tree. Remove it, or "
                                "let git ignore it and name it in `links`.")  # fmt: skip
            if mode == SUBMODULE or _below(path, self._linked):
                raise UserError(f"{where}: its code has {path}, a submodule or the place of a link. Remove it there.")
            if mode != "000000" and path.endswith(".py") and before == self.base:
                try:
                    compile(self._git.read(name), path, "exec", dont_inherit=True)
                except (SyntaxError, ValueError) as error:
                    raise UserError(f"{where}: with it, {path} is no Python: {error}. Does one part of the change need "
                                    "another?") from None  # fmt: skip
        return [entry.path for entry in changed]

    def _ends(self, change: Change, where: str) -> tuple[str, str]:
        first, dots, last = change.commits.partition("..")
        if not dots or last.startswith("."):
            raise UserError(f'{where}: commits = "{change.commits}": expected a range, such as "main..feature".')
        return self._commit(first or "HEAD", where), self._commit(last or "HEAD", where)

    def _commit(self, name: str, where: str) -> str:
        found = self._git.commit(name)
        if found is None:
            raise UserError(f"{where}: the repository {self._git.top} has no commit {name!r}. Correct the name, or "
                            "fetch it: nothing is fetched here.")  # fmt: skip
        return found

    def _path(self, name: str) -> str:
        """A path from the study's folder as the repository has it. Raises UserError for one outside."""
        path = os.path.normpath(self._git.prefix / name)
        real = (self._folder / name).resolve()
        if path.startswith(("..", "/")) or (
            name.endswith((".diff", ".patch")) and not real.is_relative_to(self._git.top)
        ):
            raise UserError(f"{self._origin}: {name} lies outside the repository {self._git.top}.")
        return path

    def _read(self, name: str, where: str) -> bytes:
        self._path(name)
        try:
            return (self._folder / name).read_bytes()
        except OSError as error:
            raise UserError(f"{where}: the patch {name} cannot be read: {error.strerror}.") from None


def _why(said: str, change: Change, parts: Sequence[Part]) -> str:
    """Why a change does not apply, from git's words: the file and the hunk."""
    place = re.search(r"patch failed: (.*):(\d+)", said)
    hunk = next((p.name for p in parts if place and p.file == place[1] and f"line {place[2]})" in p.name), "")
    crlf = any(b"\r\n" in part.text for part in parts)
    ends = " The patch has line ends of Windows (CRLF): its file may have others." if crlf else ""
    binary = " Make the patch with `git diff --binary`." if "binary patch" in said else ""
    first = said.splitlines()[0].removeprefix("git apply: ").removeprefix("error: ")
    what = f"{change.patch} does not apply to base's code" if change.patch else f"commits {change.commits}"
    return f"{what}: {f'{hunk}; ' if hunk else ''}{first}.{ends}{binary}"


def _below(path: str, folders: Collection[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") or folder == "." for folder in folders)


def _names(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return f"{', '.join(paths[:_SHOWN])}{more}"
