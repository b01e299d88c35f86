"""Compare the speed of the attention kernels by length and width, forward and backward, on the same input.

    python -m benchmarks.attention [--device cpu] [--threads N] [--lengths 16,32,…] [--json] [--out FILE]

The result decides the value of BEST_KERNEL in model/layers/attention/kernels.py for a device. As in training, a batch
has 4,096 positions, or one longer sentence. Kernels are timed in turn. The result is the median time in milliseconds of
one call and its backward pass, without attention dropout. With `--dropout`, torch's fused kernels may fall back to
slower ones.
"""

import argparse
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.machine import keep_report, machine
from benchmarks.measured import exit_code, median
from experiments.device import Device
from experiments.device_spec import DeviceSpec
from model.layers.attention.kernels import attend

# (heads, d_k, d_v) of the sizes tiny, base and big, and of two rows of Table 3 (B)
HEADS = ((4, 32, 32), (8, 64, 64), (16, 64, 64), (8, 32, 64), (8, 16, 64))
ROUNDS = 5


def main() -> int:
    options = _options()
    results = list[dict[str, Any]]()
    for precision in ("fp32", "bf16"):
        device = Device.open(DeviceSpec(options.device, options.threads), precision)
        for (heads, d_k, d_v), length, causal in itertools.product(
            HEADS, map(int, options.lengths.split(",")), (False, True)
        ):
            times = _times(device, (heads, d_k, d_v), length, causal, options)
            what = {"precision": precision, "heads": heads, "d_k": d_k, "d_v": d_v, "length": length, "causal": causal}
            results.append({**what, "ms": times, "best": min(times, key=times.__getitem__)})
            if not options.json:
                print(*results[-1].values(), flush=True)
            report = {"device": device.describe(), "dropout": options.dropout, "results": results, **machine()}
            keep_report(report, options.out)
    if options.json:
        print(json.dumps(report, indent=1))
    else:
        fused = sum(result["best"] == "sdpa" for result in results)
        print(f"{len(results)} shapes; torch's fused kernel is the faster one in {fused}")
    return 0


def _times(
    device: Device, sizes: tuple[int, int, int], length: int, causal: bool, options: argparse.Namespace
) -> dict[str, float]:
    dtype = torch.bfloat16 if device.precision == "bf16" else torch.float32
    heads, d_k, d_v = sizes
    made = {"device": device.torch_device, "dtype": dtype}
    count = max(1, options.positions // length)

    def heads_of(width: int) -> Tensor:
        """Return random queries, keys or values with the strides that they have after a projection."""
        return torch.randn((count, length, heads, width), **made).transpose(1, 2).requires_grad_()  # type: ignore[call-overload,no-any-return]

    q, k, v, gradient = (heads_of(width) for width in (d_k, d_k, d_v, d_v))

    def once(kernel: str) -> None:
        attend(q, k, v, causal=causal, dropout=options.dropout, kernel=kernel).backward(gradient)  # type: ignore[no-untyped-call]
        q.grad = k.grad = v.grad = None

    found: dict[str, list[float]] = {kernel: [] for kernel in ("plain", "sdpa")}
    for number in range(ROUNDS + 1):  # the first round is a warm-up
        for kernel, times in found.items():
            device.synchronize()
            began, calls = time.perf_counter(), 0
            while calls == 0 or time.perf_counter() - began < options.round:
                once(kernel)
                device.synchronize()
                calls += 1
            if number:
                times.append((time.perf_counter() - began) / calls)
    return {kernel: round(1000 * median(kernel, times), 3) for kernel, times in found.items()}


def _options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--lengths", default="8,16,32,64,128,256,512,1024")
    parser.add_argument("--positions", type=int, default=4096, help="number of positions in a batch")
    parser.add_argument("--round", type=float, default=0.1, metavar="SECONDS", help="time of each kernel in a round")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--out", type=Path, help="also write the JSON to a file, such as benchmarks/results/….json")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
