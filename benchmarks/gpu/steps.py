"""Measure how much the times of single steps vary on a GPU, and how often the CPU waits for the GPU in a step.

    python -m benchmarks.gpu.steps --out FILE.json [--steps N] [--device cpu] [--tiny]

The benchmark trains three rows with the code of a run on pairs of many lengths: base, base with cuDNN's attention, and
base with experts that have a capacity. Our program disables cuDNN's attention, because it builds a plan for every
shape. `step_ms` gives percentiles of single steps, each measured until the GPU has finished. `syncs` lists the lines of
code at which the CPU waited for the GPU, with the number per step, from torch's sync debug mode (none on a CPU). Rows
that are already in FILE are not measured again.
"""

import argparse
import collections
import json
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.exits import DONE
from benchmarks.gpu.training_rows import TINY, pairs, planned, train_row
from benchmarks.machine import keep_report, machine, read_report
from benchmarks.measured import exit_code, median
from experiments.device import Device
from experiments.device_spec import DeviceSpec
from experiments.errors import Preempted

EXPERTS = ("model.encoder=N * (self_attention, experts(count=4, capacity=1.25))",)
ROWS: dict[str, tuple[bool, tuple[str, ...]]] = {
    "base": (False, ()), "base cudnn": (True, ()), "experts": (False, EXPERTS),
}  # fmt: skip
WARM, SPREAD, PERCENTILES = 5, 0.4, (50, 90, 99, 100)


def main() -> int:
    options = _options()
    report = read_report(options.out, {"rows": {}})
    device = Device.open(DeviceSpec(options.device, 4), "auto")
    profile, sets = ("demo", TINY) if options.tiny else ("paper", ())
    with tempfile.TemporaryDirectory() as folder:
        data = pairs(Path(folder), 500 if options.tiny else 37000, SPREAD)
        for name, (cudnn, own) in ROWS.items():
            if name in report["rows"]:
                continue
            torch.backends.cuda.enable_cudnn_sdp(cudnn)
            row = planned("table3", profile, sets + own, "base")[0]
            steps = _Steps(device, options.steps)
            train_row(row, data, device, Path(folder), steps.stop, lambda *_: None)
            report["rows"][name] = steps.found
            keep_report({**report, "device": device.describe(), **machine()}, options.out)
            print(name, json.dumps(steps.found), flush=True)
    told = (
        f"{name} {row['step_ms']['50']} ms, at most {row['step_ms']['100']}" for name, row in report["rows"].items()
    )
    syncs = {name: row["syncs_per_step"] for name, row in report["rows"].items()}
    print(f"{'; '.join(told)}; syncs per step {json.dumps(syncs)}")
    return DONE


class _Steps:
    """A measurement of `count` single steps after the warm-up, and of the CPU's waits in as many further steps."""

    def __init__(self, device: Device, count: int) -> None:
        self._device, self._count, self._done = device, count, 0
        self._times = list[float]()
        self._waits = collections.Counter[str]()

    def stop(self) -> bool:
        """Count a step; the trainer calls this after every step. Raises Preempted after the last one."""
        self._done += 1
        past = self._done - WARM
        if 0 <= past <= self._count:
            self._device.synchronize()
            self._times.append(time.perf_counter())
        if past == self._count and self._device.is_cuda:
            self._shown = warnings.showwarning
            warnings.simplefilter("always")
            warnings.showwarning = self._wait
            torch.cuda.set_sync_debug_mode("warn")
        if past < 2 * self._count:
            return False
        if self._device.is_cuda:
            torch.cuda.set_sync_debug_mode("default")
            warnings.showwarning = self._shown
        raise Preempted

    def _wait(self, message: Any, category: Any, filename: str, line: int, *_: Any) -> None:
        if "synchroniz" in str(message):
            self._waits[f"{Path(filename).name}:{line}"] += 1

    @property
    def found(self) -> dict[str, Any]:
        step_ms = np.diff(self._times) * 1e3
        median("steps", step_ms.tolist())
        return {
            "step_ms": {str(p): round(float(np.percentile(step_ms, p)), 2) for p in PERCENTILES},
            "syncs_per_step": round(self._waits.total() / self._count, 2),
            "syncs": {place: round(count / self._count, 2) for place, count in self._waits.most_common(10)},
        }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the report, to which results are added")
    parser.add_argument("--steps", type=int, default=60, help="number of timed steps")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="the sizes of the profile demo")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
