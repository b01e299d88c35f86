"""Time and peak memory of translating files of 2,000, 20,000 … lines. The memory must not grow with the input.

    python -m benchmarks.long_input [--lines 2000,20000,200000] [--json] [--out FILE]

Each file is translated in a separate process with the Translator of `ablations generate` and a small model with random
weights. `growth_mb` is the peak memory for the longest input minus that for the shortest; the best value is 0.
`slowdown` is the time per line of the longest input divided by that of the shortest; the best value is 1.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.machine import keep_report, machine
from benchmarks.measured import exit_code, positive

SEEN = 2000  # number of different lines; longer inputs repeat them


def main() -> int:
    options = _options()
    if options.one:
        print(json.dumps(_measure(options.one)))
        return 0
    runs = [_in_a_process(int(count)) for count in options.lines.split(",")]
    for run in runs:  # with random weights, all outputs may be empty
        positive(f"{run['lines']} lines", seconds=run["seconds"], characters=run["characters"])
    first, last = runs[0], runs[-1]
    positive("growth", lines_more=last["lines"] - first["lines"])
    report = {
        "runs": runs,
        "growth_mb": round(last["peak_mb"] - first["peak_mb"], 1),
        "slowdown": round((last["seconds"] / last["lines"]) / (first["seconds"] / first["lines"]), 3),
        **machine(),
    }
    if not options.json:
        for run in runs:
            print(f"{run['lines']:>9,} lines: {run['seconds']:8.1f} s, peak {run['peak_mb']:.0f} MB")
        print(f"growth {report['growth_mb']} MB, time for a line × {report['slowdown']}")
    else:
        print(json.dumps(report, indent=1))
    keep_report(report, options.out)
    return 0


def _in_a_process(count: int) -> dict[str, Any]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.long_input", "--one", str(count)]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _measure(count: int) -> dict[str, Any]:
    import torch

    from experiments.config.data import DataConfig
    from experiments.data.corpora.builtin import generate
    from experiments.data.encoding.tokenizer import Tokenizer, train_tokenizer
    from experiments.device import Device
    from experiments.device_spec import DeviceSpec
    from experiments.evaluation.beam import SearchSettings
    from experiments.evaluation.translator import WINDOWS, Translator
    from model.config import ModelConfig
    from model.network import build_model

    lines = [source for source, _ in islice(generate("train", SEEN), SEEN)]
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as folder:
        train_tokenizer(lines, DataConfig(vocab_size=500), Path(folder, "tokenizer.model"), "the lines")
        tokenizer = Tokenizer.load(Path(folder, "tokenizer.model"))
    model = build_model(ModelConfig(num_layers=1, d_model=16, d_ff=32, num_heads=2, d_k=8, d_v=8), 500).eval()
    device = Device.open(DeviceSpec("cpu", 1), "fp32")
    translator = Translator(model, (tokenizer, tokenizer), device, SearchSettings(2, 0.6, 0))
    # Translate the largest window of any input first, so that its memory does not count as growth.
    list(translator.stream(_repeated(lines, sum(WINDOWS))))
    began, characters = time.perf_counter(), 0
    for found in translator.stream(_repeated(lines, count)):
        characters += len(found[0].text)
    return {
        "lines": count,
        "seconds": round(time.perf_counter() - began, 2),
        "characters": characters,
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }


def _repeated(lines: list[str], count: int) -> Iterator[str]:
    return (lines[number % len(lines)] for number in range(count))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", default="2000,20000,200000", help="numbers of lines, the smallest first")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--out", type=Path, help="also write the JSON to a file")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
