"""Read the user's git repository without executing or changing anything in it.

This program creates two temporary folders that git accepts as repositories. These folders contain links to the refs of
the user's repository, and name its objects as alternates. git runs only on these two folders, so it does not read the
configuration files of the repository or of the user. No filter, textconv, external diff, fsmonitor, hook, gpg program
or alias runs, and a repository of another user needs no `safe.directory`. Nothing in the repository or its working copy
is written.

- In the folder `view`, git compares the working copy with a copy of the index. This folder has the attributes of the
  repository, and some of its settings, such as core.autocrlf. These attributes and settings cannot run a program.
- In the folder `trees`, git computes trees byte by byte. Attributes that would change or omit files have no effect
  there.

If a file has a git filter and its content differs from the last commit, only the filter could show whether the file has
changed. `unread` lists such files. This module does not import torch.
"""

import atexit
import contextlib
import hashlib
import itertools
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.errors import UserError
from experiments.store.durable import open_regular, read_regular

LINK, SUBMODULE = "120000", "160000"  # git's modes of entries that are not files
LIMIT_S = 600  # time limit for one git command, in seconds
_OFF = "* -export-ignore -export-subst -filter -ident -text -eol -working-tree-encoding !diff\n"
_ISOLATED = {
    "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_SYSTEM": os.devnull, "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1", "GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C",
}  # fmt: skip
_SETTINGS = (
    "core.hooksPath=/dev/null", "core.fsmonitor=false", "core.attributesFile=/dev/null", "core.excludesFile=/dev/null",
    "core.quotePath=false", "protocol.allow=never", "log.showSignature=false", "color.ui=false", "gc.auto=0",
)  # fmt: skip
# The settings that git needs to compare a working copy. Each value is true, false or a word.
_OF_THE_WORKING_COPY = (
    "core.filemode", "core.symlinks", "core.ignorecase", "core.precomposeunicode", "core.autocrlf", "core.eol",
    "core.checkstat", "core.trustctime", "core.sparsecheckout", "core.sparsecheckoutcone",
)  # fmt: skip
_WITH_CONTENT = ("100644", "100755", LINK)
_TO_FILTER = re.compile(r"(?!unspecified$|unset$|set$).+")


class GitError(UserError):
    """Error of a git command, for example a patch that does not apply. The message is git's message."""


class Change(NamedTuple):
    """A tracked file that differs from the last commit.

    mode: git's mode; "0" for a removed file.
    object: digest of git's object; "" if the content is read from the working copy.
    """

    path: str
    mode: str
    object: str


def top_of(folder: Path) -> Path | None:
    """Return the top folder of the repository that contains a folder; None if there is none.

    This function does not call git, because a node of a cluster may not have git.
    """
    return next((one for one in (folder, *folder.parents) if (one / ".git").exists()), None)


