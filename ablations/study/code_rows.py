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
from experiments.store.trees import LINK, SUBMODULE, GitError, Part, Planned, Repository, leads_out, parts_of, planned
from model.settings import StrictModel

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
    parts: tuple[int, ...] | None = None


def with_rows(table: Mapping[str, Any], origin: str, folder: Path | None) -> dict[str, Any]:
    """The study's table with rows in place of [[ablate]]. Raises UserError."""
    rest, found = dict(table), list[dict[str, Any]]()
    entries = rest.pop("ablate", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UserError(f"{origin}: write [[ablate]] above each entry.")
    for count, entry in enumerate(entries, start=1):
        where = f"{origin}, [[ablate]] number {count}"
        try:
            asked = Ablate.model_validate({n: v for n, v in entry.items() if n in Ablate.model_fields})
        except ValidationError as error:
            raise UserError(f"{where}: {error.errors()[0]['loc'][0]}: {plain(error.errors()[0])}.") from None
        if bool(asked.patch) == bool(asked.commits) or (asked.by and (asked.by == "commit") != bool(asked.commits)):
            raise UserError(f'{where}: write patch = "everything.diff", with by = "hunk" or "file", or '
                            'commits = "main..feature".')  # fmt: skip
        units, parts = dict[str, list[int]](), Code(folder, origin).parts(Change(asked.patch, "", asked.commits), where)
        for number, part in enumerate(parts, start=1):
            units.setdefault(f"the change of {part.file}" if asked.by == "file" else part.name, []).append(number)
        if not units:
            raise UserError(f"{where}: {asked.patch or asked.commits} has no change: expected what `git diff` prints.")
        word = "only" if asked.only else "without"
        for number, (name, own) in enumerate(units.items(), start=1):
            kept = own if asked.only else [n for n in range(1, len(parts) + 1) if n not in own]
            row = {"label": f"{word} {name}", "group": asked.key, **entry, "parts": kept}
            row["key"] = f"{asked.key or word}-{name[:7] if asked.commits else number}"
            found.append({name: value for name, value in row.items() if name not in ("by", "only")})
    return {**rest, "variation": [*rest.get("variation", ()), *found]} if found else rest


class Code:
    """The code of a study's rows. Raises UserError for a study that lies in no repository."""

    def __init__(self, folder: Path | None, origin: str) -> None:
        if folder is None:
            raise UserError(f"{origin}: rows that change code are for your own study, beside your own code.")
        self._origin, self._folder, self._git = origin, folder.resolve(), Repository(folder)
        self._hidden = list[str]()  # in no tree: the study, its patches, and the places of links
        self._linked, self._protected = list[str](), list[str]()
        self.links, self.base = list[str](), ""  # links: what git does not track, from the study's folder

    # --- base

    def begin(self, changes: Iterable[Change], links: Sequence[str], protected: Sequence[str]) -> None:
        """Make base's tree, and find what of `links` git does not track. Raises UserError.

        protected: paths from the study's folder that no row may change.
        """
        git, asked = self._git, [self._path(name) for name in links]
        self._hidden = [self._path(one) for one in (Path(self._origin).name, *{c.patch for c in changes if c.patch})]
        self._protected = [self._path(path) for path in protected]
        whole = git.base()
        modules = [entry.path for entry in git.entries(git.nothing, whole) if entry.mode == SUBMODULE]
        of_git = {"a submodule, exported as an empty folder": modules, "a pointer of git LFS": git.pointers()}
        for what, paths in of_git.items():
            self._linked += [path for path in paths if path in asked]
            if lost := [path for path in paths if not _below(path, asked)]:
                raise UserError(
                    f"{self._origin}: in the trees of the rows, {_names(lost)} is {what}: its content is not in this "
                    f"repository. Name it in `links`, to give runs that of your working copy."
                )
        found = git.untracked("-x", "__pycache__/", below=asked) if asked else []
        self._linked += [path.rstrip("/") for path in found if not path.endswith("__pycache__/")]
        self.links = [os.path.relpath(path, git.prefix) for path in self._linked]
        self._hidden += self._linked
        self.base = git.without(whole, self._hidden)
        self._check(git.nothing, self.base, self._origin)
        planned[self.base] = Planned(git, git.head, tuple(self._hidden))

    def notes(self) -> tuple[str, ...]:
        """What base's code is, for the reader of the table."""
        changed = [path for path in self._git.uncommitted() if path not in self._hidden]
        new = [path for path in self._git.untracked("--exclude-standard") if path.endswith(".py")]
        said = f"with uncommitted changes in {_names(changed)}" if changed else "without uncommitted changes"
        left = f" Not in it, because git does not track it: {_names(new)}." if new else ""
        linked = f" and link {_names(self.links)}" if self.links else ""
        return (
            f"Base's code is commit {self._git.head[:12]} of {self._git.top.name}, {said}.{left} Each row has a tree "
            f"of its own; all run with the same interpreter and packages{linked}.",
        )

    # --- rows

    def of(self, change: Change, where: str) -> tuple[str, str, int, str]:
        """A row's tree, what it has otherwise than base's with its size in lines, and the change in words.

        Raises UserError for a change that no row may have, or that does not apply.
        """
        git, begins = self._git, self._git.head
        if change.commit:
            begins = self._commit(change.commit, where)
            tree = git.without(begins, self._hidden)
            words = f"commit {begins[:7]} {git.log('-1', begins)[0][1]}"
        else:
            tree = self._applied(change, where)
            words = f"patch {change.patch}" if change.patch else f"commits {change.commits}"
        changed = self._check(self.base, tree, where)
        if found := [path for path in changed if _below(path, self._protected)]:
            raise UserError(f"{where}: it changes {_names(found)}, which [protected] names: a row must not change what "
                            "measures it.")  # fmt: skip
        planned[tree] = Planned(git, begins, tuple(self._hidden))
        diff = git.diff(self.base, tree, "--find-renames").decode(errors="replace")
        return tree, diff, git.lines(self.base, tree), words

    def parts(self, change: Change, where: str) -> list[Part]:
        """The hunks of a patch, or the commits of a range. Raises UserError."""
        if change.patch:
            return parts_of(self._read(change.patch, where))
        listed = self._git.log("--reverse", "--no-merges", "..".join(self._ends(change, where)))
        text = {one: self._git.diff(f"{one}^", one, "--binary", self._hidden) for one, _ in listed}
        return [Part("", f"{one[:7]} {subject}"[:60], text[one]) for one, subject in listed]

    def _applied(self, change: Change, where: str) -> str:
        """The tree with a change, or with some parts of it. Raises UserError, with the parts that others need."""
        git, begin, parts = self._git, self.base, self.parts(change, where)
        every = self._read(change.patch, where) if change.patch else b"".join(part.text for part in parts)
        if refused := [part.file for part in parts if part.file in self._hidden]:
            raise UserError(f"{where}: its patch changes {refused[0]}, which is the study, or a patch or link of it. "
                            "Take this file out of the patch.")  # fmt: skip
        numbers = range(1, len(parts) + 1) if change.parts is None else change.parts
        if not {*numbers} <= {*range(1, len(parts) + 1)}:
            raise UserError(f"{where}: parts = {list(numbers)}, and {change.patch or change.commits} has {len(parts)}.")
        try:
            if change.commits:
                first, last = self._ends(change, where)
                begin = git.without(git.fork(first, last), self._hidden)
                if git.apply(begin, every) != git.without(last, self._hidden):
                    raise GitError("merges are among them; rebase them to a line")
            elif self._applies(begin, every, "--reverse") and change.parts is not None:  # base has all of it
                begin = git.apply(begin, every, "--reverse")
            else:
                whole = git.apply(begin, every)
                if change.parts is None:
                    return whole
        except GitError as error:
            raise UserError(f"{where}: {_why(str(error), change, parts)}") from None
        kept = [part for number, part in enumerate(parts, start=1) if number in numbers]
        try:
            return git.apply(begin, b"".join(part.text for part in kept)) if kept else begin
        except GitError as error:
            raise UserError(f"{where}: {self._needs(begin, parts, kept) or _why(str(error), change, parts)}") from None

    def _needs(self, begin: str, parts: Sequence[Part], kept: Sequence[Part]) -> str:
        """The first part that does not apply without another, with that other; "" if they do one by one."""
        for count, part in enumerate(kept, start=1):
            if not self._applies(begin, b"".join(one.text for one in kept[:count])):
                others = [one for one in parts if one not in kept]
                for one in others:
                    with_it = b"".join(each.text for each in parts if each in (*kept[:count], one))
                    others = [one] if self._applies(begin, with_it) else others
                names = ", ".join(one.name for one in others)
                return f'{part.name} does not apply without {names}: take by = "file", or write rows with `parts`.'
        return ""

    def _applies(self, tree: str, patch: bytes, *options: str) -> bool:
        try:
            self._git.apply(tree, patch, *options)
        except GitError:
            return False
        return True

    # --- what is checked

    def _check(self, before: str, tree: str, where: str) -> list[str]:
        """The paths in which a tree differs. Raises UserError for a link that leads out, and what no tree may have."""
        changed = self._git.entries(before, tree)
        for path, mode, name in changed:
            if mode == LINK and leads_out(path, target := os.fsdecode(self._git.git("cat-file", "blob", name))):
                raise UserError(f"{where}: {path} is a link to {target.strip()}, which leads out of the tree. Remove "
                                "it, or let git ignore it and name it in `links`.")  # fmt: skip
            if mode == SUBMODULE or _below(path, self._linked):
                raise UserError(f"{where}: its code has {path}, a submodule or the place of a link. Remove it there.")
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
        if path.startswith(("..", "/")):
            raise UserError(f"{self._origin}: {name} lies outside the repository {self._git.top}.")
        return path

    def _read(self, name: str, where: str) -> bytes:
        self._path(os.path.relpath((self._folder / name).resolve(), self._folder))  # a link may lead out
        try:
            return (self._folder / name).read_bytes()
        except OSError as error:
            raise UserError(f"{where}: the patch {name} cannot be read: {error.strerror}.") from None


def _why(said: str, change: Change, parts: Sequence[Part]) -> str:
    """Why a change does not apply, from git's words: the file and the hunk."""
    place = re.search(r"patch failed: (.*):(\d+)", said)
    hunk = next((p.name for p in parts if place and p.name.endswith(f"({place[1]}, line {place[2]})")), "")
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
