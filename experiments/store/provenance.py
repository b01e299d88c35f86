"""What a run was trained with: commit, uncommitted changes, versions, host. Imports no torch."""

import functools
import hashlib
import platform
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from experiments.store.code import Root, files_of

PACKAGES = ("torch", "numpy", "sentencepiece", "sacrebleu")  # the numbers of built-in tasks depend on these
DISTRIBUTION = "transformer-ablations"
OURS = ("ablations", "model", "experiments")  # the folders of a checkout that a training may depend on


@dataclass(frozen=True)
class Revision:
    """The state of a repository. `diff`: uncommitted changes of the examined files."""

    repository: str | None  # the name of its folder
    commit: str | None  # None: the files are in no repository
    diff: str

    def facts(self) -> dict[str, Any]:
        """The fields of a record. `dirty` is None if unknown."""
        dirty = bool(self.diff.strip()) if self.commit else None
        digest = hashlib.sha256(self.diff.encode()).hexdigest()[:16] if dirty else None
        return {"repository": self.repository, "commit": self.commit, "dirty": dirty, "diff_digest": digest}


def revision_of(roots: tuple[Root, ...], folder: Path | None) -> Revision:
    """The repository of a task's code, by where it begins: that of the user's files, else this program's.

    For a task without its own code (a command that names no file) it is the repository of the study's `folder`. Read
    once per process: later edits did not take part in the training.
    """
    files = tuple(str(file) for file in files_of(roots))
    if files:
        return _revision(Path(files[0]).parent, files)
    return _tool() if roots else _revision(folder, (str(folder),)) if folder else Revision(None, None, "")


def tool() -> dict[str, Any]:
    """This program: its version, and its commit if it runs from a checkout."""
    facts = _tool().facts()
    del facts["repository"]  # a checkout's folder may have any name
    return {"version": _version(DISTRIBUTION), **facts}


@functools.cache
def _tool() -> Revision:
    here = Path(__file__).resolve()
    # an installed copy may be inside another repository: only one that tracks this file counts
    tracked = _git(here.parent, "ls-files", "--error-unmatch", here.name)
    folders = tuple(str(here.parents[2] / name) for name in OURS)
    return _revision(here.parent, folders) if tracked else Revision(None, None, "")


@functools.cache
def _revision(folder: Path, paths: tuple[str, ...]) -> Revision:
    top = (_git(folder, "rev-parse", "--show-toplevel") or "").rstrip("\n")
    commit = (_git(folder, "rev-parse", "HEAD") or "").strip()
    if not top or not commit:
        return Revision(None, None, "")
    inside = [path for path in paths if Path(path).is_relative_to(top)]
    diff = _git(folder, "diff", "HEAD", "--", *inside) or ""
    files = [path for path in inside if Path(path).is_file()]
    new = (_git(folder, "ls-files", "-z", "--others", "--full-name", "--", *files) or "") if files else ""
    return Revision(
        Path(top).name, commit, diff + "".join(_as_new(Path(top), name) for name in new.split("\0") if name)
    )


def _as_new(top: Path, name: str) -> str:
    """The diff that adds a file without any commit."""
    return _git(top, "diff", "--no-index", "--", "/dev/null", name, ends_with=1) or ""


def _git(folder: Path, *arguments: str, ends_with: int = 0) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == ends_with else None


def versions(packages: Iterable[str] | None) -> dict[str, str]:
    """Versions of Python and of packages by import name, read without importing them.

    None: another program computes the numbers, and its packages are unknown; then the result is {}.
    """
    if packages is None:
        return {}
    found = {"python": platform.python_version()}
    for name in packages:
        version = _version(name) or next((v for d in _distributions().get(name, ()) if (v := _version(d))), None)
        found |= {name: version} if version else {}
    return found


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


@functools.cache
def _distributions() -> Mapping[str, list[str]]:
    """Imported name → distributions: sklearn → scikit-learn."""
    return metadata.packages_distributions()


def host() -> dict[str, str]:
    """Host name, platform and command of this process, for records."""
    return {
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "command": " ".join(sys.argv)[:500],
    }
