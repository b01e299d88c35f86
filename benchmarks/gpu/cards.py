"""How quickly GPUs exchange gradients: all-reduce by size, over NCCL (gloo on a processor).

    python -m benchmarks.gpu.cards --out FILE.json [--device cpu] [--tiny]

Every card has a process. `bus_gb_per_s` is 2 (n − 1) / n × bytes / time, the traffic of a ring over each card's link.
The sums are checked. With one card there is nothing to exchange: exit code 4.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from benchmarks.gpu.exits import DONE, LEFT_OUT
from benchmarks.machine import keep_report, machine

MEGABYTES, TINY = (1, 16, 256), (1,)  # 256: base's gradients in fp32
ROUNDS, WARM = 10, 3


def main() -> int:
    options = _options()
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
    return max(codes, key=abs, default=DONE)


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
        seconds = statistics.median(times)
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
    for name, kind in {"rank": int, "ranks": int, "meet": str}.items():
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
