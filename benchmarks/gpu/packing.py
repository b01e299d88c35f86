"""Measure the total speed of 1, 2, 4 and 8 small runs on one GPU, each in a separate process.

    python -m benchmarks.gpu.packing --out FILE.json [--counts 1,2,4,8] [--profile small|demo] [--seconds S]
                                     [--device cpu] [--tiny]

Each process trains base of Table 3 with the sizes of a profile, V 8,000 and 4,096 tokens per step, with the code of a
run. All processes start when the last one has finished its warm-up. They train for SLICES equal periods, and the rate
of a process is the median over these. `together` is the sum of their target tokens per second, and `gain` is this sum
divided by the rate of a single process. If a daemon of NVIDIA's MPS is running, the processes use it, and `mps` is
true. Counts that are already in FILE are not measured again.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast

from benchmarks.gpu.exits import DONE, UNFINISHED
from benchmarks.gpu.training_rows import TINY, pairs, planned, train_row
from benchmarks.machine import keep_report, machine, read_report
from benchmarks.measured import exit_code, median
from experiments.config.run_config import RunConfig
from experiments.device import Device
from experiments.device_spec import DeviceSpec
from experiments.errors import Preempted

SMALL = ("data.vocab_size=8000", "training.tokens_per_batch=4096", "training.precision=auto")
WARM = 12
SLICES = 3


def main() -> int:
    options = _options()
    if options.child:
        return _train(options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(UNFINISHED))  # the `finally` clause then ends the children
    report = read_report(options.out, {"profile": options.profile, "counts": {}})
    for count in options.counts.split(","):
        if count in report["counts"]:
            continue
        found = _together(int(count))
        report["counts"][count] = found
        if single := report["counts"].get("1"):
            found["gain"] = round(found["together"] / single["together"], 2)
        keep_report({**report, **machine()}, options.out)
        print(count, json.dumps(found), flush=True)
    told = (f"{count}: {found['together']:,} tokens/s" for count, found in report["counts"].items())
    print(f"runs together {'; '.join(told)}")
    return DONE


def _together(count: int) -> dict[str, Any]:
    """Return the rates of `count` processes that train at the same time."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, "-m", "benchmarks.gpu.packing", *sys.argv[1:], "--child"]
    processes: list[Any] = [subprocess.Popen(command, **pipes) for _ in range(count)]  # type: ignore[call-overload]
    try:
        for process in processes:
            if not process.stdout.readline():
                raise RuntimeError(f"one of {count} processes ended before it was warm: {process.wait()}")
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        answers = [json.loads(process.communicate()[0]) for process in processes]
    finally:
        for process in processes:
            process.kill()
    rates = [median("packing", answer["target_tokens_per_s"]) for answer in answers]
    return {
        "together": round(sum(rates)),
        "each": [round(rate, 1) for rate in rates],
        "memory_gb": answers[0]["memory_gb"],
        "mps": answers[0]["mps"],
    }


def _train(options: argparse.Namespace) -> int:
    """Do the warm-up, wait for the parent's message, train for the given time, and print the rates."""
    device = Device.open(DeviceSpec(options.device, 1), "auto")
    row = planned("table3", "demo" if options.tiny else options.profile, TINY if options.tiny else SMALL, "base")[0]
    clock = _Clock(device, options.seconds / SLICES)
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = cast(RunConfig, row.config).data.vocab_size
        data = pairs(Path(folder), vocabulary, 0.4, 2000)
        train_row(row, data, device, Path(folder), clock.stop, clock.saw)
    answer = {
        "target_tokens_per_s": clock.rates,
        "memory_gb": round(device.peak_memory_bytes() / 1e9, 2),
        "mps": bool(device.describe().get("mps")),
    }
    print(json.dumps(answer), flush=True)
    return DONE


class _Clock:
    """A clock that waits for the parent's message after the warm-up, then counts tokens until all slices are over."""

    def __init__(self, device: Device, slice_s: float) -> None:
        self._device, self._slice_s = device, slice_s
        self._done, self._counts, self._began = 0, dict[int, int](), 0.0
        self._first = 0  # number of the last step before this slice
        self.rates = list[float]()

    def saw(self, step: int, parts: Any) -> None:
        self._counts[step] = sum(part.num_target_tokens for part in parts)

    def stop(self) -> bool:
        self._done += 1
        if self._done < WARM:
            return False
        if self._done == WARM:
            self._device.synchronize()
            print("warm", flush=True)
            if not sys.stdin.readline():  # the parent was killed
                sys.exit(UNFINISHED)
            self._first, self._began = WARM, time.perf_counter()
        elif time.perf_counter() - self._began >= self._slice_s:
            self._device.synchronize()
            now = time.perf_counter()
            tokens = sum(self._counts[step] for step in range(self._first + 1, self._done + 1))
            self.rates.append(tokens / (now - self._began))
            self._first, self._began = self._done, now
        if len(self.rates) == SLICES:
            raise Preempted
        return False


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the report, to which results are added")
    parser.add_argument("--counts", default="1,2,4,8", help="numbers of simultaneous processes")
    parser.add_argument("--profile", choices=("small", "demo"), default="small", help="profile of Table 3")
    parser.add_argument("--seconds", type=float, default=4, help="time of each measurement")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="the profile demo, with batches of 400 tokens")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
