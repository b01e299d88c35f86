"""Stores with finished runs that many tests read.

The first process that needs a store creates it. It is created again when the code changes.
"""

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
    """Return a digest of all code that affects a store's content: the product, and the helper modules of tests."""
    digest = hashlib.sha256()
    for top in ("ablations", "model", "experiments", "reports", "tests"):
        for path in sorted((ROOT / top).rglob("*.py")):
            if top != "tests" or not path.name.startswith("test_"):
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def made_once(name: str, make: Callable[[Path], object]) -> Path:
    """Return the folder that `make` fills. Tests must change only copies of it."""
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
