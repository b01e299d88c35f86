"""Small runs side by side on one GPU, each in its own process: what do 1, 2, 4 and 8 train together?

    python -m benchmarks.gpu.packing --out FILE.json [--counts 1,2,4,8] [--seconds S] [--device cpu] [--tiny]

Each process trains Table 3's base at its demo's size with V 8,000 and 4,096 tokens a step, with the code of a run. All
begin when the last one is warm. `together` is the sum of their target tokens per second, `gain` that over a single
one's. Every count is measured without and with NVIDIA's MPS ("4", "4 mps"), for which it starts a daemon of its own and
ends it; where a daemon runs already, or none can be started, only as it is. Counts in FILE are not measured again.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from benchmarks.gpu.exits import DONE, UNFINISHED
from benchmarks.gpu.training_rows import TINY, pairs, planned, train_row
from benchmarks.machine import keep_report, machine
from experiments.config import DeviceSpec, RunConfig
from experiments.device import Device
from experiments.processes.processor import mps_serves

SMALL = ("data.vocab_size=8000", "training.tokens_per_batch=4096", "training.precision=auto")
WARM = 12
MPS = "nvidia-cuda-mps-control"


def main() -> int:
    options = _options()
    if options.child:
        return _train(options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(UNFINISHED))  # through `finally`, which ends the children
    report = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else {"counts": {}}
    can_serve = options.device == "cuda" and shutil.which(MPS) is not None and not mps_serves()
    for served in (False, True) if can_serve else (False,):
        with mps() if served else contextlib.nullcontext():
            for count in options.counts.split(","):
                name = f"{count} mps" if served else count
                if name in report["counts"]:
                    continue
                found = _together(int(count))
                report["counts"][name] = found
                if single := report["counts"].get("1"):
                    found["gain"] = round(found["together"] / single["together"], 2)
                keep_report({**report, **machine()}, options.out)
    told = (f"{count}: {found['together']:,} tokens/s" for count, found in report["counts"].items())
    print(f"runs together {'; '.join(told)}")
    return DONE


@contextlib.contextmanager
def mps() -> Iterator[None]:
    """A daemon of NVIDIA's MPS for the processes that are started meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        own = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        subprocess.run([MPS, "-d"], env={**os.environ, **own}, check=True, timeout=60)
        os.environ.update(own)
        try:
            yield
        finally:
            subprocess.run([MPS], input=b"quit\n", env=os.environ, check=False, timeout=60)
            for name in own:
                del os.environ[name]


def _together(count: int) -> dict[str, Any]:
    """The rates of so many processes that train at the same time."""
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
    rates = [answer["target_tokens_per_s"] for answer in answers]
    return {
        "together": round(sum(rates)),
        "each": rates,
        "memory_gb": answers[0]["memory_gb"],
        "mps": answers[0]["mps"],
    }


def _train(options: argparse.Namespace) -> int:
    """Train until warm, wait for the word, train for the time, report."""
    device = Device.open(DeviceSpec(options.device, 1), "auto")
    row = planned("table3", "demo", TINY if options.tiny else SMALL, "base")[0]
    clock = _Clock(device, options.seconds)
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = cast(RunConfig, row.config).data.vocab_size
        data = pairs(Path(folder), vocabulary, 0.4, 2000)
        train_row(row, data, device, Path(folder), clock.stop, clock.saw)
    answer = {
        "target_tokens_per_s": round(clock.tokens / clock.seconds, 1),
        "memory_gb": round(device.peak_memory_bytes() / 1e9, 2),
        "mps": bool(device.describe().get("mps")),
    }
    print(json.dumps(answer), flush=True)
    return DONE


class _Clock:
    """Waits for the word after the warm steps; then counts tokens until the time is over."""

    def __init__(self, device: Device, lasting: float) -> None:
        self._device, self._lasting = device, lasting
        self._done, self._counts, self._began = 0, dict[int, int](), 0.0
        self.seconds = 0.0

    def saw(self, step: int, parts: Any) -> None:
        self._counts[step] = sum(part.num_target_tokens for part in parts)

    def stop(self) -> bool:
        self._done += 1
        if self._done == WARM:
            self._device.synchronize()
            print("warm", flush=True)
            if not sys.stdin.readline():  # its parent was killed
                sys.exit(UNFINISHED)
            self._began = time.perf_counter()
        if self._done <= WARM or time.perf_counter() - self._began < self._lasting:
            return False
        self._device.synchronize()
        self.seconds = time.perf_counter() - self._began
        return True

    @property
    def tokens(self) -> int:
        """Of the steps after the warm ones; later ones were prepared ahead."""
        return sum(tokens for step, tokens in self._counts.items() if WARM < step <= self._done)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the report; read first, then added to")
    parser.add_argument("--counts", default="1,2,4,8", help="processes at once")
    parser.add_argument("--seconds", type=float, default=4, help="of each measurement")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="the demo's vocabulary and batches of 400 tokens")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
