"""Measure how fast GPUs exchange gradients, and how fast base trains on 1, 2, 4 and 8 GPUs.

    python -m benchmarks.gpu.cards --out FILE.json [--device cpu] [--tiny]

Every GPU has one process. The processes communicate with NCCL (gloo on a CPU). All-reduce is measured by size:
`bus_gb_per_s` is 2 (n − 1) / n × bytes / time, the traffic of a ring over each GPU's link. The sums are checked.
Data-parallel steps train base of Table 3 with the code of a run on several devices and 25,000 tokens per step and GPU.
`gain` is the tokens per second divided by those of one GPU. With a single GPU the exit code is 4.
"""

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import distributed

from benchmarks.gpu.exits import DONE, LEFT_OUT
from benchmarks.gpu.training import SPREAD
from benchmarks.gpu.training_rows import TINY as TINY_SETTINGS
from benchmarks.gpu.training_rows import pairs, planned, train_row
from benchmarks.machine import keep_report, machine
from benchmarks.measured import exit_code, median
from experiments.config.run_config import RunConfig
from experiments.device import Device
from experiments.device_spec import DeviceSpec
from experiments.training.ranks import joined

MEGABYTES, TINY = (1, 16, 256), (1,)  # the gradients of base in fp32 have about 256 MB
ROUNDS, WARM, ROUNDS_TRAINED = 10, 3, 3
TOGETHER = (1, 2, 4, 8)


def main() -> int:
    options = _options()
    if options.together:
        return _train(options)
    if options.rank is not None:
        return _measure(options)
    ranks = torch.cuda.device_count() if options.device == "cuda" else 2
    if ranks < 2:
        print("one card: nothing to exchange")
        return LEFT_OUT
    with tempfile.TemporaryDirectory() as folder:
        own = ["--ranks", str(ranks), "--meet", f"{folder}/meet"]
        command = [sys.executable, "-m", "benchmarks.gpu.cards", *sys.argv[1:], *own]
        processes = [subprocess.Popen([*command, "--rank", str(rank)]) for rank in range(ranks)]
        codes = [process.wait() for process in processes]
    for count in (count for count in TOGETHER if count <= ranks and not any(codes)):
        own = ["--together", str(count), "--rank", "0"]
        codes.append(subprocess.run([sys.executable, "-m", "benchmarks.gpu.cards", *sys.argv[1:], *own]).returncode)
    return max(codes, key=abs, default=DONE)


def _train(options: argparse.Namespace) -> int:
    """Run one rank of a data-parallel training. Rank 0 starts the others and writes the report."""
    spec = DeviceSpec(options.device, 1 if options.tiny else 4, count=options.together)
    start = None if options.rank else partial(_Others, options.together)
    with joined(spec, options.rank, options.port, start) as group, tempfile.TemporaryDirectory() as folder:
        device = Device.open(spec, "auto", rank=options.rank)
        tokens = f"training.tokens_per_batch={(400 if options.tiny else 25000) * options.together}"
        profile, sets = ("demo", (*TINY_SETTINGS, tokens)) if options.tiny else ("paper", (tokens,))
        row = planned("table3", profile, sets, "base")[0]
        data = pairs(Path(folder), cast(RunConfig, row.config).data.vocab_size, SPREAD)
        clock = _Clock(device, 2 if options.tiny else 10)
        train_row(row, data, device, Path(folder), clock.stop, clock.saw, group)
        mine = torch.tensor([clock.rate])
        rate = float(group.add_up(mine))
    if options.rank == 0:
        report = json.loads(options.out.read_text(encoding="utf-8"))
        step_ms = 1e3 * median("cards", clock.seconds) / clock.steps
        found = {"target_tokens_per_s": round(rate), "step_ms": round(step_ms, 2)}
        one = report.setdefault("training", {}).get("1", found)
        found["gain"] = round(rate / one["target_tokens_per_s"], 2)
        report["training"][str(options.together)] = found
        keep_report(report, options.out)
        told = (f"{count}: {each['gain']}" for count, each in report["training"].items())
        print(f"data-parallel steps on so many cards gain {', '.join(told)} times")
    return DONE