class Repository:
    """The repository of a folder. Its methods raise UserError, and GitError if git fails."""

    def __init__(self, folder: Path) -> None:
        """Create the two folders on which git runs (see the module's docstring).

        Raises UserError if the folder is in no repository or the repository has no commit.
        """
        folder = folder.resolve()
        top = top_of(folder)
        if top is None:
            raise UserError(
                f"{folder} is not in a git repository, which rows that change code need. Make one with `git init`."
            )
        self.top, self.prefix = top, folder.relative_to(top)
        self.unread: dict[str, str] = {}  # file that only a git filter could compare → name of the filter
        self._numbers = itertools.count()
        own, common = _folders_of(top)
        self._own = own
        settings = _settings_of(common / "config")
        self._hash = settings.pop("extensions.objectformat", "sha1")
        scratch = Path(tempfile.mkdtemp(prefix="ablations-git-"))
        atexit.register(_remove, scratch, os.getpid())
        self._trees, self._view = scratch / "trees", scratch / "view"
        for place in (self._trees, self._view):
            _stand_in(place, own, common, self._hash, settings if place == self._view else {})
        (self._trees / "info/attributes").write_text(_OFF, encoding="utf-8")
        for name in ("attributes", "exclude"):
            with contextlib.suppress(OSError):
                (self._view / "info" / name).write_bytes(read_regular(common / "info" / name))
        self.head = self.commit("HEAD")
        self.nothing = self._digest(b"tree", b"")

    def close(self) -> None:
        """Remove the folders on which git runs. Without this call, they are removed when this process ends."""
        shutil.rmtree(self._trees.parent, ignore_errors=True)

    # --- commits and files

    def commit(self, name: str) -> str:
        """Return the commit to which a name refers now. Raise GitError if there is none."""
        try:
            found = self.git("rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}")
        except GitError as error:
            why = " The name is ambiguous." if "ambiguous" in str(error) else ""
            raise GitError(f"{self.top} has no commit {name!r}.{why} Correct the name, or fetch it.") from None
        return found.decode().strip()

    def is_tag(self, name: str) -> bool:
        """Return whether a name of a commit is a tag. Tags do not move."""
        full = self.git("rev-parse", "--symbolic-full-name", "--end-of-options", name).decode()
        return any(line.startswith("refs/tags/") for line in full.splitlines())

    def log(self, *words: str) -> list[tuple[str, str]]:
        """Return (commit, subject) of each commit that `git log` lists."""
        listed = self.git("log", "--no-color", "--format=%H %s", *words, "--").decode(errors="replace")
        return [(commit, subject) for commit, _, subject in (line.partition(" ") for line in listed.splitlines())]

    def fork(self, first: str, last: str) -> str:
        """Return the last common ancestor of two commits. Raise GitError if there is none."""
        return self.git("merge-base", first, last).decode().strip()

    def uncommitted(self, below: Iterable[str] = ()) -> list[Change]:
        """Return the tracked files that differ from the last commit.

        Files that only a git filter could compare are left out and listed in `unread`.

        below: paths to search; without them, the whole repository is searched.
        """
        words = ("diff-index", "-z", "--raw", "--no-renames", "--no-ext-diff", "--ignore-submodules=all", self.head)
        parts = _split(self._look(*words, "--", *(f":(literal){path}" for path in below)))
        found, doubtful = dict[str, Change](), dict[str, tuple[str, str]]()
        for about, path in zip(parts[::2], parts[1::2], strict=True):
            old_mode, mode, old, new, _ = about.lstrip(":").split(" ")
            content = self._content(path)
            if content is None:
                found[path] = Change(path, "0", "")
            elif new.strip("0"):
                found[path] = Change(path, mode, new)  # the index has the object of the present content
            else:
                mode = content if mode not in _WITH_CONTENT else mode
                found[path] = Change(path, mode, "")
                if mode == old_mode:
                    doubtful[path] = (old, mode)
        for path in self._same(doubtful):
            del found[path]
        return list(found.values())

    def untracked(self, *which: str, below: Iterable[str] = ()) -> list[str]:
        """Return the untracked paths. A folder without tracked files is listed once, with a slash at its end.

        which: git options that exclude paths.
        below: paths to search; without them, the whole repository is searched.
        """
        words = ("ls-files", "-z", "--others", "--directory", "--no-empty-directory", *which, "--")
        return _split(self._look(*words, *(f":(literal){path}" for path in below)))

    def pointers(self) -> list[str]:
        """Return the files whose content git LFS stores elsewhere."""
        return _split(self._look("ls-files", "-z", "--", ":(attr:filter=lfs)"))

    def tracked(self, below: Iterable[str]) -> set[str]:
        """Return the files below some paths that git tracks."""
        return set(_split(self._look("ls-files", "-z", "--", *(f":(literal){path}" for path in below))))

    def changes(self, below: Sequence[str], new: Iterable[str]) -> str:
        """Return the uncommitted changes below some paths as a diff for `git apply`.

        new: untracked files to include.
        """
        added = [Change(path, mode, "") for path in new if (mode := self._content(path)) is not None]
        changed = self.uncommitted(below) if below else []
        return self.text(self.head, self._with(self.head, [*changed, *added]))

    # --- trees

    def base(self) -> str:
        """Return the tree of the last commit with the uncommitted changes of tracked files."""
        return self._with(self.head, self.uncommitted())

    def without(self, tree: str, paths: Iterable[str]) -> str:
        """Return a tree without some of its paths."""
        return self._changed(tree, ("update-index", "-z", "--force-remove", "--stdin"), _list(paths))

    def apply(self, tree: str, patch: bytes, *options: str) -> str:
        """Return a tree with a patch applied. Raise GitError if the patch does not apply."""
        return self._changed(tree, ("apply", "--cached", "--whitespace=nowarn", *options, "-"), patch)

    def entries(self, before: str, tree: str) -> list[tuple[str, str, str]]:
        """Return (path, mode, object) of each path that differs between two trees.

        The mode and the object are those of the second tree. If the second tree lacks the path, mode and object are
        zeros.
        """
        parts = _split(self.git("diff-tree", "-r", "-z", "--raw", "--no-renames", before, tree))
        about = [words.split(" ") for words in parts[::2]]
        return [(path, words[1], words[3]) for path, words in zip(parts[1::2], about, strict=True)]

    def diff(self, before: str, tree: str, option: str, without: Iterable[str] = (), only: str = "") -> bytes:
        """Return the change between two trees as a diff for `git apply`.

        without: paths that the diff leaves out.
        only: the only path that the diff contains; "" for all paths.
        """
        words = ("diff-tree", "-r", "-p", "--no-color", "--no-ext-diff", "--no-textconv", "--src-prefix=a/",
                 "--dst-prefix=b/", option, before, tree, "--")  # fmt: skip
        limits = [*(f":(exclude,top,literal){path}" for path in without), *([f":(top,literal){only}"] if only else [])]
        return self.git(*words, *limits)

    def text(self, before: str, tree: str, without: Iterable[str] = ()) -> str:
        """Return `diff` as text. A file in another encoding than UTF-8 is treated as a binary file."""
        without = [*without]
        with contextlib.suppress(UnicodeDecodeError):
            return self.diff(before, tree, "--binary", without).decode()
        parts, attributes = [], self._trees / "info/attributes"
        for path, *_ in self.entries(before, tree):
            part = self.diff(before, tree, "--binary", without, path)
            try:
                parts.append(part.decode())
            except UnicodeDecodeError:
                attributes.write_text(f"{_OFF}* -diff\n", encoding="utf-8")
                parts.append(self.diff(before, tree, "--binary", without, path).decode())
                attributes.write_text(_OFF, encoding="utf-8")
        return "".join(parts)

    def lines(self, before: str, tree: str) -> int:
        """Return the number of lines that a diff adds and removes. A binary file counts as 0 lines."""
        counted = self.git("diff-tree", "-r", "--numstat", before, tree).decode(errors="replace")
        return sum(int(number) for line in counted.splitlines() for number in line.split("\t")[:2] if number != "-")

    def _with(self, tree: str, changes: Sequence[Change]) -> str:
        """Return a tree with changes of the working copy applied."""
        files = [one.path for one in changes if not one.object and one.mode in ("100644", "100755")]
        listed = b"".join(_quoted(path) + b"\n" for path in files)
        words = ("hash-object", "-w", "--no-filters", "--stdin-paths")
        written = self.git(*words, given=listed, folder=self.top).decode().split() if files else []
        objects = dict(zip(files, written, strict=True))
        lines = []
        for path, mode, name in sorted(changes, key=lambda one: one.mode != "0"):  # removed files first
            if mode == LINK and not name:
                target = os.fsencode((self.top / path).readlink())
                name = self.git("hash-object", "-w", "--no-filters", "--stdin", given=target).decode().strip()
            lines.append(f"{mode} {name or objects.get(path, '0' * len(self.head))}\t{path}")
        return self._changed(tree, ("update-index", "-z", "--replace", "--index-info"), _list(lines))

    def _changed(self, tree: str, words: Sequence[str], given: bytes) -> str:
        """Read a tree into a new index, change the index with a git command, and return the resulting tree."""
        index = str(self._trees / f"index-{next(self._numbers)}")
        self.git("read-tree", tree, index=index)
        self.git(*words, index=index, given=given)
        return self.git("write-tree", index=index).decode().strip()

    # --- the working copy

    def _content(self, path: str) -> str | None:
        """Return git's mode of a file in the working copy; None if there is no file or link at this path."""
        try:
            mode = (self.top / path).lstat().st_mode
        except OSError:
            return None
        if stat.S_ISLNK(mode):
            return LINK
        return ("100755" if mode & 0o100 else "100644") if stat.S_ISREG(mode) else None

    def _same(self, doubtful: Mapping[str, tuple[str, str]]) -> list[str]:
        """Return the files whose content in the working copy equals their content in the last commit.

        Files that only a filter could compare are returned too, and are listed in `unread`.

        doubtful: path → (object in the last commit, mode) of files for which the index does not show whether they have
            changed, for example after the repository was copied.
        """
        found, rest = list[str](), list[str]()
        for path, (old, mode) in doubtful.items():
            (found if self._blob(path, mode) == old else rest).append(path)
        rest = [path for path in rest if doubtful[path][1] != LINK]
        if not rest:
            return found
        # git converts line ends and encodings according to the attributes
        listed = b"".join(_quoted(path) + b"\n" for path in rest)
        converted = self._look("hash-object", "--stdin-paths", given=listed).decode().split()
        found += [path for path, name in zip(rest, converted, strict=True) if name == doubtful[path][0]]
        rest = [path for path in rest if path not in found]
        parts = _split(self._look("check-attr", "-z", "--stdin", "filter", given=_list(rest))) if rest else []
        filters = {path: value for path, value in zip(parts[::3], parts[2::3], strict=True) if _TO_FILTER.match(value)}
        self.unread |= filters
        return [*found, *filters]

    def _blob(self, path: str, mode: str) -> str:
        """Return git's digest of a file's bytes."""
        file = self.top / path
        try:
            if mode == LINK and file.is_symlink():
                return self._digest(b"blob", os.fsencode(file.readlink()))
            with open_regular(file) as stream:
                made = hashlib.new(self._hash, b"blob %d\0" % os.fstat(stream.fileno()).st_size)
                while data := stream.read(1 << 20):
                    made.update(data)
                return made.hexdigest()
        except OSError as error:
            raise UserError(f"{file} cannot be read: {error.strerror}.") from None

    def _digest(self, kind: bytes, data: bytes) -> str:
        return hashlib.new(self._hash, b"%s %d\0" % (kind, len(data)) + data).hexdigest()

    # --- git

    def git(
        self,
        *words: str,
        index: str = "",
        given: bytes = b"",
        work_tree: Path | None = None,
        folder: Path | None = None,
    ) -> bytes:
        """Run git in the folder `trees` and return its output. Raise GitError if it fails."""
        own = {"GIT_DIR": str(self._trees)}
        own |= {"GIT_INDEX_FILE": index} if index else {}
        own |= {"GIT_WORK_TREE": str(work_tree)} if work_tree else {}
        return run_git(words, folder or work_tree or self._trees, own, given)

    def _look(self, *words: str, given: bytes = b"") -> bytes:
        """Run git in the folder `view`, with a copy of the index of the working copy, and return the output."""
        index = self._view / "index"
        if not index.exists():
            try:
                for source in (*self._own.glob("index"), *self._own.glob("sharedindex.*")):
                    shutil.copy2(source, self._view / source.name)  # git needs the modification time of the index
            except OSError as error:
                raise UserError(f"{source} cannot be read: {error.strerror or error}.") from None
        own = {"GIT_DIR": str(self._view), "GIT_INDEX_FILE": str(index), "GIT_WORK_TREE": str(self.top)}
        return run_git(words, self.top, own, given)


