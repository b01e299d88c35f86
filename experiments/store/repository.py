"""A repository of the user's, which is only read: git runs on folders of our own that borrow its objects.

Nothing of the repository is executed and nothing in it or its working copy is written. git never opens the repository
as such, so its configuration, and the user's, decide nothing: no filter, textconv, external diff, fsmonitor, hook, gpg
program or alias runs, and a repository of another user needs no `safe.directory`. Two folders stand for it, with its
refs linked, its objects as alternates, and settings of its that are plain data, such as core.autocrlf:

- in the view, git compares the working copy with a copy of the index, with the repository's own attributes;
- in the other one, git computes trees, byte by byte: attributes that would change or leave out files are off there.

A file with a git filter whose content differs from the last commit is named (`unread`): only the filter could tell
whether it has changed. Imports no torch.
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

LINK, SUBMODULE = "120000", "160000"  # git's modes of what is no file
LIMIT_S = 600  # for one command of git's
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
# What git must know of a working copy to compare it. Each is true, false or a word.
_OF_THE_WORKING_COPY = (
    "core.filemode", "core.symlinks", "core.ignorecase", "core.precomposeunicode", "core.autocrlf", "core.eol",
    "core.checkstat", "core.trustctime", "core.sparsecheckout", "core.sparsecheckoutcone",
)  # fmt: skip
_WITH_CONTENT = ("100644", "100755", LINK)
_TO_FILTER = re.compile(r"(?!unspecified$|unset$|set$).+")


class GitError(UserError):
    """Error of a git command, such as a patch that does not apply; the message is git's."""


class Change(NamedTuple):
    """A tracked file that differs from the last commit. mode "0": removed. object "": its content is the file's."""

    path: str
    mode: str
    object: str


def top_of(folder: Path) -> Path | None:
    """The repository in which a folder lies, found without git, which a node of a cluster may lack."""
    return next((one for one in (folder, *folder.parents) if (one / ".git").exists()), None)


