"""Rows that change code by `patch`, `commit` or `commits`, and rows that [[ablate]] makes; see docs/code-rows.md.

Each change becomes a git tree (experiments/store/trees.py) when the study is loaded, so all mistakes in patches are
reported before anything is queued. The code of base is `base_commit`, or else the last commit together with the
uncommitted changes of tracked files.
"""

import contextlib
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError

from experiments.errors import UserError
from experiments.messages import plain
from experiments.store.code_change import patch_change, selected_change, tree_change
from experiments.store.durable import read_regular
from experiments.store.patch_parts import PatchPart, parts_of
from experiments.store.repository import LINK, SUBMODULE, GitError, Repository
from experiments.store.tree_copy import leading_out
from experiments.store.trees import planned
from experiments.tasks.own.run_code import check_links
from model.strict import StrictModel

# Names of files that list packages. A row that changes such a file gets a note, because nothing is installed for a row.
_PACKAGES = re.compile(r"(requirements|environment).*\.(txt|in|ya?ml)|pyproject\.toml|setup\.(py|cfg)|.*\.lock|Pipfile")


class Ablate(StrictModel):
    """An entry of [[ablate]], which makes one row for each part of a code change.

    The row applies the change without this part, or only this part if `only` is true. Keys of the entry that are not
    fields of this class are copied to the rows.
    """

    key: str = ""
    patch: str = ""
    commits: str = ""
    by: Literal["hunk", "file", "commit"] | None = None
    only: bool = False


class Change(NamedTuple):
    """A row's change of code: a patch, a commit that replaces base's commit, or a range of commits.

    parts: numbers of the hunks or commits that are applied; None for all.
    """

    patch: str
    commit: str
    commits: str
    parts: tuple[int, ...] | None = None


