"""A run's code as a tree of git: base's with what is uncommitted, a commit's, or with a patch; kept once in the store.

git computes and packs the trees in a scratch repository that borrows the objects of the user's. So nothing is written
in the working copy or in its .git, no hook, filter or setting of theirs runs, and nothing is fetched. A tree's name is
git's digest of all its files, byte by byte: attributes that would change or leave out files on the way are off.
"""

import atexit
import contextlib
import itertools
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from experiments.errors import UserError, explain_os_errors
from experiments.store.checksummed import check_file, describe_file, read_json, write_json
from experiments.store.durable import locked, write_bytes
from experiments.store.layout import Store, config_of, rows_of
from experiments.store.provenance import Revision, run_git
from experiments.store.spec import FILE as SPEC
from experiments.store.spec import AttemptSpec

TREES = "trees"  # in the store: an archive of each tree, read-only
# Settings that say which code trains a run: its tree, base's tree if the row is base with a patch, and the size of the
# difference in lines.
CODE, BASE, LINES = "code_tree", "code_base", "code_lines"
LINK, SUBMODULE = "120000", "160000"  # git's modes of what is no file
_OFF = "* -export-ignore -export-subst -filter -ident -text -eol -working-tree-encoding !diff\n"
_QUIET = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "protocol.allow=never",
          "-c", "core.quotePath=false")  # fmt: skip


class GitError(UserError):
    """What git does not do, such as apply a patch: the message is git's."""


def top_of(folder: Path) -> Path | None:
    """The repository in which a folder lies, found without git, which a node of a cluster may lack."""
    return next((one for one in (folder, *folder.parents) if (one / ".git").exists()), None)


class Repository:
    """The repository of a study's folder, which is only read."""

    def __init__(self, folder: Path) -> None:
        """Raises UserError for a folder in no repository, or in one without a commit."""
        folder = folder.resolve()
        top = top_of(folder)
        if top is None:
            raise UserError(f"{folder} lies in no git repository, which rows that change code need: `git init`.")
        self.top, self.prefix = top, folder.relative_to(top)
        self._scratch, self._numbers = Path(tempfile.mkdtemp(prefix="ablations-git-")), itertools.count()
        atexit.register(shutil.rmtree, self._scratch, ignore_errors=True)
        self.head = self.commit("HEAD")
        kind = self._theirs("rev-parse", "--show-object-format").decode().strip()
        self.git("init", "-q", "--bare", f"--object-format={kind}", str(self._scratch))
        objects = top / self._theirs("rev-parse", "--git-path", "objects").decode().rstrip("\n")
        (self._scratch / "objects/info/alternates").write_text(f"{objects}\n", encoding="utf-8")
        (self._scratch / "info").mkdir(exist_ok=True)
        (self._scratch / "info/attributes").write_text(_OFF, encoding="utf-8")
        self.nothing = self.git("mktree").decode().strip()

    # --- what the repository has

    def commit(self, name: str) -> str:
        """The commit that a name means now. Raises GitError where there is none."""
        try:
            found = self._theirs("rev-parse", "--verify", "-q", "--end-of-options", f"{name}^{{commit}}")
        except GitError:
            raise GitError(f"{self.top} has no commit {name!r}. Correct the name, or fetch it.") from None
        return found.decode().strip()

    def log(self, *words: str) -> list[tuple[str, str]]:
        """(commit, subject) of each commit that `git log` lists."""
        listed = self._theirs("log", "--format=%H %s", *words, "--").decode(errors="replace")
        return [(commit, subject) for commit, _, subject in (line.partition(" ") for line in listed.splitlines())]

    def fork(self, first: str, last: str) -> str:
        """The commit from which two lines began. Raises GitError where there is none."""
        return self._theirs("merge-base", first, last).decode().strip()

    def uncommitted(self) -> list[str]:
        """The tracked files that differ from the last commit, as the user's git sees them."""
        words = ("diff", "--name-only", "-z", "--no-renames", "--no-ext-diff", "--ignore-submodules=all", "HEAD", "--")
        return _split(self._theirs(*words))

    def untracked(self, *which: str, below: Iterable[str] = ()) -> list[str]:
        """What git does not track, anywhere or below some paths; a folder without a tracked file once, with a slash.

        which: options that say what of it is left out.
        """
        words = ("ls-files", "-z", "--others", "--directory", "--no-empty-directory", *which, "--")
        return _split(self._theirs(*words, *(f":(literal){path}" for path in below)))

    def pointers(self) -> list[str]:
        """The files whose content git LFS keeps elsewhere."""
        return _split(self._theirs("ls-files", "-z", "--", ":(attr:filter=lfs)"))

    # --- trees

    def base(self) -> str:
        """The tree of the last commit with the uncommitted changes of tracked files."""
        return self._changed(
            self.head, ("update-index", "-z", "--add", "--remove", "--stdin"), _list(self.uncommitted()), self.top
        )

    def without(self, tree: str, paths: Iterable[str]) -> str:
        """A tree without some of its paths."""
        words = ("update-index", "-z", "--force-remove", "--stdin")
        return self._changed(tree, words, _list(paths), self._scratch)  # reads nothing in that work tree

    def apply(self, tree: str, patch: bytes, *options: str) -> str:
        """A tree with a patch. Raises GitError."""
        words = ("apply", "--cached", "--whitespace=nowarn", *options, "-")
        return self._changed(tree, words, patch)

    def entries(self, before: str, tree: str) -> list[tuple[str, str, str]]:
        """(path, mode, object) where a tree differs from another; of what it lacks mode and object are zeros."""
        parts = _split(self.git("diff-tree", "-r", "-z", "--raw", "--no-renames", before, tree))
        about = [words.split(" ") for words in parts[::2]]
        return [(path, words[1], words[3]) for path, words in zip(parts[1::2], about, strict=True)]

    def diff(self, before: str, tree: str, option: str, without: Iterable[str] = ()) -> bytes:
        """What a tree has otherwise than another, as `git apply` reads it. without: paths."""
        words = ("diff-tree", "-r", "-p", "--no-color", "--no-ext-diff", "--no-textconv", option, before, tree, "--")
        return self.git(*words, *(f":(exclude,top,literal){path}" for path in without))

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

    def _changed(self, tree: str, words: Sequence[str], given: bytes, work_tree: Path | None = None) -> str:
        """The tree that a command makes of another, in an index of its own."""
        index = str(self._scratch / f"index-{next(self._numbers)}")
        self.git("read-tree", tree, index=index)
        self.git(*words, index=index, given=given, work_tree=work_tree)
        return self.git("write-tree", index=index).decode().strip()