class _Clock:
    """A clock that stops the trainer after one round of warm-up and ROUNDS_TRAINED measured rounds."""

    def __init__(self, device: Device, steps: int) -> None:
        self._device, self.steps, self._done = device, steps, 0
        self._times, self._tokens = list[float](), dict[int, int]()

    def saw(self, step: int, parts: Any) -> None:
        self._tokens[step] = sum(part.num_target_tokens for part in parts)

    def stop(self) -> bool:
        self._done += 1
        past = self._done - self.steps  # the first round is the warm-up
        if past >= 0 and past % self.steps == 0:
            self._device.synchronize()
            self._times.append(time.perf_counter())
        return len(self._times) > ROUNDS_TRAINED

    @property
    def seconds(self) -> list[float]:
        """The seconds of every measured round."""
        return [later - earlier for earlier, later in itertools.pairwise(self._times)]

    @property
    def rate(self) -> float:
        """The median over rounds of the target tokens per second."""
        steps = self.steps
        firsts = [steps * (number + 1) + 1 for number in range(len(self.seconds))]
        tokens = [sum(self._tokens[first + step] for step in range(steps)) for first in firsts]
        return median("cards", [some / second for some, second in zip(tokens, self.seconds, strict=True)])


class _Others:
    """The processes of ranks 1, 2, … of this benchmark (experiments/training/ranks.py)."""

    def __init__(self, count: int, port: int) -> None:
        command = [sys.executable, "-m", "benchmarks.gpu.cards", *sys.argv[1:], "--port", str(port)]
        self._processes = [subprocess.Popen([*command, "--rank", str(rank)]) for rank in range(1, count)]

    def wait(self) -> None:
        for process in self._processes:
            process.wait()

    def kill(self) -> None:
        for process in self._processes:
            process.kill()

    def blame(self) -> None:
        """Do nothing, because the errors of these processes are already in the log."""


def _measure(options: argparse.Namespace) -> int:
    cuda = options.device == "cuda"
    device = torch.device("cuda", options.rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    meeting = {"init_method": f"file://{options.meet}", "rank": options.rank, "world_size": options.ranks}
    distributed.init_process_group("nccl" if cuda else "gloo", **meeting)
    results = list[dict[str, Any]]()
    for megabytes in TINY if options.tiny else MEGABYTES:
        values = torch.ones(megabytes * 2**18, device=device)
        times = []
        for number in range(WARM + ROUNDS):
            values.fill_(options.rank + 1)
            distributed.barrier()
            began = time.perf_counter()
            distributed.all_reduce(values)
            if cuda:
                torch.cuda.synchronize()
            if number >= WARM:
                times.append(time.perf_counter() - began)
        expected = options.ranks * (options.ranks + 1) / 2
        if not bool((values == expected).all()):
            raise ValueError(f"the sum of {options.ranks} ranks is {values.min().item()}, not {expected}")
        seconds = median("all-reduce", times)
        traffic = 2 * (options.ranks - 1) / options.ranks * values.nbytes
        results.append(
            {"mb": megabytes, "ms": round(seconds * 1e3, 3), "bus_gb_per_s": round(traffic / seconds / 1e9, 2)}
        )
        if options.rank == 0:
            keep_report({"cards": options.ranks, "results": results, **machine()}, options.out)
    distributed.destroy_process_group()
    if options.rank == 0:
        print(f"{options.ranks} cards: " + ", ".join(f"{r['mb']} MB {r['bus_gb_per_s']} GB/s" for r in results))
    return DONE


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="one small size")
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    for name, kind in {"rank": int, "ranks": int, "meet": str, "together": int}.items():
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
