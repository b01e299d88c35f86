"""The provenance of a training: commit, uncommitted changes, versions, host. This module does not import torch."""

import functools
import hashlib
import os
import platform
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from experiments.errors import UserError
from experiments.masking import masked
from experiments.store.repository import Repository, top_of

PACKAGES = ("torch", "numpy", "sentencepiece", "sacrebleu")  # packages that influence the results of built-in tasks
DISTRIBUTION = "transformer-ablations"
LARGEST_IN_DIFF = 1 << 20  # bytes; the diff leaves out larger files, for example data that a command names
OURS = ("ablations", "model", "experiments")  # the folders of a checkout that a training may depend on


@dataclass(frozen=True)
class RepositoryState:
    """The state of a repository.

    diff: the uncommitted changes of the examined files; None if git could not compute them.
    """

    repository: str | None  # name of the repository's folder
    commit: str | None  # the last commit; None if the files are in no repository
    diff: str | None

    def facts(self) -> dict[str, Any]:
        """Return the fields of a record. `dirty` is None if it is unknown."""
        dirty = None if self.commit is None or self.diff is None else bool(self.diff.strip())
        digest = hashlib.sha256(self.diff.encode()).hexdigest()[:16] if self.diff and dirty else None
        return {"repository": self.repository, "commit": self.commit, "dirty": dirty, "diff_digest": digest}


def revision_of(files: Iterable[Path], script: str, folder: Path | None) -> RepositoryState:
    """Return the state of the repository that contains a user's code.

    The state is read once per process, because later edits do not affect the training.

    files: files of the user's code; the diff contains their uncommitted changes.
    script: file in the repository; "" for a command without a script.
    folder: the study's folder. Without a script, the repository and the whole content of this folder are examined.
    """
    if script:
        return _revision(Path(script).parent, tuple(sorted(map(str, files))))
    return _revision(folder, (str(folder),)) if folder else RepositoryState(None, None, "")


def tool() -> dict[str, Any]:
    """Return the version of this program and facts about its checkout.

    The facts are None if the program is an installed package.
    """
    facts = tool_revision().facts()
    del facts["repository"]  # the folder of a checkout may have any name
    return {"version": _version(DISTRIBUTION), **facts}


@functools.cache
def tool_revision() -> RepositoryState:
    """Return the state of this program's repository; its commit is None if the program is an installed package."""
    here = Path(__file__).resolve()
    # An installed copy may be inside another repository. Only a repository that tracks this file counts.
    folders = tuple(str(here.parents[2] / name) for name in OURS)
    return _revision(here.parent, folders, tracked=here)


@functools.cache
def _revision(folder: Path, paths: tuple[str, ...], tracked: Path | None = None) -> RepositoryState:
    """Return the state of the repository of `folder`, with the uncommitted changes of the paths.

    The paths may lie in several repositories (submodules). If the folder is in no repository, the commit is None.

    tracked: a file; if the repository does not track it, the result is as for a folder in no repository.
    """
    nothing = RepositoryState(None, None, "")
    try:
        repository = Repository(folder)
    except UserError:
        return nothing
    top, commit = repository.top, repository.head
    tops: dict[Path, list[Path]] = {}
    for path in (Path(path).resolve() for path in paths):
        if place := top_of(path if path.is_dir() else path.parent):
            tops.setdefault(place, []).append(path)
    try:
        if tracked is not None and not repository.tracked([os.path.relpath(tracked, top)]):
            return nothing
        changes = [_changes(repository if one == top else Repository(one), inside) for one, inside in tops.items()]
    except UserError:
        return RepositoryState(top.name, commit, None)
    finally:
        repository.close()
    return RepositoryState(top.name, commit, "".join(changes))


def _changes(repository: Repository, paths: Sequence[Path]) -> str:
    """Return a repository's uncommitted changes as a diff for `git apply`. The diff lists large files only by name."""
    large = [path for path in paths if path.is_file() and path.stat().st_size > LARGEST_IN_DIFF]
    names = {path: os.path.relpath(path, repository.top) for path in paths}
    small, files = [names[path] for path in paths if path not in large], [path for path in paths if path.is_file()]
    tracked = repository.tracked([names[path] for path in files]) if files else set()
    new = [names[path] for path in files if names[path] not in tracked]
    changed = {one.path for one in repository.uncommitted([names[path] for path in large])} if large else set()
    diff = repository.changes(small, [name for name in new if name in small])
    listed = ""
    for name in (names[path] for path in large):
        if name in new or name in changed:
            listed += f"# too large for this file: {'??' if name in new else ' M'} {name}\n"
    for path, name in repository.unread.items():
        listed += f"# compared only by the git filter {name}, which was not run: {path}\n"
    return listed + diff


def versions(packages: Iterable[str] | None) -> dict[str, str]:
    """Return the version of Python, and the version of each package, without importing the packages.

    packages: import names; None if another program computes the results. In this case the result is {}.
    """
    if packages is None:
        return {}
    found = {"python": platform.python_version()}
    for name in packages:
        version = _version(name) or next((v for d in _distributions().get(name, ()) if (v := _version(d))), None)
        found |= {name: version} if version else {}
    return found


@functools.cache
def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    """Return a dict from import names to the names of distributions, such as sklearn → scikit-learn."""
    return metadata.packages_distributions()


def host() -> dict[str, str]:
    """Return the host name, platform and command of this process, for records."""
    return {
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "command": masked(" ".join(sys.argv))[:500],
    }
