"""The child of `ablations probe`: like a run's child, and measures the device's speed or runs torch's profiler.

    python -m experiments.child.probing SPEC           as for run.py; the spec may name a `trace` file to write

Adds the event "probed": matrix_flops, operations per second of a large matrix product in the run's precision.
"""

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from experiments.child import run
from experiments.config import DeviceSpec
from experiments.events.event_log import EventWriter
from experiments.records import ChildExit
from experiments.store.results import RESULT_FILE, TrainingResult
from experiments.store.spec import AttemptSpec


def main(spec_path: Path) -> int:
    """Run the attempt and measure; returns its exit code."""
    spec = AttemptSpec.read(spec_path)
    with _profile(spec.trace) if spec.trace else contextlib.nullcontext():
        code = run.main(spec_path)
    result = TrainingResult.load(spec_path.parent / RESULT_FILE)
    if code == ChildExit.FINISHED and result and result.precision and not spec.trace:
        from experiments.device import Device

        device = Device.open(DeviceSpec(**spec.device), result.precision)
        EventWriter(spec_path.parent).emit("probed", matrix_flops=device.matrix_flops())
    return code


@contextlib.contextmanager
def _profile(path: str) -> Iterator[None]:
    """Write a Chrome trace of processor and GPU (https://ui.perfetto.dev opens it)."""
    from torch.profiler import profile

    with profile() as profiler:
        yield
    profiler.export_chrome_trace(path)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute()))
