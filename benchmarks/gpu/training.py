"""Training speed of all rows of a study at paper sizes on one GPU, unattended and resumable.

    python -m benchmarks.gpu.training --out FILE.json [--study table3|nanogpt] [--rows KEY,GROUP] [--seconds S]
                                      [--tiny] [--device cpu]

Every row trains with the code and the settings of a run: of `table3` on generated pairs (lengths log-normal, mean 28
pieces, V 37,000), 25,000 tokens per step; of `nanogpt`, GPT-2 124M and its variations, on generated text in windows of
1,024 pieces (V 50,257), 491,520 tokens per step. MFU is model.cost's operations for the real tokens over the rate of
the GPU's bf16 matrix product, measured here. Rows in FILE are not measured again, so the same command continues after a
time limit; a failed row is tried again. `--compile` measures each row without and with training.compile. Every padded
shape is compiled when it first occurs, so its pairs have one length (few shapes): rows "base even", "base compiled".
`--tiny` is the same with the study's demo profile.
Needs torch and what `ablations` and `experiments` import to plan and train: numpy, pydantic, safetensors.
"""

import argparse
import gc
import json
import math
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from ablations.planning.planned import PlannedRow
from benchmarks.gpu.exits import DONE, UNFINISHED
from benchmarks.gpu.training_rows import TINY, pairs, planned, text, train_row
from benchmarks.machine import machine
from experiments.config import DeviceSpec, RunConfig
from experiments.data.encoding.sides import Sides
from experiments.device import Device
from experiments.store.checksummed import write_json
from experiments.tasks.load import load_task
from model.cost import flops_per_token

ROUNDS = 3
SPREAD = 0.4  # of lengths: standard deviation of their logarithm


def main() -> int:
    options = _options()
    began = time.monotonic()
    report = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else {"rows": {}}
    device = Device.open(DeviceSpec(options.device, options.threads), "auto")
    limit = _matrix_flops(device)
    report |= {"device": device.describe(), "matrix_product_tflops": round(limit / 1e12, 3), **machine()}
    with tempfile.TemporaryDirectory() as folder:
        rows = _rows(options)
        vocabulary = cast(RunConfig, next(iter(rows.values())).config).data.vocab_size
        data: Sides = (
            pairs(Path(folder), vocabulary, 0 if options.compile else SPREAD)
            if options.study == "table3"
            else text(Path(folder), vocabulary)
        )
        for key, row in rows.items():
            if "target_tokens_per_s" in report["rows"].get(key, {}):
                continue
            if time.monotonic() - began > options.seconds:
                print(f"{options.seconds} s are over: the same command goes on with {key}", flush=True)
                break
            try:
                found = _measure(row, data, device, Path(folder), options)
                found["mfu"] = round(found["flops_per_token"] * found["target_tokens_per_s"] / limit, 4)
            except Exception as error:  # one row's failure is a result, not the end of the others
                traceback.print_exc()
                found = {"failed": f"{type(error).__name__}: {error}"[:300]}
            report["rows"][key] = found
            write_json(options.out, report, checksummed=False)
            print(key, json.dumps(found), flush=True)
            gc.collect()
            torch.compiler.reset()
            if device.is_cuda:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
    print(_table(report))
    found = {key: report["rows"][key] for key in rows if key in report["rows"]}
    print("; ".join(f"{key} {_in_short(row)}" for key, row in found.items()) or "no row was measured")
    if any("failed" in row for row in found.values()):
        return 1
    return DONE if len(found) == len(rows) else UNFINISHED


def _in_short(row: dict[str, Any]) -> str:
    if "failed" in row:
        return str(row["failed"])
    return f"{row['target_tokens_per_s']:,.0f} tokens/s, MFU {row['mfu']:.1%}, {row['peak_memory_gb']} GB"


def _rows(options: argparse.Namespace) -> dict[str, PlannedRow]:
    """The rows by their names in the report."""
    profile, sets = ("demo", TINY) if options.tiny else ("paper", ())
    kinds = {" even": (), " compiled": ("training.compile=true",)} if options.compile else {"": ()}
    planned_rows = {kind: planned(options.study, profile, sets + own, options.rows) for kind, own in kinds.items()}
    return {row.variation.key + kind: row for kind, rows in planned_rows.items() for row in rows}


