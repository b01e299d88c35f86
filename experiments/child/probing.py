"""The child of `ablations probe`: like a run's child, and measures the device's speed.

    python -m experiments.child.probing SPEC           as for run.py

Adds the event "probed": matrix_flops, operations per second of a large matrix product in the run's precision.
"""

import sys
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
    code = run.main(spec_path)
    result = TrainingResult.load(spec_path.parent / RESULT_FILE)
    if code == ChildExit.FINISHED and result and result.precision:
        from experiments.device import Device

        device = Device.open(DeviceSpec(**spec.device), result.precision)
        EventWriter(spec_path.parent).emit("probed", matrix_flops=device.matrix_flops())
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute()))
