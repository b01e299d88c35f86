"""For PYTHONPATH: the time of day differs by the seconds in the file $STEPPED_CLOCK, as if the clock had been set.

`time.time` and the boot time of the machine both differ, as both move on Linux. A later change of the file is a step of
the clock under running processes.
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
