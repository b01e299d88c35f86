"""What benchmarks.training and benchmarks.decoding share: the sizes, how an engine is started, how a report ends.

An engine is a script of benchmarks/engines in an environment of its own, which `python -m benchmarks.setup_peers DIR`
makes; those not there are named as missing.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.machine import machine

HERE = Path(__file__).parent
TINY = {"num_layers": 2, "d_model": 128, "d_ff": 512, "num_heads": 4, "d_k": 32, "d_v": 32, "vocab_size": 8000}
BASE = {"num_layers": 6, "d_model": 512, "d_ff": 2048, "num_heads": 8, "d_k": 64, "d_v": 64, "vocab_size": 37000}
MODELS = {"tiny": TINY, "base": BASE}


def launch(peers: Path, environment: str, script: str, threads: int) -> tuple[list[str], dict[str, str]] | None:
    """An engine's command and variables ("": in the environment this runs in); None if its own is not set up."""
    python = str(peers / environment / "bin" / "python") if environment else sys.executable
    if not Path(python).exists():
        return None
    path = "" if environment else str(HERE.parent)
    variables = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "PYTHONPATH": path}
    return [python, str(HERE / "engines" / script)], {**os.environ, **variables}


def missing(peers: Path) -> dict[str, Any]:
    return {"missing": f"python -m benchmarks.setup_peers {peers} sets it up"}


def parser(description: str | None, quick: str, peers_variable: str) -> argparse.ArgumentParser:
    """With the options of both."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--quick", action="store_true", help=quick)
    made.add_argument("--json", action="store_true", help="print JSON")
    made.add_argument("--out", type=Path, help="also write the JSON to a file, such as benchmarks/results/….json")
    made.add_argument("--peers", type=Path, default=Path(os.environ.get(peers_variable, HERE / "peers")))
    made.add_argument("--sizes", default="tiny,base")
    made.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    made.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    return made


def conclude(results: list[dict[str, Any]], options: argparse.Namespace) -> int:
    """Print and write what came out; the exit code: 1 where a ratio is below its floor, or nothing was measured."""
    ratios = [result["ratio"] / result["floor"] for result in results if result["ratio"]]
    worst = round(min(ratios), 3) if ratios else None
    report = {"worst": worst, "results": results, "clock": options.clock, "threads": options.threads, **machine()}
    if options.json:
        print(json.dumps(report, indent=1))
    else:
        print(f"worst ratio / floor: {worst}")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0 if worst is not None and worst >= 1 else 1
