"""Stores with finished runs that many tests read: made by the first process that needs one, until the code changes."""

import fcntl
import functools
import hashlib
import shutil
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
KEPT = ROOT / ".pytest_cache" / "stores"
DAY_S = 86_400


@functools.cache
def _code() -> str:
    """A digest of all code that could write another store: the product's, and what the tests make stores with."""
    digest = hashlib.sha256()
    for top in ("ablations", "model", "experiments", "reports", "tests"):
        for path in sorted((ROOT / top).rglob("*.py")):
            if top != "tests" or not path.name.startswith("test_"):
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def made_once(name: str, make: Callable[[Path], object]) -> Path:
    """The folder that `make` fills. Tests must change copies only."""
    folder = KEPT / _code() / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    done = folder.with_suffix(".done")
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            done.touch()
            for other in KEPT.iterdir():
                if other.name != _code() and other.stat().st_mtime < time.time() - DAY_S:
                    shutil.rmtree(other, ignore_errors=True)
    return folder
