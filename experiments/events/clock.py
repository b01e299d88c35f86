"""The time of day written into records: the process's start time plus the time elapsed since then.

A machine's clock may be set while a run trains. With this clock, differences are still durations, and the events of an
attempt are in order.
"""

import time

# a clock that also counts while the machine sleeps, like the time of day
_PASSED = time.CLOCK_BOOTTIME if hasattr(time, "CLOCK_BOOTTIME") else time.CLOCK_MONOTONIC
_BEGAN = time.time() - time.clock_gettime(_PASSED)


def now() -> float:
    """Seconds since the epoch."""
    return _BEGAN + time.clock_gettime(_PASSED)
