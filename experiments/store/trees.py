"""The code of runs as git trees, with an archive of each tree in the store.

A tree contains the code of base with its uncommitted changes, the code of a commit, or base's code with a patch. Each
tree is archived once in the store. git computes the trees and does not change the user's repository (repository.py).
The name of a tree is git's digest of the exact bytes of all its files.
"""

import contextlib
import re
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from experiments.errors import UserError, explain_os_errors
from experiments.store.checksummed import describe_file, read_json, write_json
from experiments.store.durable import locked, write_bytes
from experiments.store.layout import Store, rows_of, spec_of
from experiments.store.provenance import RepositoryState
from experiments.store.repository import Repository
from experiments.store.spec import FILE as SPEC
from experiments.store.spec import AttemptSpec

TREES = "trees"  # folder in the store with a read-only archive of each tree
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
PACKED_S = 600.0  # longest wait in seconds for another process that archives or removes a tree


# Each tree that this process planned → its repository, the commit on which the tree is based, and the paths of the
# repository that no tree contains (the study file, its patches and linked files).
planned = dict[str, tuple[Repository, str, list[str]]]()


def keep(tree: str, store: Path) -> None:
    """Archive a tree that this process planned in the store, unless the archive exists.

    Raises UserError for a tree that this process did not plan.
    """
    file = archive(store, tree)
    with explain_os_errors(f"write {file}"), _alone(file.parent):
        if file.with_suffix(".json").exists():
            return
        if tree not in planned:
            raise UserError(f"No row of the study has the code {tree}.")
        git, commit, hidden = planned[tree]
        write_bytes(file, git.git("archive", "--format=tar", tree))
        file.chmod(0o444)
        diff = git.text(f"{commit}^{{tree}}", tree, hidden)
        facts = {"archive": describe_file(file), "repository": git.top.name, "commit": commit, "diff": diff}
        write_json(file.with_suffix(".json"), facts)


def _alone(trees: Path) -> AbstractContextManager[None]:
    """Lock the trees of a store while they are archived or removed.

    In the temporary store of `run --smoke`, the folder `trees` is a link to the folder of the real store, so both
    stores have the same lock.
    """
    trees.mkdir(exist_ok=True)
    return locked(trees.resolve().parent, "code", PACKED_S)


def remove_unused(store: Store) -> None:
    """Remove the trees that no run of the store uses, and incomplete archives that killed processes have left.

    The caller must hold the coordinator lock, so that no run starts meanwhile. A process that queues runs first writes
    their descriptions to the store and then archives their trees. So either this function finds the description, or the
    process archives the tree after its removal. Raises UserError if the disk cannot be written.
    """
    trees = store.root / TREES
    if not trees.is_dir():
        return
    with explain_os_errors(f"remove trees from {trees}"), _alone(trees):
        stores = [store, *(Store(path) for path in store.root.glob(".smoke-*"))]
        used = {tree for one in stores for run_id in one.run_ids() for tree in trees_of(one, run_id)}
        for path in sorted(trees.iterdir()):  # removes the .json file first; without it, the tree counts as missing
            if path.stem not in used:
                path.unlink()


def trees_of(store: Store, run_id: str) -> set[str]:
    """Return the trees with which a run was or will be trained.

    The function reads the records of the run, of its rows and of its attempts.
    """
    specs = [spec_of(store, run_id, forgiving=True)]
    for number in store.attempts(run_id):
        with contextlib.suppress(UserError, OSError):
            specs.append(AttemptSpec.read(store.attempt_folder(run_id, number) / SPEC).spec)
    of_rows = (row.trees for row in rows_of(store, run_id))
    return {tree for trees in (*(spec.trainer.trees for spec in specs if spec), *of_rows) for tree in trees}


def is_kept(store: Path, tree: str) -> bool:
    """Return whether the store has the archive of a tree."""
    return archive(store, tree).with_suffix(".json").is_file()


def archive(store: Path, tree: str) -> Path:
    """Return the archive file of a tree. A JSON file of the same name has the archive's hash and the tree's origin.

    Raises UserError for a name that is not a digest of git, because such a name could lead to any path.
    """
    if not _DIGEST.fullmatch(tree):
        raise UserError(f"{tree[:80]!r} is no tree of git: only a row's `patch` or `commit` gives one.")
    return store / TREES / f"{tree}.tar"


def revision_of(store: Path, tree: str) -> RepositoryState:
    """Return the commit on which a tree is based, and the difference between this commit and the tree.

    Raises UserError if the store lacks the tree.
    """
    facts = archive_record(store, tree)
    return RepositoryState(facts["repository"], facts["commit"], facts["diff"])


def archive_record(store: Path, tree: str) -> dict[str, Any]:
    if facts := read_json(archive(store, tree).with_suffix(".json")):
        return facts
    raise UserError(f"The store lacks the code of this run, {tree}. Add it with `ablations run` and the study.")
