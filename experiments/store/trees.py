"""A run's code as a tree of git: base's with what is uncommitted, a commit's, or with a patch; kept once in the store.

git computes and packs the trees in a scratch repository that borrows the objects of the user's. So nothing is written
in the working copy or in its .git, no hook, filter or setting of theirs runs, and nothing is fetched. A tree's name is
git's digest of all its files, byte by byte: attributes that would change or leave out files on the way are off.
"""

import atexit
import hashlib
import io
import itertools
import os
import posixpath
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.errors import Damaged, UserError, explain_os_errors
from experiments.store.durable import write_bytes

TREES = "trees"  # in the store: an archive of each tree, read-only
LINK, SUBMODULE = "120000", "160000"  # git's modes of what is no file
_OFF = "* -export-ignore -export-subst -filter -ident -text -eol -working-tree-encoding !diff\n"
_QUIET = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "protocol.allow=never",
          "-c", "core.quotePath=false")  # fmt: skip


class GitError(UserError):
    """What git does not do, such as apply a patch: the message is git's."""


def top_of(folder: Path) -> Path | None:
    """The repository in which a folder lies, found without git, which a node of a cluster may lack."""
    return next((one for one in (folder, *folder.parents) if (one / ".git").exists()), None)


class Entry(NamedTuple):
    """A path that one tree has otherwise than another: mode and object there; of a removed one both are zeros."""

    path: str
    mode: str
    name: str