def _git(words: Sequence[str], folder: Path, own: dict[str, str], given: bytes) -> bytes:
    done = run_git(folder, (*_QUIET, *words), own, given)
    if done is None:
        raise UserError("git cannot be started, and rows that change code need it: install it.")
    if done.returncode:
        raise GitError(f"git {words[0]}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def _list(paths: Iterable[str]) -> bytes:
    return os.fsencode("".join(f"{path}\0" for path in paths))


def _split(listed: bytes) -> list[str]:
    return [os.fsdecode(part) for part in listed.split(b"\0") if part]


# --- The parts of a patch: its hunks; a file that is made, removed, renamed or binary is one part


class Part(NamedTuple):
    """A piece of a patch that can be applied alone."""

    file: str
    name: str  # for messages: "hunk 2 (train.py, line 40)"
    text: bytes


_WHOLE = re.compile(rb"^(new file|deleted file|rename|copy|old mode|new mode|GIT binary|Binary files) ?", re.MULTILINE)


def parts_of(patch: bytes) -> list[Part]:
    """The parts of what `git diff` prints, in order; [] for another patch. No line of a hunk begins as these do."""
    found = list[Part]()
    for text in re.split(rb"^(?=diff --git )", patch, flags=re.MULTILINE)[1:]:
        head, *hunks = re.split(rb"^(?=@@ -)", text, flags=re.MULTILINE)
        file = os.fsdecode(re.sub(rb'^diff --git .* "?b/', b"", head.splitlines()[0]).rstrip(b'"'))
        if _WHOLE.search(head) or not hunks:
            found.append(Part(file, f"the change of {file}", text))
            continue
        for hunk in hunks:
            line = hunk[4:].split(b",")[0].split(b" ")[0].decode()
            found.append(Part(file, f"hunk {len(found) + 1} ({file}, line {line})", head + hunk))
    return found


# --- The archive of a tree in the store, and a copy of it for a run


# The trees that this process planned: where, the commit at which each begins, and what of this no tree has.
planned = dict[str, tuple[Repository, str, list[str]]]()


def keep(tree: str, store: Path) -> None:
    """Pack a tree that this process planned into the store, unless it is there. Raises UserError for another."""
    file = archive(store, tree)
    with explain_os_errors(f"write {file}"), _alone(file.parent):
        if file.with_suffix(".json").exists():
            return
        if tree not in planned:
            raise UserError(f"No row of the study has the code {tree}: leave out --set code_tree.")
        git, commit, hidden = planned[tree]
        write_bytes(file, git.git("archive", "--format=tar", tree))
        file.chmod(0o444)
        diff = git.diff(f"{commit}^{{tree}}", tree, "--binary", hidden).decode(errors="replace")
        facts = {"archive": describe_file(file), "repository": git.top.name, "commit": commit, "diff": diff}
        write_json(file.with_suffix(".json"), facts)


def _alone(trees: Path) -> AbstractContextManager[None]:
    """Of the processes that pack or remove a store's trees, one at a time; a trial run's `trees` is a link to them."""
    trees.mkdir(exist_ok=True)
    return locked(trees.resolve().parent, "code")


def remove_unused(store: Store) -> None:
    """Remove the trees that no run of the store has, and what a kill left of one. Raises UserError.

    The caller holds the coordinator lock, so no run starts. Whoever queues runs describes them in the store before it
    packs their trees a last time: either they are seen here, or the tree is packed again.
    """
    trees = store.root / TREES
    if not trees.is_dir():
        return
    with explain_os_errors(f"remove trees from {trees}"), _alone(trees):
        stores = [store, *(Store(path) for path in store.root.glob(".smoke-*"))]
        used = {tree for one in stores for run_id in one.run_ids() for tree in trees_of(one, run_id)}
        for path in sorted(trees.iterdir()):  # of a tree first its facts, without which it counts as missing
            if path.stem not in used:
                path.unlink()


def trees_of(store: Store, run_id: str) -> set[str]:
    """The trees that a run was or will be trained with: of its records, of its rows and of its attempts."""
    configs = [config_of(store, run_id, forgiving=True), *(row.settings for row in rows_of(store, run_id))]
    for number in store.attempts(run_id):
        with contextlib.suppress(UserError, OSError):
            configs.append(AttemptSpec.read(store.attempt_folder(run_id, number) / SPEC).config)
    return {str(config[name]) for config in configs for name in (CODE, BASE) if config.get(name)}


def is_kept(store: Path, tree: str) -> bool:
    """Whether the store has the archive of a tree."""
    return archive(store, tree).with_suffix(".json").is_file()


def archive(store: Path, tree: str) -> Path:
    """The file of a tree in the store; beside it, in JSON, its hash and where it comes from."""
    return store / TREES / f"{tree}.tar"


def revision_of(store: Path, tree: str) -> Revision:
    """The commit at which a tree began, and its difference from there. Raises UserError if the store lacks it."""
    facts = _facts(store, tree)
    return Revision(facts["repository"], facts["commit"], facts["diff"])


def _facts(store: Path, tree: str) -> dict[str, Any]:
    if facts := read_json(archive(store, tree).with_suffix(".json")):
        return facts
    raise UserError(f"The store lacks the code of this run, {tree}: `ablations run` with the study packs it again.")


def unpack(store: Path, tree: str, place: Path) -> list[Path]:
    """Copy a tree to a place; returns its folders and files there. What an earlier attempt left in their way goes.

    Raises UserError for a tree that the store lacks, Damaged for one that has changed there.
    """
    check_file(archive(store, tree), _facts(store, tree)["archive"])
    place.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive(store, tree)) as packed:
        for member in (members := packed.getmembers()):
            path = place / member.name
            if path.is_symlink() or (path.is_file() and not member.isdir()):
                path.unlink()
            if member.issym():
                path.symlink_to(member.linkname)  # of a tree whose links were checked when it was planned
            elif stream := packed.extractfile(member):
                path.write_bytes(stream.read())
                path.chmod(0o755 if member.mode & 0o100 else 0o644)
            else:
                path.mkdir(exist_ok=True)
    return [place / member.name for member in members]
