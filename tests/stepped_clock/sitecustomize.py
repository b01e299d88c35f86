"""Shift the clock of Python processes that have this folder on PYTHONPATH.

The file $STEPPED_CLOCK contains the shift in seconds. The shift applies to `time.time` and to the machine's boot time,
because both move on Linux when the clock is set. A later change of the file steps the clock of running processes.
"""

import os
import time
from pathlib import Path

if "STEPPED_CLOCK" in os.environ:
    import psutil

    _seconds = Path(os.environ["STEPPED_CLOCK"])
    _time, _boot_time = time.time, psutil._pslinux.boot_time

    def _offset():
        try:
            return float(_seconds.read_text() or 0)
        except FileNotFoundError:
            return 0.0

    time.time = lambda: _time() + _offset()
    psutil._pslinux.boot_time = lambda: _boot_time() + _offset()
