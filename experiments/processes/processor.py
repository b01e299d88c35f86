"""Abilities of this machine's processor, decided only here; and the allocator of children. Imports no torch.

The switch is for tests: on an x86 processor, ABLATIONS_TEST_CPU=avx2 with the two other variables of `SWITCH` leaves
neither bf16 nor AMX, here and in torch. Children inherit it.
"""

import contextlib
import ctypes.util
import functools
import os
from collections.abc import Mapping
from pathlib import Path

from experiments.errors import UserError

_BF16 = {"avx512_bf16", "amx_bf16", "bf16"}  # the last one is ARM's
# torch and oneDNN read theirs at their first product: all are set before the process starts
SWITCH = {"ABLATIONS_TEST_CPU": "avx2", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}


def has_bf16() -> bool:
    """Return whether the processor has instructions for products in bf16. Without them torch computes the same, slowly.

    Raises UserError for a switch that is not set as a whole.
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
    """Return the precision of a setting on this processor: "auto" is bf16 if there are instructions for it."""
    return asked if asked != "auto" else ("bf16" if has_bf16() else "fp32")


@functools.cache
def _flags() -> frozenset[str]:
    """The processor's flags as Linux names them; none if they are unknown."""
    with contextlib.suppress(OSError):
        return frozenset(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split())
    return frozenset()


# --- The memory allocator of children: tcmalloc if installed, otherwise glibc's without per-thread caches


# torch allocates aligned blocks; glibc cannot reuse the gaps that they leave (sourceware bug 14581). Blocks in
# per-thread caches keep such gaps from being merged. Without the caches, a training on batches of always new shapes
# held 19 % less heap, with equally fast allocations.
WITHOUT_CACHES = "glibc.malloc.tcache_count=0"


def allocator() -> dict[str, str]:
    """Environment variables to set before a child starts; none that the user has set.

    With glibc, a training on batches of different shapes fragments its heap: a 4-layer model on multi30k slowed from
    298 to 328 ms per step within 150 steps and held 2.6 GB; with tcmalloc it stayed at 264 ms and 1.6 GB.
    """
    library = None if "LD_PRELOAD" in os.environ else ctypes.util.find_library("tcmalloc_minimal")
    if library:
        return {"LD_PRELOAD": library}
    return {} if "GLIBC_TUNABLES" in os.environ else {"GLIBC_TUNABLES": WITHOUT_CACHES}


def allocates_by_tcmalloc() -> bool:
    """Return whether children of this process use tcmalloc."""
    return "tcmalloc" in allocator().get("LD_PRELOAD", os.environ.get("LD_PRELOAD", ""))


def mps_serves(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether NVIDIA's MPS daemon serves this process, so that kernels of several processes run side by side."""
    return Path(environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"), "control").exists()