def with_rows(table: Mapping[str, Any], origin: str, folder: Path | None) -> dict[str, Any]:
    """Return the table of a study file, with the entries of [[ablate]] replaced by rows.

    Raises UserError for an invalid entry, and for a change that cannot be read.
    """
    rest, found = dict(table), list[dict[str, Any]]()
    entries = rest.pop("ablate", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UserError(f"{origin}: ablate must be a list. Write [[ablate]] above each entry.")
    for count, entry in enumerate(entries, start=1):
        try:
            asked = Ablate.model_validate({n: v for n, v in entry.items() if n in Ablate.model_fields})
            if bool(asked.patch) == bool(asked.commits) or (asked.by and (asked.by == "commit") != bool(asked.commits)):
                raise UserError('write patch = "all.diff", with by = "hunk" or "file", or commits = "main..feature".')
            parts = Code(folder).parts(Change(asked.patch, "", asked.commits))
            if not parts:
                raise UserError(
                    f"{asked.patch or asked.commits} contains no change; expected the output of `git diff`."
                )
        except (ValidationError, UserError) as error:
            said = str(error) if isinstance(error, UserError) else plain(error.errors()[0])
            raise UserError(f"{origin}, [[ablate]] number {count}: {said}") from None
        units, word = dict[str, list[int]](), "only" if asked.only else "without"
        for number, part in enumerate(parts, start=1):
            units.setdefault(f"the change of {part.file}" if asked.by == "file" else part.name, []).append(number)
        for number, (name, own) in enumerate(units.items(), start=1):
            kept = own if asked.only else [n for n in range(1, len(parts) + 1) if n not in own]
            row = {"label": f"{word} {name}", "group": asked.key, **entry, "parts": kept}
            row["key"] = f"{asked.key or word}-{name[:7] if asked.commits else number}"
            found.append({name: value for name, value in row.items() if name not in ("by", "only")})
    return {**rest, "variation": [*rest.get("variation", ()), *found]} if found else rest


class RowCode(NamedTuple):
    """The code of a row.

    tree: the git tree of the code. base: the git tree of base's code if the row has a patch; else "". change: digest of
    the code change. lines: size of the change. words: a description of the change.
    """

    tree: str
    base: str
    change: str
    diff: str
    lines: int
    words: str

    @property
    def line(self) -> int:
        """Number of the line in base's code where the first difference is; 0 if unknown."""
        found = re.search(r"^@@ -(\d+)", self.diff, re.MULTILINE)
        return int(found[1]) if found else 0


class RefusedCode(NamedTuple):
    """The reason why the code of a row cannot be made. changes: the digests that its code change may have."""

    why: str
    changes: tuple[str, ...]
    line: int
    words: str


class Code:
    """The code of a study's rows.

    The methods raise UserError. The caller adds the names of the study and the row to the message.
    """

    def __init__(self, folder: Path | None) -> None:
        if folder is None:
            raise UserError(
                "Built-in studies cannot have rows that change code. Write such rows in a study file beside your code."
            )
        self._folder, self._git = folder.resolve(), Repository(folder)
        self._hidden = list[str]()  # paths that no tree contains: the study file, its patches, and the linked paths
        self._linked, self._protected = list[str](), list[str]()
        self._targets = dict[str, str]()  # git object of a symbolic link → its target
        self._named = dict[str, None]()  # files that list packages and that a row changes
        self._parts = dict[tuple[str, str], list[PatchPart]]()  # cache: (patch, range) → parts, shared by the rows
        self._moving = dict[str, str]()  # name of a branch or HEAD in a row → its present commit
        self._pinned, self._head = "", self._git.head  # the study's base_commit; the commit of base's code
        self.links, self.base = list[str](), ""  # links: untracked paths, relative to the study's folder

    def begin(self, own: Iterable[str], links: Sequence[str], protected: Sequence[str], commit: str = "") -> None:
        """Make the tree of base, and find the paths in `links` that git does not track.

        All paths are relative to the study's folder. own: the study file and its patches. protected: paths that no row
        may change. commit: the study's `base_commit`, which gives the tree of base; "" for the last commit together
        with the uncommitted changes.
        """
        git, asked = self._git, [self._path(name) for name in links]
        self._pinned = commit
        self._head = self._commit(commit) if commit else git.head
        check_links(self._folder, links)
        self._hidden = [self._path(one) for one in dict.fromkeys(own)]
        self._protected = [self._path(path) for path in protected]
        whole = git.without(self._head, []) if commit else git.base()
        modules = [path for path, mode, _ in git.entries(git.nothing, whole) if mode == SUBMODULE]
        of_git = {"a submodule, exported as an empty folder": modules, "a pointer of git LFS": git.pointers()}
        for what, paths in of_git.items():
            self._linked += [path for path in paths if path in asked]
            if lost := [path for path in paths if not _below(path, asked)]:
                raise UserError(f"In the code of the rows, {_names(lost)} is {what}, whose content is not in this "
                    "repository. Name it in `links`, so that runs use the content in your working copy.")  # fmt: skip
        found = git.untracked("-x", "__pycache__/", below=asked) if asked else []
        self._linked += [path.rstrip("/") for path in found if not path.endswith("__pycache__/")]
        self.links = [os.path.relpath(path, git.prefix) for path in self._linked]
        self._hidden += self._linked
        if unread := {path: name for path, name in git.unread.items() if not _below(path, self._hidden)}:
            raise UserError(f"{_names([*unread])} differs from the last commit, and has the git filter "
                            f"{next(iter(unread.values()))}, which is a program that planning does not run. Add it to "
                            "git's index (`git add`), or name it in `links`.")  # fmt: skip
        self.base = git.without(whole, self._hidden)
        self._check(git.nothing, self.base)
        if commit and not any(
            _below(path, [os.fspath(git.prefix)]) for path, *_ in git.entries(git.nothing, self.base)
        ):
            raise UserError(
                f"base_commit {commit} does not contain {git.prefix}, the study's folder. Name a later commit."
            )
        planned[self.base] = (git, self._head, self._hidden)

    def note(self) -> str:
        """Return a note for `plan` on the present code of base. A table prints the commits that its runs recorded.

        The note also lists the names in rows, such as a branch, that may refer to another commit later. Call this
        method after `of` was called for each row.
        """
        pinned = bool(self._pinned)
        changed = [one.path for one in self._git.uncommitted() if one.path not in self._hidden and not pinned]
        new = [path for path in self._git.untracked("--exclude-standard") if path.endswith(".py") and not pinned]
        moving = ""
        said = "(base_commit)" if pinned else "without uncommitted changes"
        said = f"with uncommitted changes in {_names(changed)}" if changed else said
        said += f", without {_names(new)}, which git does not track" if new else ""
        for name, commit in self._moving.items():
            moving += (
                f" `{name}` is commit {commit[:12]} now. A new commit changes it, and its rows are trained again; to "
                f"prevent this, write {commit[:12]} instead."
            )
        return f"Base's code is now commit {self._head[:12]} of {self._git.top.name} {said}.{moving}"

    def conditions(self) -> str:
        """Return a note on the Python, packages and links that all rows share.

        Call this method after `of` was called for each row.
        """
        linked = f"linked: {_names(self.links)}" if self.links else ""
        if self._named:
            linked += f"{'; ' if linked else ''}nothing is installed for rows that change {_names([*self._named])}"
        return (
            "Each row runs from its own snapshot of the code, with the same Python and "
            f"packages{f' ({linked})' if linked else ''}."
        )

    def of(self, change: Change) -> RowCode:
        """Return the code of a row with this change."""
        git, begins, base = self._git, self._head, ""
        if change.commit:
            begins = self._commit(change.commit)
            tree = git.without(begins, self._hidden)
            words, digest = f"commit {begins[:7]} {git.log('-1', begins)[0][1]}", tree_change(tree)
        else:
            tree, digest = self._applied(change)
            base = self.base if change.patch else ""
            words = f"patch {change.patch}" if change.patch else f"commits {change.commits}"
        changed = self._check(self.base, tree)
        self._named |= dict.fromkeys(path for path in changed if _PACKAGES.fullmatch(Path(path).name))
        if found := [path for path in changed if _below(path, self._protected)]:
            raise UserError(f"It changes {_names(found)}, which [protected] lists. Remove these changes.")
        planned[tree] = (git, begins, self._hidden)
        diff = git.diff(self.base, tree, "--find-renames").decode(errors="replace")
        return RowCode(tree, base, digest, diff, git.lines(self.base, tree), words)

    def refused(self, change: Change, why: str) -> RefusedCode:
        """Return the reason why the code of a row cannot be made, and the digests that identify its finished runs."""
        words = f"commit {change.commit}" if change.commit else f"commits {change.commits}"
        if change.patch:
            words = f"patch {change.patch}"
            with contextlib.suppress(UserError):
                parts = self.parts(change)
                every = range(1, len(parts) + 1)
                numbers = every if change.parts is None else change.parts
                texts = [part.text for part in parts]
                kept = [place for place in range(len(parts)) if place + 1 in numbers]
                rest = [place for place in range(len(parts)) if place + 1 not in numbers]
                digests = [selected_change(texts, kept)] if kept else []
                if change.parts is not None:  # base may contain the patch, so that the row removes the other parts
                    digests.append(selected_change(texts, rest, reverse=True))
                line = re.search(rb"^@@ -(\d+)", b"".join(texts[place] for place in kept), re.MULTILINE)
                return RefusedCode(why, tuple(digests), int(line[1]) if line else 0, words)
        return RefusedCode(why, (), 0, words)

    def parts(self, change: Change) -> list[PatchPart]:
        """Return the hunks of a patch, or the commits of a range. The result is cached."""
        key = change.patch, change.commits
        if key not in self._parts:
            self._parts[key] = parts_of(self._read(change.patch)) if change.patch else self._commits(change)
        return self._parts[key]

    def _commits(self, change: Change) -> list[PatchPart]:
        listed = self._git.log("--reverse", "--no-merges", "..".join(self._ends(change)))
        text = {one: self._git.diff(f"{one}^", one, "--binary", self._hidden) for one, _ in listed}
        return [PatchPart("", f"{one[:7]} {subject}"[:60], text[one]) for one, subject in listed]

    def _applied(self, change: Change) -> tuple[str, str]:
        """Return base's tree with a change or some parts of the change applied, and the digest of the change."""
        git, begin, parts = self._git, self.base, self.parts(change)
        every = self._read(change.patch) if change.patch else b"".join(part.text for part in parts)
        if refused := [part.file for part in parts if part.file in self._hidden]:
            raise UserError(
                f"Its patch changes {refused[0]}, which is the study, a patch or a link. Remove this change."
            )
        numbers, without = range(1, len(parts) + 1) if change.parts is None else change.parts, False
        if not {*numbers} <= {*range(1, len(parts) + 1)}:
            raise UserError(f"parts = {list(numbers)}, and {change.patch or change.commits} has {len(parts)}.")
        try:
            if change.commits:
                first, last = self._ends(change)
                begin = git.without(git.fork(first, last), self._hidden)
                if git.apply(begin, every) != git.without(last, self._hidden):
                    raise GitError("the range contains merges; rebase it to a line of commits")
            elif change.parts is None:
                return git.apply(begin, every), patch_change([part.text for part in parts] or [every])
            elif self._applies(begin, every, "--reverse"):  # base contains the whole change
                begin, without = git.apply(begin, every, "--reverse"), True
            else:
                git.apply(begin, every)
        except GitError as error:
            raise UserError(_why(str(error), change, parts)) from None
        kept = [part for number, part in enumerate(parts, start=1) if number in numbers]
        joined = b"".join(part.text for part in kept)
        count = len(kept) if not kept or self._applies(begin, joined) else 0
        while count < len(kept) and self._applies(begin, b"".join(one.text for one in kept[: count + 1])):
            count += 1
        if count < len(kept):
            others = [one for one in parts if one not in kept]
            for one in others:
                with_it = b"".join(each.text for each in parts if each in (*kept[: count + 1], one))
                others = [one] if self._applies(begin, with_it) else others
            raise UserError(f"{kept[count].name} does not apply without {', '.join(one.name for one in others)}: take "
                            'by = "file", or write rows with `parts`.')  # fmt: skip
        tree = git.apply(begin, joined) if kept else begin
        if change.commits:
            return tree, tree_change(tree)
        selected = [place for place, part in enumerate(parts) if (part in kept) != without]
        return tree, selected_change([part.text for part in parts], selected, reverse=without)

    def _applies(self, tree: str, patch: bytes, *options: str) -> bool:
        try:
            self._git.apply(tree, patch, *options)
        except GitError:
            return False
        return True

    def _check(self, before: str, tree: str) -> list[str]:
        """Return the paths in which two trees differ.

        Raises UserError for a symbolic link that leads out of the repository, for a submodule, and for a path below
        one of `links`.
        """
        changed = self._git.entries(before, tree)
        every = changed if before == self._git.nothing else self._git.entries(self._git.nothing, tree)
        links = {path: self._target(name) for path, mode, name in every if mode == LINK}
        if out := leading_out(links, self._linked):
            raise UserError(f"{out} is a link to {links[out].strip()}, which leads out of the repository. Remove it, "
                "or let git ignore it and name it in `links`.")  # fmt: skip
        for path, mode, _ in changed:
            if mode == SUBMODULE or _below(path, self._linked):
                raise UserError(f"Its code contains {path}, which is a submodule or is in `links`. Remove it there.")
        return [path for path, *_ in changed]

    def _target(self, link: str) -> str:
        """Return the target of a symbolic link in a tree. link: the git object of the symbolic link."""
        if link not in self._targets:
            self._targets[link] = os.fsdecode(self._git.git("cat-file", "blob", link))
        return self._targets[link]

    def _ends(self, change: Change) -> tuple[str, str]:
        first, dots, last = change.commits.partition("..")
        if not dots or last.startswith("."):
            raise UserError(f'commits = "{change.commits}": expected a range, such as "main..feature".')
        return self._commit(first or "HEAD"), self._commit(last or "HEAD")

    def _commit(self, name: str) -> str:
        """Return the commit to which a name refers now.

        A name that may refer to another commit later, such as a branch, is recorded for `note`.
        """
        commit = self._git.commit(name)
        if not commit.startswith(name) and not self._git.is_tag(name):
            self._moving[name] = commit
        return commit

    def _path(self, name: str) -> str:
        """Convert a path relative to the study's folder to one relative to the repository.

        Raises UserError for a path outside the repository.
        """
        path = os.path.normpath(self._git.prefix / name)
        if path.startswith(("..", "/")):
            raise UserError(f"{name} lies outside the repository {self._git.top}.")
        return path

    def _read(self, name: str) -> bytes:
        self._path(os.path.relpath((self._folder / name).resolve(), self._folder))  # refuse links out of the repository
        try:
            patch = read_regular(self._folder / name)
        except OSError as error:
            raise UserError(f"The patch {name} cannot be read: {error.strerror}.") from None
        if patch.startswith(b"\x1b[") or b"\n\x1b[" in patch:
            raise UserError(f"The patch {name} has colour codes. Make it with `git diff --no-color`.")
        if any(_same_halves(line) for line in re.findall(rb"^diff --git (.*)$", patch, re.MULTILINE)):
            raise UserError(
                f"The patch {name} has no prefixes a/ and b/ before its paths (git's option diff.noprefix). Make it "
                "with `git diff --src-prefix=a/ --dst-prefix=b/`."
            )
        return patch


def _same_halves(names: bytes) -> bool:
    """Return whether the two file names in a line "diff --git" are equal, which shows that they have no prefixes."""
    half = len(names) // 2
    return len(names) % 2 == 1 and names[half : half + 1] == b" " and names[:half] == names[half + 1 :]


def _why(said: str, change: Change, parts: Sequence[PatchPart]) -> str:
    """Return the reason why a change does not apply, with the file and the hunk from git's message."""
    place = re.search(r"patch failed: (.*):(\d+)", said)
    hunk = next((p.name for p in parts if place and p.name.endswith(f"({place[1]}, line {place[2]})")), "")
    ends = " The patch has line ends of Windows (CRLF)." if any(b"\r\n" in part.text for part in parts) else ""
    binary = " Make the patch with `git diff --binary`." if "binary patch" in said else ""
    first = said.splitlines()[0].removeprefix("git apply: ").removeprefix("error: ")
    what = f"{change.patch} does not apply to base's code" if change.patch else f"commits {change.commits}"
    return f"{what}: {f'{hunk}; ' if hunk else ''}{first}.{ends}{binary}"


def _below(path: str, folders: Collection[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") or folder == "." for folder in folders)


def _names(paths: Sequence[str]) -> str:
    return ", ".join(paths[:5]) + " …" * (len(paths) > 5)