class Repository:
    """The repository of a folder. Its methods raise UserError, GitError where git fails."""

    def __init__(self, folder: Path) -> None:
        """Raises UserError for a folder in no repository, or in one without a commit."""
        folder = folder.resolve()
        top = top_of(folder)
        if top is None:
            raise UserError(
                f"{folder} is not in a git repository, which rows that change code need. Make one with `git init`."
            )
        self.top, self.prefix = top, folder.relative_to(top)
        self.unread: dict[str, str] = {}  # files that only their git filter could compare, and the filter's name
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
        """Remove what stands for the repository before this process ends."""
        shutil.rmtree(self._trees.parent, ignore_errors=True)

    # --- what the repository has

    def commit(self, name: str) -> str:
        """The commit that a name means now. Raises GitError where there is none."""
        try:
            found = self.git("rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}")
        except GitError as error:
            why = " The name is ambiguous." if "ambiguous" in str(error) else ""
            raise GitError(f"{self.top} has no commit {name!r}.{why} Correct the name, or fetch it.") from None
        return found.decode().strip()

    def is_tag(self, name: str) -> bool:
        """Return whether a name of a commit is that of a tag, which stays where it is."""
        full = self.git("rev-parse", "--symbolic-full-name", "--end-of-options", name).decode()
        return any(line.startswith("refs/tags/") for line in full.splitlines())

    def log(self, *words: str) -> list[tuple[str, str]]:
        """(commit, subject) of each commit that `git log` lists."""
        listed = self.git("log", "--no-color", "--format=%H %s", *words, "--").decode(errors="replace")
        return [(commit, subject) for commit, _, subject in (line.partition(" ") for line in listed.splitlines())]

    def fork(self, first: str, last: str) -> str:
        """The commit from which two lines began. Raises GitError where there is none."""
        return self.git("merge-base", first, last).decode().strip()

    def uncommitted(self, below: Iterable[str] = ()) -> list[Change]:
        """The tracked files that differ from the last commit, anywhere or below some paths.

        Files that only a git filter could compare are left out, and named in `unread`.
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
                found[path] = Change(path, mode, new)  # in the index, and so in the working copy
            else:
                mode = content if mode not in _WITH_CONTENT else mode
                found[path] = Change(path, mode, "")
                if mode == old_mode:
                    doubtful[path] = (old, mode)
        for path in self._same(doubtful):
            del found[path]
        return list(found.values())

    def untracked(self, *which: str, below: Iterable[str] = ()) -> list[str]:
        """Return untracked paths, anywhere or below some paths; a folder without a tracked file once, with a slash.

        which: options that say what of it is left out.
        """
        words = ("ls-files", "-z", "--others", "--directory", "--no-empty-directory", *which, "--")
        return _split(self._look(*words, *(f":(literal){path}" for path in below)))

    def pointers(self) -> list[str]:
        """The files whose content git LFS keeps elsewhere."""
        return _split(self._look("ls-files", "-z", "--", ":(attr:filter=lfs)"))

    def tracked(self, below: Iterable[str]) -> set[str]:
        """The files that git tracks below some paths."""
        return set(_split(self._look("ls-files", "-z", "--", *(f":(literal){path}" for path in below))))

    def changes(self, below: Sequence[str], new: Iterable[str]) -> str:
        """The uncommitted changes below some paths, with untracked files, as `git apply` reads them."""
        added = [Change(path, mode, "") for path in new if (mode := self._content(path)) is not None]
        changed = self.uncommitted(below) if below else []
        return self.text(self.head, self._with(self.head, [*changed, *added]))

    # --- trees

    def base(self) -> str:
        """The tree of the last commit with the uncommitted changes of tracked files."""
        return self._with(self.head, self.uncommitted())

    def without(self, tree: str, paths: Iterable[str]) -> str:
        """A tree without some of its paths."""
        return self._changed(tree, ("update-index", "-z", "--force-remove", "--stdin"), _list(paths))

    def apply(self, tree: str, patch: bytes, *options: str) -> str:
        """A tree with a patch. Raises GitError."""
        return self._changed(tree, ("apply", "--cached", "--whitespace=nowarn", *options, "-"), patch)

    def entries(self, before: str, tree: str) -> list[tuple[str, str, str]]:
        """(path, mode, object) where a tree differs from another; of what it lacks mode and object are zeros."""
        parts = _split(self.git("diff-tree", "-r", "-z", "--raw", "--no-renames", before, tree))
        about = [words.split(" ") for words in parts[::2]]
        return [(path, words[1], words[3]) for path, words in zip(parts[1::2], about, strict=True)]

    def diff(self, before: str, tree: str, option: str, without: Iterable[str] = (), only: str = "") -> bytes:
        """Return the change between two trees as a diff for `git apply`. without: excluded paths. only: one path."""
        words = ("diff-tree", "-r", "-p", "--no-color", "--no-ext-diff", "--no-textconv", "--src-prefix=a/",
                 "--dst-prefix=b/", option, before, tree, "--")  # fmt: skip
        limits = [*(f":(exclude,top,literal){path}" for path in without), *([f":(top,literal){only}"] if only else [])]
        return self.git(*words, *limits)

    def text(self, before: str, tree: str, without: Iterable[str] = ()) -> str:
        """`diff` as text: a file in another encoding than UTF-8 is written as a binary one."""
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
        """The lines that a diff adds and removes; a binary file counts as none."""
        counted = self.git("diff-tree", "-r", "--numstat", before, tree).decode(errors="replace")
        return sum(int(number) for line in counted.splitlines() for number in line.split("\t")[:2] if number != "-")

    def _with(self, tree: str, changes: Sequence[Change]) -> str:
        """A tree with changes of the working copy."""
        files = [one.path for one in changes if not one.object and one.mode in ("100644", "100755")]
        listed = b"".join(_quoted(path) + b"\n" for path in files)
        words = ("hash-object", "-w", "--no-filters", "--stdin-paths")
        written = self.git(*words, given=listed, folder=self.top).decode().split() if files else []
        objects = dict(zip(files, written, strict=True))
        lines = []
        for path, mode, name in sorted(changes, key=lambda one: one.mode != "0"):  # first what is removed
            if mode == LINK and not name:
                target = os.fsencode((self.top / path).readlink())
                name = self.git("hash-object", "-w", "--no-filters", "--stdin", given=target).decode().strip()
            lines.append(f"{mode} {name or objects.get(path, '0' * len(self.head))}\t{path}")
        return self._changed(tree, ("update-index", "-z", "--replace", "--index-info"), _list(lines))

    def _changed(self, tree: str, words: Sequence[str], given: bytes) -> str:
        """The tree that a command makes of another, in an index of its own."""
        index = str(self._trees / f"index-{next(self._numbers)}")
        self.git("read-tree", tree, index=index)
        self.git(*words, index=index, given=given)
        return self.git("write-tree", index=index).decode().strip()

    # --- the working copy

    def _content(self, path: str) -> str | None:
        """The mode of a file of the working copy; None for none, and for a folder, pipe or device in its place."""
        try:
            mode = (self.top / path).lstat().st_mode
        except OSError:
            return None
        if stat.S_ISLNK(mode):
            return LINK
        return ("100755" if mode & 0o100 else "100644") if stat.S_ISREG(mode) else None

    def _same(self, doubtful: Mapping[str, tuple[str, str]]) -> list[str]:
        """Those of some files, with their objects in the last commit, that are the same in the working copy.

        git's index does not know it, for example after a copy of the repository. Files of which only a filter could
        tell count as the same here, and are named in `unread`.
        """
        found, rest = list[str](), list[str]()
        for path, (old, mode) in doubtful.items():
            (found if self._blob(path, mode) == old else rest).append(path)
        rest = [path for path in rest if doubtful[path][1] != LINK]
        if not rest:
            return found
        # line ends and encodings as git's attributes say
        listed = b"".join(_quoted(path) + b"\n" for path in rest)
        converted = self._look("hash-object", "--stdin-paths", given=listed).decode().split()
        found += [path for path, name in zip(rest, converted, strict=True) if name == doubtful[path][0]]
        rest = [path for path in rest if path not in found]
        parts = _split(self._look("check-attr", "-z", "--stdin", "filter", given=_list(rest))) if rest else []
        filters = {path: value for path, value in zip(parts[::3], parts[2::3], strict=True) if _TO_FILTER.match(value)}
        self.unread |= filters
        return [*found, *filters]

    def _blob(self, path: str, mode: str) -> str:
        """git's digest of a file's bytes."""
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
        """Run git where it computes trees. Raises GitError where it fails."""
        own = {"GIT_DIR": str(self._trees)}
        own |= {"GIT_INDEX_FILE": index} if index else {}
        own |= {"GIT_WORK_TREE": str(work_tree)} if work_tree else {}
        return run_git(words, folder or work_tree or self._trees, own, given)

    def _look(self, *words: str, given: bytes = b"") -> bytes:
        """Run git where it sees the working copy, with a copy of the index as it is now."""
        index = self._view / "index"
        if not index.exists():
            try:
                for source in (*self._own.glob("index"), *self._own.glob("sharedindex.*")):
                    shutil.copy2(source, self._view / source.name)  # with its time, by which git knows recent edits
            except OSError as error:
                raise UserError(f"{source} cannot be read: {error.strerror or error}.") from None
        own = {"GIT_DIR": str(self._view), "GIT_INDEX_FILE": str(index), "GIT_WORK_TREE": str(self.top)}
        return run_git(words, self.top, own, given)


def run_git(words: Sequence[str], folder: Path, own: Mapping[str, str], given: bytes = b"") -> bytes:
    """Run git, isolated from the configuration of the user and of any repository: `own` names a GIT_DIR of ours.

    Raises GitError where it fails, UserError where it cannot be started or does not end.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # of a hook that runs us
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
    """The folder of a working copy's own HEAD and index, and that of its refs and objects. Raises UserError."""
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
    """The settings of a repository that say how its files are written. git reads the file as text: no includes."""
    if not file.is_file():
        return {}
    words = ("config", "--file", str(file), "--no-includes", "-z", "--list")
    listed = run_git(words, file.parent, {"GIT_DIR": os.devnull})
    wanted = (*_OF_THE_WORKING_COPY, "extensions.objectformat")
    found = dict(part.partition("\n")[::2] for part in _split(listed))
    found = {name: value or "true" for name, value in found.items() if name in wanted}
    return {name: value for name, value in found.items() if re.fullmatch(r"\w+", value)}


def _stand_in(place: Path, own: Path, common: Path, hash_: str, settings: Mapping[str, str]) -> None:
    """Make a folder that is the repository for git: its refs and objects are linked, its settings are these."""
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
    if os.getpid() == process:  # not in a fork of it
        shutil.rmtree(scratch, ignore_errors=True)


def _quoted(path: str) -> bytes:
    """A path as git reads one from a line."""
    if path.startswith('"') or "\n" in path or "\\" in path:
        path = '"' + path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    return os.fsencode(path)


def _list(paths: Iterable[str]) -> bytes:
    return os.fsencode("".join(f"{path}\0" for path in paths))


def _split(listed: bytes) -> list[str]:
    return [os.fsdecode(part) for part in listed.split(b"\0") if part]
