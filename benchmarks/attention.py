"""Compare the speed of the attention kernels by length: forward and backward on the same queries, keys and values.

    python -m benchmarks.attention [--device cpu] [--threads N] [--lengths 16,32,…] [--json] [--out FILE]

Decides BEST_KERNEL in model/sublayers/attention.py for a device. A batch has 4,096 positions, or one
sentence, as the trainer's micro-batches do. Kernels are timed in turn; the result is the median in milliseconds of one
call and its backward pass, without attention dropout. With `--dropout` torch's fused kernels may fall back to others.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import keep_report, machine
from experiments.config import DeviceSpec
from experiments.device import Device
from model.sublayers.attention import attend

POSITIONS = 4096
HEADS = ((4, 32), (8, 64), (16, 64))  # tiny, base, big: heads, d_k
ROUNDS, ROUND_S = 5, 0.1


def main() -> int:
    options = _options()
    results = []
    for precision in ("fp32", "bf16"):
        device = Device.open(DeviceSpec(options.device, options.threads), precision)
        for heads, width in HEADS:
            for length in map(int, options.lengths.split(",")):
                for causal in (False, True):
                    times = _times(device, heads, width, length, causal, options.dropout)
                    what = {"precision": precision, "heads": heads, "d_k": width, "length": length, "causal": causal}
                    results.append({**what, "ms": times, "best": min(times, key=times.__getitem__)})
                    if not options.json:
                        print(*results[-1].values(), flush=True)
    report = {"device": device.describe(), "dropout": options.dropout, "results": results, **machine()}
    if options.json:
        print(json.dumps(report, indent=1))
    keep_report(report, options.out)
    return 0


def _times(device: Device, heads: int, width: int, length: int, causal: bool, dropout: float) -> dict[str, float]:
    dtype = torch.bfloat16 if device.precision == "bf16" else torch.float32
    shape = max(1, POSITIONS // length), length, heads, width  # strides as after a projection
    made = {"device": device.torch_device, "dtype": dtype}
    q, k, v, gradient = (torch.randn(shape, **made).transpose(1, 2).requires_grad_() for _ in range(4))  # type: ignore[arg-type]

    def once(kernel: str) -> None:
        attend(q, k, v, causal=causal, dropout=dropout, kernel=kernel).backward(gradient)  # type: ignore[no-untyped-call]
        q.grad = k.grad = v.grad = None

    found: dict[str, list[float]] = {kernel: [] for kernel in ("plain", "sdpa")}
    for number in range(ROUNDS + 1):  # the first warms up
        for kernel, times in found.items():
            device.synchronize()
            began, calls = time.perf_counter(), 0
            while calls == 0 or time.perf_counter() - began < ROUND_S:
                once(kernel)
                device.synchronize()
                calls += 1
            if number:
                times.append((time.perf_counter() - began) / calls)
    return {kernel: round(1000 * statistics.median(times), 3) for kernel, times in found.items()}


def _options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--lengths", default="8,16,32,64,128,256,512,1024")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--out", type=Path, help="also write the JSON to a file, such as benchmarks/results/….json")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
