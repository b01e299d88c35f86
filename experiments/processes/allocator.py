"""The memory allocator of children: tcmalloc if installed, otherwise glibc's without per-thread caches."""

import ctypes.util
import os

# torch allocates aligned blocks; glibc cannot reuse the gaps that they leave (sourceware bug 14581). Blocks in
# per-thread caches keep such gaps from being merged. Without the caches, a training on batches of always new shapes
# held 19 % less heap, with equally fast allocations.
WITHOUT_CACHES = "glibc.malloc.tcache_count=0"


def allocator() -> dict[str, str]:
    """Environment variables to set before a child starts; none that the user has set.

    With glibc, a training on batches of different shapes fragments its heap: a 4-layer model on multi30k slowed from
    298 to 328 ms per step within 150 steps and held 2.6 GB; with tcmalloc it stayed at 264 ms and 1.6 GB.
    """
    found = None if "LD_PRELOAD" in os.environ else ctypes.util.find_library("tcmalloc_minimal")
    if found:
        return {"LD_PRELOAD": found}
    return {} if "GLIBC_TUNABLES" in os.environ else {"GLIBC_TUNABLES": WITHOUT_CACHES}


def allocates_by_tcmalloc() -> bool:
    """Whether children of this process use tcmalloc."""
    return "tcmalloc" in allocator().get("LD_PRELOAD", os.environ.get("LD_PRELOAD", ""))