def _measure(row: PlannedRow, data: Sides, device: Device, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Warm steps, then the median of rounds."""
    config = cast(RunConfig, row.config)
    clock = Clock(device, options.warm, options.steps, options.rounds)
    _, padding = train_row(row, data, device, folder, clock.stop, clock.saw)
    work = flops_per_token(config.model, config.data.vocab_size, clock.source_length, clock.target_length)
    return {
        "target_tokens_per_s": clock.rate,
        "step_ms": clock.step_ms,
        "flops_per_token": round(work),
        "num_params": load_task(config.task).num_params(config),
        "peak_memory_gb": round(device.peak_memory_bytes() / 1e9, 2),
        "target_tokens_per_step": clock.tokens_per_step,
        **padding,
    }


class Clock:
    """Counts the trainer's steps, and stops it after the last round."""

    def __init__(self, device: Device, warm: int, steps: int, rounds: int = ROUNDS) -> None:
        self._device, self._warm, self._steps, self._rounds = device, warm, steps, rounds
        self._done = 0
        self._times = list[float]()
        self._counts = dict[int, tuple[int, int, int]]()

    def saw(self, step: int, parts: Any) -> None:
        self._counts[step] = (
            sum(part.num_target_tokens for part in parts),
            sum(part.num_source_tokens for part in parts),
            sum(len(part.source) for part in parts),
        )

    def stop(self) -> bool:
        self._done += 1
        past = self._done - self._warm
        if past < 0 or past % self._steps:
            return False
        self._device.synchronize()
        self._times.append(time.perf_counter())
        return past == self._rounds * self._steps

    @property
    def _measured(self) -> list[tuple[int, int, int]]:
        return [self._counts[step] for step in range(self._warm + 1, self._done + 1)]

    @property
    def rate(self) -> float:
        seconds = np.diff(self._times)
        steps, measured = self._steps, self._measured
        tokens = [sum(t for t, *_ in measured[r * steps : (r + 1) * steps]) for r in range(self._rounds)]
        return round(float(np.median(np.array(tokens) / seconds)), 1)

    @property
    def step_ms(self) -> float:
        return round(float(np.median(np.diff(self._times))) / self._steps * 1e3, 2)

    @property
    def tokens_per_step(self) -> int:
        return round(float(np.mean([tokens for tokens, *_ in self._measured])))

    @property
    def source_length(self) -> float:
        return sum(s for _, s, _ in self._measured) / sum(n for *_, n in self._measured)

    @property
    def target_length(self) -> float:
        return sum(t for t, *_ in self._measured) / sum(n for *_, n in self._measured)


def _table(report: dict[str, Any]) -> str:
    lines = [f"{'row':22}{'params':>9}{'tokens/s':>11}{'ms/step':>10}{'MFU':>7}{'GB':>7}"]
    for key, row in report["rows"].items():
        if "failed" in row:
            lines.append(f"{key:22} {row['failed'][:60]}")
        else:
            lines.append(
                f"{key:22}{row['num_params'] / 1e6:8.1f}M{row['target_tokens_per_s']:11,.0f}{row['step_ms']:10.1f}"
                f"{row['mfu']:7.1%}{row['peak_memory_gb']:7.1f}"
            )
    lines.append(f"{report['device']['device']}, matrix product {report['matrix_product_tflops']} TFLOP/s")
    return "\n".join(lines)


def _matrix_flops(device: Device) -> float:
    """Operations per second of a large square product in the device's precision, an upper bound for training."""
    dtype = torch.bfloat16 if device.precision == "bf16" else torch.float32
    size, repeats = (8192, 20) if device.is_cuda else (2048, 4)
    left, right = (torch.randn(size, size, device=device.torch_device).to(dtype) for _ in range(2))
    fastest = math.inf
    for _ in range(4):  # the first warms up
        device.synchronize()
        began = time.perf_counter()
        for _ in range(repeats):
            left @ right
        device.synchronize()
        fastest = min(fastest, time.perf_counter() - began)
    return repeats * 2 * size**3 / fastest


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the report; read first, then added to")
    parser.add_argument("--study", choices=("table3", "nanogpt"), default="table3")
    parser.add_argument("--rows", help="keys and groups of the study, with commas; all if unset")
    parser.add_argument("--seconds", type=float, default=540, help="no further row is begun after these")
    parser.add_argument("--steps", type=int, default=10, help="updates of a round")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--warm", type=int, default=15, help="updates before the first round")
    parser.add_argument("--compile", action="store_true", help="measure each row without and with training.compile")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--tiny", action="store_true", help="all rows in miniature: does the whole path work?")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
