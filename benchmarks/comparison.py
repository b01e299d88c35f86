"""Common code of the benchmarks of training and decoding: sizes, an engine's process, rounds, the report.

An engine is a script of benchmarks/engines that runs in a separate environment. `python -m benchmarks.setup_peers DIR`
creates the environments. The report names the missing ones.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.machine import keep_report, machine
from benchmarks.measured import NothingMeasuredError, median
from experiments.processes.processor import has_bf16

HERE = Path(__file__).parent
TINY = {"num_layers": 2, "d_model": 128, "d_ff": 512, "num_heads": 4, "d_k": 32, "d_v": 32, "vocab_size": 8000}
BASE = {"num_layers": 6, "d_model": 512, "d_ff": 2048, "num_heads": 8, "d_k": 64, "d_v": 64, "vocab_size": 37000}
MODELS = {"tiny": TINY, "base": BASE}


class Engine:
    """The process of an engine's script, which reports the end of its warm-up and then does one round per request."""

    def __init__(
        self,
        environment: str,
        script: str,
        job: dict[str, Any],
        threads: int,
        options: Any,
        more: Mapping[str, str] | None = None,
    ) -> None:
        """Start the script and send it the job. more: further environment variables."""
        self._process, self._found, self._clock = None, dict[str, Any](), options.clock
        self._rates = list[float]()
        self.last_log, self.last_cpu_seconds = "", 0.0  # log and processor time of the last round
        python = str(options.peers / environment / "bin" / "python") if environment else sys.executable
        if not Path(python).exists():
            self._found = {"missing": f"python -m benchmarks.setup_peers {options.peers} sets it up"}
            return
        path = "" if environment else str(HERE.parent)
        variables = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "PYTHONPATH": path}
        options.logs.mkdir(parents=True, exist_ok=True)
        self._errors = (options.logs / f"{time.monotonic_ns()}-{script}.log").open("w+")
        self._process = subprocess.Popen(
            [python, str(HERE / "engines" / script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, **variables, **(more or {})},
        )
        self._say(json.dumps({**job, "threads": threads}))

    def wait_until_ready(self) -> None:
        self._found |= self._hear()

    def begin(self) -> None:
        if self._process:
            self._logged = os.fstat(self._errors.fileno()).st_size
        self._say("round")

    def end(self) -> None:
        if self._process:
            heard = self._hear()
            if "done" in heard:
                seconds = heard.pop("seconds"), heard.pop("cpu_seconds")
                self.last_cpu_seconds = seconds[1]
                self.last_log = os.pread(self._errors.fileno(), 2**30, self._logged).decode(errors="replace")
                self._rates.append(heard.pop("done") / seconds[self._clock == "cpu"])
            self._found |= heard

    def close(self) -> dict[str, Any]:
        """End the process. Return the median rate and the script's other facts.

        If fewer than two rounds did any work, the result has the key "failed" with the reason.
        """
        if self._process and self._process.stdin:
            self._process.stdin.close()
            self._process.wait()
        self._found.pop("ready", None)
        if self._rates and "failed" not in self._found:
            try:
                self._found["per_s"] = round(median("the engine", self._rates), 3)
            except NothingMeasuredError as error:
                self._found["failed"] = str(error)
        return self._found

    def _say(self, line: str) -> None:
        if self._process and self._process.stdin:
            try:
                self._process.stdin.write(line + "\n")
                self._process.stdin.flush()
            except BrokenPipeError:
                pass  # `_hear` reports the reason

    def _hear(self) -> dict[str, Any]:
        if not self._process or not self._process.stdout:
            return {}
        line = self._process.stdout.readline()
        if line:
            heard: dict[str, Any] = json.loads(line)
            return heard
        code, self._process = self._process.wait(), None
        self._errors.seek(0)
        why = "killed, perhaps for memory: " if code == -9 else ""
        return {"failed": why + "".join(self._errors.read().strip().splitlines()[-1:])}


def interleave(groups: Sequence[Sequence[Engine]], rounds: int) -> None:
    """Run `rounds` rounds of the groups in turn. The engines of one group work at the same time."""
    for group in groups:
        for engine in group:
            engine.wait_until_ready()  # all engines were started before, so they warm up at the same time
    for _ in range(rounds):
        for group in groups:
            for engine in group:
                engine.begin()
            for engine in group:
                engine.end()


def parser(description: str | None, quick: str, peers_variable: str) -> argparse.ArgumentParser:
    """Return an argument parser with the common options."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--quick", action="store_true", help=quick)
    made.add_argument("--json", action="store_true", help="print JSON")
    made.add_argument("--out", type=Path, help="also write the JSON to a file, such as benchmarks/results/….json")
    made.add_argument("--peers", type=Path, default=Path(os.environ.get(peers_variable, HERE / "peers")))
    made.add_argument("--sizes", default="tiny,base")
    # Without hardware support, bf16 products are emulated: they take many minutes, and the results are meaningless.
    precisions = "fp32,bf16" if has_bf16() else "fp32"
    made.add_argument("--precisions", default=precisions, help="default: the precisions that this processor supports")
    made.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    made.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    logs = {"type": Path, "help": "folder for the standard error output of the engines"}
    made.add_argument("--logs", default=Path(tempfile.mkdtemp(prefix="benchmark-")), **logs)
    return made


def conclude(results: list[dict[str, Any]], options: argparse.Namespace) -> int:
    """Print and write the results. Return the exit code: 1 if a ratio is below its floor or a case was not measured."""
    ratios = [result["ratio"] / result["floor"] for result in results if result["ratio"]]
    worst = round(min(ratios), 3) if ratios else None
    unmeasured = [f"{result['size']} {result['precision']}" for result in results if not result["ratio"]]
    report = {
        "worst": worst,
        "unmeasured": unmeasured,
        "results": results,
        "clock": options.clock,
        "threads": options.threads,
        **machine(),
    }
    if options.json:
        print(json.dumps(report, indent=1))
    else:
        print(f"worst ratio / floor: {worst}" + (f"; not measured: {', '.join(unmeasured)}" if unmeasured else ""))
    keep_report(report, options.out)
    return 0 if worst is not None and worst >= 1 and not unmeasured else 1