def run_git(words: Sequence[str], folder: Path, own: Mapping[str, str], given: bytes = b"") -> bytes:
    """Run git without the configuration of the user and of any repository, and return its output.

    Raises GitError if git fails, and UserError if git cannot be started or does not end within LIMIT_S.

    own: further environment variables, with a GIT_DIR that belongs to this program.
    """
    # If a git hook started this program, git has set GIT_ variables, which must not affect this command.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(folder), "--no-pager", *(word for one in _SETTINGS for word in ("-c", one)), *words]
    try:
        done = subprocess.run(
            command, env={**kept, **_ISOLATED, **own}, input=given, capture_output=True, timeout=LIMIT_S, check=False
        )
    except OSError as error:
        raise UserError(f"git cannot be started ({error.strerror}), but it is needed here. Install it.") from None
    except subprocess.TimeoutExpired:
        raise UserError(f"git {words[0]} has not ended after {LIMIT_S} s, in {folder}.") from None
    if done.returncode:
        raise GitError(f"git {words[0]}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def _folders_of(top: Path) -> tuple[Path, Path]:
    """Return the folder that contains HEAD and the index of a working copy, and the folder of its refs and objects.

    The folders differ for a linked working copy. Raises UserError if they cannot be read.
    """
    own = top / ".git"
    try:
        if own.is_file():  # a linked working copy, or a submodule
            own = top / os.fsdecode(read_regular(own)).removeprefix("gitdir: ").rstrip("\n")
        common = own
        if (own / "commondir").is_file():
            common = own / os.fsdecode(read_regular(own / "commondir")).rstrip("\n")
        for needed in (own / "HEAD", common / "objects"):
            if not os.access(needed, os.R_OK):
                raise UserError(
                    f"{top} is a git repository of which {needed} cannot be read. Run this as its owner, or let its "
                    f"owner type: chmod -R a+rX {own}"
                )
    except OSError as error:
        raise UserError(f"{own} cannot be read: {error.strerror}.") from None
    return own.resolve(), common.resolve()


def _settings_of(file: Path) -> dict[str, str]:
    """Return the settings in a repository's configuration file that affect the comparison of its working copy.

    Included configuration files are ignored.
    """
    if not file.is_file():
        return {}
    words = ("config", "--file", str(file), "--no-includes", "-z", "--list")
    listed = run_git(words, file.parent, {"GIT_DIR": os.devnull})
    wanted = (*_OF_THE_WORKING_COPY, "extensions.objectformat")
    found = dict(part.partition("\n")[::2] for part in _split(listed))
    found = {name: value or "true" for name, value in found.items() if name in wanted}
    return {name: value for name, value in found.items() if re.fullmatch(r"\w+", value)}


def _stand_in(place: Path, own: Path, common: Path, hash_: str, settings: Mapping[str, str]) -> None:
    """Create a folder that git accepts as the repository. It has links to the refs and objects, and these settings."""
    (place / "objects/info").mkdir(parents=True)
    (place / "info").mkdir()
    (place / "objects/info/alternates").write_bytes(os.fsencode(common / "objects") + b"\n")
    (place / "HEAD").write_bytes(read_regular(own / "HEAD"))
    for name in ("refs", "packed-refs", "shallow", "reftable", "logs"):
        if (common / name).exists():
            (place / name).symlink_to(common / name)
    (place / "refs").mkdir(exist_ok=True)
    extensions = [f"objectformat = {hash_}"] if hash_ != "sha1" else []
    extensions += ["refstorage = reftable"] if (common / "reftable").exists() else []
    lines = ["[core]", f"repositoryformatversion = {1 if extensions else 0}"]
    lines += [f"{name.removeprefix('core.')} = {value}" for name, value in settings.items()]
    (place / "config").write_text("\n".join([*lines, "[extensions]", *extensions, ""]), encoding="utf-8")


def _remove(scratch: Path, process: int) -> None:
    if os.getpid() == process:  # a forked process does not remove the folder
        shutil.rmtree(scratch, ignore_errors=True)


def _quoted(path: str) -> bytes:
    """Return a path as git expects it in a line of its input, quoted if necessary."""
    if path.startswith('"') or "\n" in path or "\\" in path:
        path = '"' + path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    return os.fsencode(path)


def _list(paths: Iterable[str]) -> bytes:
    return os.fsencode("".join(f"{path}\0" for path in paths))


def _split(listed: bytes) -> list[str]:
    return [os.fsdecode(part) for part in listed.split(b"\0") if part]
