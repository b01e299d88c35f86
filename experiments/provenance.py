"""What trained a run: a digest of the code, the commit and its uncommitted changes, versions, host. No torch."""

import functools
import hashlib
import importlib.util
import platform
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

# The code whose change may change a trained number. Planning, queueing and reporting are not in it.
TRAINING_CODE = (
    "model",
    "experiments.data",
    "experiments.training",
    "experiments.tasks",
    "experiments.device",
)
# The code whose change may change a score of given weights.
EVALUATION_CODE = ("model", "experiments.evaluation", "experiments.data", "experiments.tasks")
_PACKAGES = ("torch", "numpy", "sentencepiece", "sacrebleu", "safetensors", "pydantic")


@functools.cache
def code_digest(modules: tuple[str, ...]) -> str:
    """16 hex digits over the source of modules and packages, by dotted name, and of a user's files, by path.

    A path itself does not count: a study may be moved.
    """
    digest = hashlib.sha256()
    for name in modules:
        for path in _sources(name):
            digest.update(f"{'' if name.startswith('/') else name}:{path.name}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _sources(name: str) -> list[Path]:
    if name.startswith("/"):
        return [Path(name)]
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(f"no module named {name}")
    if spec.submodule_search_locations:
        folder = Path(next(iter(spec.submodule_search_locations)))
        return sorted(p for p in folder.rglob("*") if p.suffix in {".py", ".toml"} and p.is_file())
    return [Path(spec.origin)] if spec.origin else []


@functools.cache
def revision() -> dict[str, Any]:
    """Commit of the code that runs, whether it is changed since, and the change's digest; empty without git."""
    here = Path(__file__).resolve().parent
    # an installed copy may lie inside somebody else's repository: only one that tracks this file counts
    tracked = _git(here, "ls-files", "--error-unmatch", Path(__file__).name)
    commit = _git(here, "rev-parse", "HEAD") if tracked else None
    if not commit:
        return {"commit": None, "dirty": None}
    diff = _git(here, "diff", "HEAD", "--", ".", "../model", "../ablations") or ""
    dirty = bool(diff.strip())
    return {
        "commit": commit.strip(),
        "dirty": dirty,
        "diff_digest": hashlib.sha256(diff.encode()).hexdigest()[:16] if dirty else None,
    }


def dirty_diff() -> str:
    """The uncommitted change itself, to be kept beside a run."""
    here = Path(__file__).resolve().parent
    return _git(here, "diff", "HEAD", "--", ".", "../model", "../ablations") or ""


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None


@functools.cache
def versions() -> dict[str, str]:
    """Versions of Python and of the packages that numbers depend on, read without importing them."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def host() -> dict[str, str]:
    return {
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "command": " ".join(sys.argv)[:500],
    }
