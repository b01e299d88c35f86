"""The heartbeat of a child process. The child writes the time to a file of its attempt once a second.

If the coordinator and the child are killed together, the end of the attempt is not recorded. In this case the last
heartbeat counts as the end of the attempt, because the last event may be minutes earlier.

This module does not import torch.
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
    with contextlib.suppress(OSError):  # if the folder was removed, writing events raises an error
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        while True:
            with contextlib.suppress(OSError):  # the disk may be full
                os.pwrite(file, f"{record_time():.3f}\n".encode(), 0)
            time.sleep(EVERY_S)


def last_heartbeat(folder: Path) -> float:
    """Return the time of an attempt's last heartbeat in Unix seconds, or 0 if there is none."""
    try:
        return float(read_regular(folder / FILE)[:32])
    except (OSError, ValueError):
        return 0.0
