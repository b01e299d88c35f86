"""A child's sign of life, once a second: the time in a file of its attempt.

If coordinator and child are killed together, nobody records the attempt's end. Its time then runs to the last heartbeat
instead of the last event, which may be minutes earlier. Imports no torch.
"""

import contextlib
import os
import threading
import time
from pathlib import Path

from experiments.records import record_time
from experiments.store.durable import read_regular

FILE = "alive"
EVERY_S = 1.0


def start_heartbeat(folder: Path) -> None:
    """Write the time into the attempt's folder every second, until this process ends."""
    threading.Thread(target=_beat, args=(folder / FILE,), daemon=True).start()


def _beat(path: Path) -> None:
    with contextlib.suppress(OSError):  # a folder that was removed: the attempt's events say so
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        while True:
            with contextlib.suppress(OSError):  # a full disk
                os.pwrite(file, f"{record_time():.3f}\n".encode(), 0)
            time.sleep(EVERY_S)


def last_heartbeat(folder: Path) -> float:
    """The time of an attempt's last heartbeat, in Unix seconds; 0 if there is none."""
    try:
        return float(read_regular(folder / FILE)[:32])
    except (OSError, ValueError):
        return 0.0