class Repository:
    """The repository of a study's folder, which is only read."""

    def __init__(self, folder: Path) -> None:
        """Raises UserError for a folder in no repository, or in one without a commit."""
        folder = folder.resolve()
        top = top_of(folder)
        if top is None:
            raise UserError(f"{folder} lies in no git repository, from which a row's code could be taken: `git init` "
                            "and commit, or leave out `patch` and `commit`.")  # fmt: skip
        self.top, self.prefix = top, folder.relative_to(top)
        self._scratch, self._numbers = Path(tempfile.mkdtemp(prefix="ablations-git-")), itertools.count()
        atexit.register(shutil.rmtree, self._scratch, ignore_errors=True)
        self.head = self.commit("HEAD") or ""
        if not self.head:
            raise UserError(f"The repository {top} has no commit that git can read: commit the code of base.")
        kind = self._theirs("rev-parse", "--show-object-format").decode().strip()
        self.git("init", "-q", "--bare", f"--object-format={kind}", str(self._scratch))
        objects = top / self._theirs("rev-parse", "--git-path", "objects").decode().rstrip("\n")
        (self._scratch / "objects/info/alternates").write_text(f"{objects}\n", encoding="utf-8")
        (self._scratch / "info").mkdir(exist_ok=True)
        (self._scratch / "info/attributes").write_text(_OFF, encoding="utf-8")
        self.nothing = self.git("mktree").decode().strip()

    # --- what the repository has

    def commit(self, name: str) -> str | None:
        """The commit that a name means now; None if there is none."""
        try:
            found = self._theirs("rev-parse", "--verify", "-q", "--end-of-options", f"{name}^{{commit}}")
        except GitError:
            return None
        return found.decode().strip()

    def log(self, *words: str) -> list[tuple[str, str]]:
        """(commit, subject) of each commit that `git log` lists."""
        listed = self._theirs("log", "--format=%H %s", *words, "--").decode(errors="replace")
        return [(commit, subject) for commit, _, subject in (line.partition(" ") for line in listed.splitlines())]

    def fork(self, first: str, last: str) -> str | None:
        """The commit from which two lines began."""
        try:
            return self._theirs("merge-base", first, last).decode().strip()
        except GitError:
            return None

    def uncommitted(self) -> list[str]:
        """The tracked files that differ from the last commit, as the user's git sees them."""
        words = ("diff", "--name-only", "-z", "--no-renames", "--no-ext-diff", "--ignore-submodules=all", "HEAD", "--")
        return _split(self._theirs(*words))

    def untracked(self, paths: Iterable[str] = (), *, ignored: bool = False) -> list[str]:
        """What git does not track below some paths, or anywhere; folders without a tracked file once, with a slash.

        ignored: also what it ignores, but for caches of Python.
        """
        which = ("-x", "__pycache__/") if ignored else ("--exclude-standard",)
        words = ("ls-files", "-z", "--others", "--directory", "--no-empty-directory")
        shown = self._theirs(*words, *(() if ignored else which), "--", *(f":(literal){path}" for path in paths))
        return [path for path in _split(shown) if not path.endswith("__pycache__/")]

    def pointers(self) -> list[str]:
        """The files whose content git LFS keeps elsewhere."""
        return _split(self._theirs("ls-files", "-z", "--", ":(attr:filter=lfs)"))

    # --- trees

    def base(self) -> str:
        """The tree of the last commit with the uncommitted changes of tracked files."""
        index, changed = self._index(self.head), "".join(f"{path}\0" for path in self.uncommitted())
        words = ("update-index", "-z", "--add", "--remove", "--stdin")
        self.git(*words, index=index, given=os.fsencode(changed), work_tree=self.top)
        return self._tree(index)

    def without(self, tree: str, paths: Iterable[str]) -> str:
        """A tree without some of its paths."""
        index, gone = self._index(tree), "".join(f"{path}\0" for path in paths)
        words = (
            "update-index",
            "-z",
            "--force-remove",
            "--stdin",
        )  # it reads nothing in the work tree
        self.git(*words, index=index, given=os.fsencode(gone), work_tree=self._scratch)
        return self._tree(index)

    def apply(self, tree: str, patch: bytes, *, reverse: bool = False) -> str:
        """A tree with a patch. Raises GitError."""
        if not patch.strip():
            return tree
        index, backwards = self._index(tree), ("--reverse",) if reverse else ()
        self.git("apply", "--cached", "--whitespace=nowarn", *backwards, "-", index=index, given=patch)
        return self._tree(index)

    def entries(self, before: str, tree: str) -> list[Entry]:
        """The paths in which a tree differs from another."""
        parts = _split(self.git("diff-tree", "-r", "-z", "--raw", "--no-renames", before, tree))
        about = [words.split(" ") for words in parts[::2]]
        return [Entry(path, new[1], new[3]) for new, path in zip(about, parts[1::2], strict=True)]

    def read(self, name: str) -> bytes:
        """The content of a file, or of a link, by its object."""
        return self.git("cat-file", "blob", name)

    def diff(self, before: str, tree: str, option: str, paths: Iterable[str] = ()) -> bytes:
        """What a tree has otherwise than another, as `git apply` reads it."""
        words = ("diff-tree", "-r", "-p", "--no-color", "--no-ext-diff", "--no-textconv", option)
        return self.git(*words, before, tree, "--", *paths)

    def lines(self, before: str, tree: str) -> int:
        """The lines that a diff adds and removes; a binary file counts as none."""
        counted = self.git("diff-tree", "-r", "--numstat", before, tree).decode(errors="replace")
        return sum(int(number) for line in counted.splitlines() for number in line.split("\t")[:2] if number != "-")

    # --- git

    def git(self, *words: str, index: str = "", given: bytes = b"", work_tree: Path | None = None) -> bytes:
        """Run git in the scratch repository. Raises GitError where it fails."""
        own = {"GIT_DIR": str(self._scratch), "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
        own |= {"GIT_INDEX_FILE": index} if index else {}
        own |= {"GIT_WORK_TREE": str(work_tree)} if work_tree else {}
        return _git(words, work_tree or self._scratch, own, given)

    def _theirs(self, *words: str) -> bytes:
        return _git(words, self.top, {}, b"")

    def _index(self, tree: str) -> str:
        index = str(self._scratch / f"index-{next(self._numbers)}")
        self.git("read-tree", tree, index=index)
        return index

    def _tree(self, index: str) -> str:
        made = self.git("write-tree", index=index).decode().strip()
        Path(index).unlink()
        return made


def _git(words: Sequence[str], folder: Path, own: Mapping[str, str], given: bytes) -> bytes:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # of a hook that runs us
    environment = {**kept, "GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C", **own}
    try:
        done = subprocess.run(
            ["git", *_QUIET, *words], cwd=folder, env=environment, input=given, capture_output=True, check=False
        )
    except OSError as error:
        raise UserError(f"git cannot be started ({error.strerror}): rows that change code need it.") from None
    if done.returncode:
        raise GitError(f"git {words[0]}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def _split(listed: bytes) -> list[str]:
    return [os.fsdecode(part) for part in listed.split(b"\0") if part]


def leads_out(path: str, target: str) -> bool:
    """Whether a link at a path of a tree leads out of the tree."""
    return posixpath.isabs(target) or posixpath.normpath(posixpath.join(posixpath.dirname(path), target))[:2] == ".."


# --- The parts of a patch: its hunks; a file that is made, removed, renamed or binary is one part


class Part(NamedTuple):
    """A piece of a patch that can be applied alone."""

    file: str
    name: str  # for messages: "hunk 2 (train.py, line 40)"
    text: bytes


_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_WHOLE = re.compile(rb"^(new file|deleted file|rename|copy|old mode|new mode|GIT binary|Binary files) ?", re.MULTILINE)


def parts_of(patch: bytes, *, by_file: bool = False) -> list[Part]:
    """The hunks of a patch, or its files, in their order."""
    found = list[Part]()
    for head, hunks in _files(patch):
        named = re.search(rb"^\+\+\+ (?:b/)?([^\t\n]+)", head, re.M), re.search(rb"^--- (?:a/)?([^\t\n]+)", head, re.M)
        names = [os.fsdecode(one[1].rstrip(b"\r")) for one in named if one and not one[1].startswith(b"/dev/null")]
        git = re.match(rb"diff --git a/.* b/(.*)", head)
        file = names[0] if names else os.fsdecode(git[1].rstrip(b"\r")) if git else "?"
        whole = by_file or not hunks or _WHOLE.search(head)
        for text, line in [(b"".join(text for text, _ in hunks), 0)] if whole else hunks:
            name = f"hunk {len(found) + 1} ({file}, line {line})" if line else f"the change of {file}"
            found.append(Part(file, name, head + text))
    return found


def _files(patch: bytes) -> Iterator[tuple[bytes, list[tuple[bytes, int]]]]:
    """The head of each file in a patch, and its hunks with the line at which each begins."""
    head, hunks, old, new = b"", list[tuple[bytes, int]](), 0, 0
    for line in re.findall(rb"[^\n]*\n|[^\n]+", patch):
        if old > 0 or new > 0 or (hunks and line.startswith(b"\\")):
            old, new = old - (line[:1] not in (b"+", b"\\")), new - (line[:1] not in (b"-", b"\\"))
            hunks[-1] = (hunks[-1][0] + line, hunks[-1][1])
        elif begins := _HUNK.match(line):
            old, new = int(begins[2] or 1), int(begins[3] or 1)
            hunks.append((line, int(begins[1])))
        elif line.startswith(b"diff --git ") or (line.startswith(b"--- ") and (hunks or b"diff --git " not in head)):
            if hunks or b"diff --git " in head:
                yield head, hunks
            head, hunks = line, []
        elif not hunks:
            head += line
    if hunks or b"diff --git " in head:
        yield head, hunks


# --- The archive of a tree, and a copy of it for a run


made_by = dict[str, Repository]()  # the trees that this process planned


def keep(tree: str, store: Path) -> None:
    """Pack a tree that this process planned into the store, unless it is there. Raises UserError for another."""
    file = archive(store, tree)
    if not file.exists() and tree not in made_by:
        raise UserError(f"No row of the study has the code {tree}: leave out --set code_tree.")
    with explain_os_errors(f"write {file}"):
        if not file.exists():
            file.parent.mkdir(exist_ok=True)
            write_bytes(file, made_by[tree].git("archive", "--format=tar", tree))
            file.chmod(0o444)


def archive(store: Path, tree: str) -> Path:
    """The file of a tree in the store."""
    return store / TREES / f"{tree}.tar"


def unpack(store: Path, tree: str, place: Path) -> list[Path]:
    """Copy a tree to a place; returns its files there. Links of an earlier attempt in their way are removed first.

    Raises UserError for a tree that the store has not, Damaged for one whose content is not what its name says.
    """
    try:
        content = archive(store, tree).read_bytes()
    except OSError as error:
        raise UserError(f"The code of this run, {archive(store, tree)}, cannot be read ({error.strerror}): `ablations "
                        "run` with the study packs it again.") from None  # fmt: skip
    place.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(content)) as packed:
        members = packed.getmembers()
        if _digest(packed, members, "sha1" if len(tree) == 40 else "sha256") != tree:
            raise Damaged(f"{archive(store, tree)} is not the tree that its name says. Remove it: `ablations run` with "
                          "the study packs it again.")  # fmt: skip
        for member in members:
            path = place / member.name
            if path.is_symlink() or (path.is_file() and not member.isdir()):
                path.unlink()
            if member.issym():
                if leads_out(member.name, member.linkname):
                    raise Damaged(f"{archive(store, tree)} has a link that leads out of it, {member.name}.")
                path.symlink_to(member.linkname)
            elif stream := packed.extractfile(member):
                path.write_bytes(stream.read())
                path.chmod(0o755 if member.mode & 0o100 else 0o644)
            else:
                path.mkdir(exist_ok=True)
    return [place / member.name for member in members if not member.isdir()]


def _digest(packed: tarfile.TarFile, members: Iterable[tarfile.TarInfo], kind: str) -> str:
    """git's name of a tree."""
    trees: dict[str, list[tuple[bytes, bytes]]] = {"": []}  # by folder, entries as git sorts and writes them

    def object_(what: bytes, content: bytes) -> bytes:
        return hashlib.new(kind, b"%s %d\0%s" % (what, len(content), content)).digest()

    def put(path: str, mode: bytes, digest: bytes, ends: bytes = b"") -> None:
        folder, _, name = path.rpartition("/")
        trees.setdefault(folder, []).append(
            (os.fsencode(name) + ends, mode + b" " + os.fsencode(name) + b"\0" + digest)
        )

    for member in members:
        if member.issym():
            put(member.name, b"120000", object_(b"blob", os.fsencode(member.linkname)))
        elif member.isfile() and (stream := packed.extractfile(member)):
            put(member.name, b"100755" if member.mode & 0o100 else b"100644", object_(b"blob", stream.read()))
        else:
            trees.setdefault(member.name.rstrip("/"), [])
    for folder in sorted(trees, key=lambda path: (-path.count("/"), path == "")):  # the deepest first, the root last
        made = object_(b"tree", b"".join(entry for _, entry in sorted(trees[folder])))
        if folder:
            put(folder, b"40000", made, b"/")
    return made.hex()
