"""Features of this machine's processor, and the memory allocator of children. This module does not import torch.

Only this module decides which features the processor has. Tests can switch features off: on an x86 processor,
ABLATIONS_TEST_CPU=avx2 and the two other variables of `SWITCH` disable bf16 and AMX, in this program and in torch.
Children inherit these variables.
"""

import contextlib
import ctypes.util
import functools
import os
from collections.abc import Mapping
from pathlib import Path

from experiments.errors import UserError

_BF16 = {"avx512_bf16", "amx_bf16", "bf16"}  # the last one is for ARM
# torch and oneDNN read their variables at the first matrix product, so all are set before the process starts.
SWITCH = {"ABLATIONS_TEST_CPU": "avx2", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}


def has_bf16() -> bool:
    """Return whether the processor has instructions for products in bf16.

    Without them, torch computes the same results slowly. Raises UserError if only some variables of `SWITCH` are set.
    """
    if not os.environ.get("ABLATIONS_TEST_CPU"):
        return not _BF16.isdisjoint(_flags())
    if any(os.environ.get(name) != value for name, value in SWITCH.items()):
        raise UserError(
            "ABLATIONS_TEST_CPU is a switch for this program's own tests. Unset it; or, to run them as on a processor "
            f"with AVX2 alone, set {' '.join(f'{name}={value}' for name, value in SWITCH.items())}."
        )
    return False


def precision_here(asked: str) -> str:
    """Return the precision of a setting on this processor. "auto" is bf16 if the processor has instructions for it."""
    return asked if asked != "auto" else ("bf16" if has_bf16() else "fp32")


@functools.cache
def _flags() -> frozenset[str]:
    """Return all words of /proc/cpuinfo, which include the processor's flags; the empty set without this file."""
    with contextlib.suppress(OSError):
        return frozenset(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split())
    return frozenset()


# torch allocates aligned blocks, and glibc cannot reuse the gaps that they leave (sourceware bug 14581). Blocks in
# per-thread caches prevent such gaps from being merged. Without the caches, the heap of a training with batches of ever
# new shapes was 19 % smaller, and allocations were equally fast.
WITHOUT_CACHES = "glibc.malloc.tcache_count=0"


def allocator() -> dict[str, str]:
    """Return the environment variables to set before a child starts. Variables that the user has set are left out.

    With glibc, a training on batches of different shapes fragments its heap. A 4-layer model on multi30k slowed from
    298 to 328 ms per step within 150 steps and used 2.6 GB. With tcmalloc, it stayed at 264 ms and 1.6 GB.
    """
    library = None if "LD_PRELOAD" in os.environ else ctypes.util.find_library("tcmalloc_minimal")
    if library:
        return {"LD_PRELOAD": library}
    return {} if "GLIBC_TUNABLES" in os.environ else {"GLIBC_TUNABLES": WITHOUT_CACHES}


def allocates_by_tcmalloc() -> bool:
    """Return whether children of this process use tcmalloc."""
    return "tcmalloc" in allocator().get("LD_PRELOAD", os.environ.get("LD_PRELOAD", ""))


def mps_serves(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether NVIDIA's MPS daemon serves this process.

    With MPS, kernels of several processes run side by side.
    """
    return Path(environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"), "control").exists()
