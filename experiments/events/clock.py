"""The time of day that is written into records: of the process's start, plus what has passed since.

A machine's clock may be set while a run trains. Differences of these times are durations all the same, and events of
one attempt stand in their order.
"""

import time

# counts what a machine sleeps, as the time of day does
_PASSED = time.CLOCK_BOOTTIME if hasattr(time, "CLOCK_BOOTTIME") else time.CLOCK_MONOTONIC
_BEGAN = time.time() - time.clock_gettime(_PASSED)


def now() -> float:
    """Seconds since the epoch."""
    return _BEGAN + time.clock_gettime(_PASSED)
