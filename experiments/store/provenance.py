"""What a run was trained with: commit, uncommitted changes, versions, host. Imports no torch."""

import functools
import hashlib
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "numpy", "sentencepiece", "sacrebleu")  # the numbers of built-in tasks depend on these
DISTRIBUTION = "transformer-ablations"
LARGEST_IN_DIFF = 1 << 20  # bytes of a file, such as data that a command names
OURS = ("ablations", "model", "experiments")  # the folders of a checkout that a training may depend on


@dataclass(frozen=True)
class Revision:
    """The state of a repository. `diff`: uncommitted changes of the examined files; None if git did not say."""

    repository: str | None  # the name of its folder
    commit: str | None  # None: the files are in no repository
    diff: str | None

    def facts(self) -> dict[str, Any]:
        """The fields of a record. `dirty` is None if unknown."""
        dirty = None if self.commit is None or self.diff is None else bool(self.diff.strip())
        digest = hashlib.sha256(self.diff.encode()).hexdigest()[:16] if self.diff and dirty else None
        return {"repository": self.repository, "commit": self.commit, "dirty": dirty, "diff_digest": digest}


def revision_of(files: Iterable[Path], script: str, folder: Path | None) -> Revision:
    """The repository of a user's code: that of the `script`, if it has one.

    files: those of the user's code, whose uncommitted changes the diff has. For a command that names no file, with the
    study's `folder`, it is the repository of that folder. Read once per process: later edits did not take part in the
    training.
    """
    if script:
        return _revision(Path(script).parent, tuple(sorted(map(str, files))))
    return _revision(folder, (str(folder),)) if folder else Revision(None, None, "")


def tool() -> dict[str, Any]:
    """This program: its version, and its commit if it runs from a checkout."""
    facts = tool_revision().facts()
    del facts["repository"]  # a checkout's folder may have any name
    return {"version": _version(DISTRIBUTION), **facts}


@functools.cache
def tool_revision() -> Revision:
    """The repository of this program, if it runs from a checkout."""
    here = Path(__file__).resolve()
    # an installed copy may be inside another repository: only one that tracks this file counts
    tracked = _git(here.parent, "ls-files", "--error-unmatch", here.name)
    folders = tuple(str(here.parents[2] / name) for name in OURS)
    return _revision(here.parent, folders) if tracked else Revision(None, None, "")


@functools.cache
def _revision(folder: Path, paths: tuple[str, ...]) -> Revision:
    """The repository of `folder`, with the uncommitted changes of the paths; these may lie in several (submodules)."""
    top, commit = _top(folder), (_git(folder, "rev-parse", "HEAD") or "").strip()
    if not top or not commit:
        return Revision(None, None, "")
    tops: dict[str, list[Path]] = {}
    for path in (Path(path).resolve() for path in paths):
        tops.setdefault(_top(path if path.is_dir() else path.parent), []).append(path)
    changes = [_changes(Path(one), inside) for one, inside in tops.items() if one]
    return Revision(Path(top).name, commit, None if None in changes else "".join(filter(None, changes)))


@functools.cache
def _top(folder: Path) -> str:
    """The repository in which a folder lies; "" for none."""
    return (_git(folder, "rev-parse", "--show-toplevel") or "").rstrip("\n")


def _changes(top: Path, paths: Sequence[Path]) -> str | None:
    """What no commit of a repository has, as a diff that `git apply` takes; a large file is only named."""
    large = [path for path in paths if path.is_file() and path.stat().st_size > LARGEST_IN_DIFF]
    small = [path for path in paths if path not in large]
    files = [path for path in small if path.is_file()]
    changed = _git(top, "diff", "HEAD", "--", *map(str, small)) if small else ""
    new = _git(top, "ls-files", "-z", "--others", "--full-name", "--", *map(str, files)) if files else ""
    named = _git(top, "status", "--short", "--ignored", "--", *map(str, large)) if large else ""
    if changed is None or new is None or named is None:
        return None
    listed = "".join(f"# too large for this file: {line}\n" for line in named.splitlines())
    added = (_git(top, "diff", "--no-index", "--", "/dev/null", name, ends_with=1) for name in new.split("\0") if name)
    return listed + changed + "".join(filter(None, added))


def _git(folder: Path, *arguments: str, ends_with: int = 0) -> str | None:
    done = run_git(folder, arguments, {}, s=10)
    return done.stdout.decode(errors="replace") if done and done.returncode == ends_with else None


Ran = subprocess.CompletedProcess[bytes]


def run_git(folder: Path, words: Iterable[str], own: Mapping[str, str], given: bytes = b"", s: int = 600) -> Ran | None:
    """Run git in a folder, with variables of its own; None if it cannot be started, or takes more than `s` seconds."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # of a hook that runs us
    kept |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C", **own}
    command = ["git", "-C", str(folder), *words]
    try:
        return subprocess.run(command, env=kept, input=given, capture_output=True, timeout=s, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None


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


@functools.cache
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
