"""A run's code as a tree of git: base's with what is uncommitted, a commit's, or with a patch; kept once in the store.

git computes the trees without touching the user's repository (repository.py). A tree's name is git's digest of all its
files, byte by byte.
"""

import contextlib
import os
import re
import tarfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from experiments.errors import UserError, explain_os_errors
from experiments.store.checksummed import check_file, describe_file, read_json, write_json
from experiments.store.durable import locked, write_bytes
from experiments.store.layout import Store, config_of, rows_of
from experiments.store.provenance import Revision
from experiments.store.repository import Repository
from experiments.store.spec import FILE as SPEC
from experiments.store.spec import AttemptSpec

TREES = "trees"  # in the store: an archive of each tree, read-only
# Settings that say which code trains a run: its tree, base's tree if the row is base with a patch, and the size of the
# difference in lines.
CODE, BASE, LINES = "code_tree", "code_base", "code_lines"


# --- The parts of a patch: its hunks; a file that is made, removed, renamed or binary is one part


class Part(NamedTuple):
    """A piece of a patch that can be applied alone."""

    file: str
    name: str  # for messages: "hunk 2 (train.py, line 40)"
    text: bytes


_WHOLE = re.compile(rb"^(new file|deleted file|rename|copy|old mode|new mode|GIT binary|Binary files) ?", re.MULTILINE)


def _file_of(head: bytes) -> str:
    """The file that a diff changes, from its first line: `a/NAME b/NAME`, or `a/OLD b/NEW`, with any prefixes."""
    names = head.splitlines()[0].removeprefix(b"diff --git ")
    half = len(names) // 2
    old, new = names[:half].strip(b'" '), names[half:].strip(b'" ')
    if old.partition(b"/")[2] != new.partition(b"/")[2]:  # of a rename
        new = re.sub(rb'^.* "?\w/', b"/", names).rstrip(b'"')
    return os.fsdecode(new.partition(b"/")[2])


def parts_of(patch: bytes) -> list[Part]:
    """The parts of what `git diff` prints, in order; [] for another patch. No line of a hunk begins as these do."""
    found = list[Part]()
    for text in re.split(rb"^(?=diff --git )", patch, flags=re.MULTILINE)[1:]:
        head, *hunks = re.split(rb"^(?=@@ -)", text, flags=re.MULTILINE)
        file = _file_of(head)
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
        diff = git.text(f"{commit}^{{tree}}", tree, hidden)
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
