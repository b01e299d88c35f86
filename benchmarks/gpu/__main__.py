"""Run all benchmarks on one GPU without supervision, in two parts of less than ten minutes, the most important first.

    python -m benchmarks.gpu --part 1 --out DIR [--nanogpt model.py]
    python -m benchmarks.gpu --part 2 --out DIR [--corpus DIR]
    python -m benchmarks.gpu --part 1 --out DIR --device cpu --tiny      # a small trial on a CPU; then --part 2

Part 1 tests correctness (tests, errors, command) while code is compiled on the CPU. Then it measures the training speed
of several variants of this program's settings and of other programs. Part 2 measures decoding, the training of `big`,
packed runs, Table 3, single steps, attention kernels, and training on several GPUs.

Each benchmark is a process with a time limit. If it fails, the next one still runs. It writes DIR/<name>.json as soon
as it has a number, and its output to DIR/<name>.log. DIR/report.json contains the outcome of each benchmark. To
continue, call the same command again: finished benchmarks are not repeated. The command prints one line per benchmark.
The exit code is 0 if every benchmark is done or left out, 1 if one failed or measured nothing, 2 if this machine lacks
something that all benchmarks need, and 3 if one is unfinished. Missing packages and files, and the benchmarks that are
left out for this reason, are printed first.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.gpu import missing
from benchmarks.gpu.exits import DONE, FAILED, LEFT_OUT, UNFINISHED
from benchmarks.machine import keep_report, machine

MINUTES = {1: 7.0, 2: 6.0}  # default time limit of each part
GRACE_S = 10  # seconds between the request to stop and the kill
CANNOT_START = 2
# Variants of benchmarks.gpu.training.
ALL = "eager,free,shapes16,shapes32,shapes128,graphs,compiled,compiled-graphs"
SOME, COMPILED = "eager,graphs,compiled,compiled-graphs", "compiled"
STATES = {DONE: "done", UNFINISHED: "unfinished", LEFT_OUT: "left out"}


@dataclass(frozen=True)
class Benchmark:
    """A benchmark: its name, its time limit and its command."""

    name: str
    seconds: float  # time limit
    words: tuple[str, ...]  # the command after `python -m`
    left_out: str = ""  # the reason, if it cannot run on this machine
    limited: bool = False  # whether it has an option --seconds and then ends by itself
    must_say: str = ""  # text that its last line of output must contain if it succeeded


@dataclass
class Outcome:
    state: str  # "done", "failed", "unfinished" or "left out"
    seconds: float
    says: str  # the last line of output


def main() -> int:
    options = _options()
    used = {"--nanogpt": options.nanogpt} if options.part == 1 else {"--corpus": options.corpus}
    if said := missing.paragraph({} if options.tiny and options.part == 2 else used):
        print(said, flush=True)
    if missing.absent(*missing.ESSENTIAL):
        return CANNOT_START
    if why := missing.no_card(options.device):
        print(why)
        return CANNOT_START
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(UNFINISHED))  # the `finally` clauses then end the benchmarks
    deadline = time.monotonic() + 60 * (options.minutes or MINUTES[options.part])
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "report.json"
    known = json.loads(path.read_text(encoding="utf-8"))["benchmarks"] if path.exists() else {}
    outcomes = {name: Outcome(**facts) for name, facts in known.items()}
    ours = list[str]()
    for group in (_first if options.part == 1 else _second)(options):
        ours += [benchmark.name for benchmark in group]
        for benchmark in group:
            if benchmark.name in outcomes and outcomes[benchmark.name].state == "done":
                _say(benchmark.name, outcomes[benchmark.name], "before: ")
        due = [one for one in group if one.name not in outcomes or outcomes[one.name].state != "done"]
        for name, outcome in _side_by_side(due, options, deadline):
            outcomes[name] = outcome
            _say(name, outcome)
            report = {"benchmarks": {name: asdict(outcome) for name, outcome in outcomes.items()}, **machine()}
            keep_report(report, path)
    states = {outcomes[name].state for name in ours}
    return FAILED if "failed" in states else UNFINISHED if "unfinished" in states else DONE


def _first(options: argparse.Namespace) -> Iterator[list[Benchmark]]:
    """Yield the groups of benchmarks of part 1. The benchmarks of a group run at the same time."""
    out, common = options.out, ("--device", options.device, *(["--tiny"] if options.tiny else []))
    no_pytest = "pytest is not installed" if missing.absent("pytest") else ""
    tests = ("pytest", "tests/gpu", "-o", "addopts=", "-m", "gpu", "-q", "-p", "no:cacheprovider")
    passed = "passed" if options.device == "cuda" else ""  # on a GPU, at least one test must run
    nanogpt = ("--nanogpt", str(options.nanogpt)) if options.nanogpt else ()
    training = ("benchmarks.gpu.training", *common, "--variants")
    yield [
        Benchmark("tests", 150, tests, no_pytest, must_say=passed),
        Benchmark("errors", 60, ("benchmarks.gpu.errors", *common, "--out", f"{out}/errors.json")),
        Benchmark("command", 60, ("benchmarks.gpu.command", *common, "--out", f"{out}/command.json"), limited=True),
        Benchmark("compile-base", 150, (*training, COMPILED, "--case", "base", "--peers", "", "--warm-only")),
        Benchmark(
            "compile-language-model",
            150,
            (*training, "eager" if options.tiny else COMPILED, "--case", "language-model", *nanogpt, "--warm-only"),
        ),
    ]
    yield [_training("base", 150, "eager,compiled" if options.tiny else ALL, (), options)]
    yield [_training("language-model", 110, "eager" if options.tiny else SOME, nanogpt, options)]
    yield [_training("small", 60, "eager" if options.tiny else SOME, (), options)]


def _second(options: argparse.Namespace) -> Iterator[list[Benchmark]]:
    out, common = options.out, ("--device", options.device, *(["--tiny"] if options.tiny else []))
    model = ("--model", str(options.model), "--source", str(options.source)) if options.model else ()
    decoding = ("benchmarks.gpu.decoding", *common, *model, "--out", f"{out}/decoding.json")
    yield [Benchmark("decoding", 150, decoding, limited=True)]
    yield [_training("big", 60, "eager" if options.tiny else SOME, (), options)]
    counts = ("--counts", "1,2", "--seconds", "1") if options.tiny else ("--counts", "1,4,8")
    packing = ("benchmarks.gpu.packing", *common, *counts, "--out", f"{out}/packing.json")
    yield [Benchmark("packing", 60, packing)]
    corpus = ("--corpus", str(options.corpus)) if options.corpus else ()
    places = ("--store", f"{out}/table3", "--out", f"{out}/table3.json")
    why = "" if options.corpus or options.tiny else "it needs --corpus DIR, such as multi30k's folder"
    table3 = ("benchmarks.gpu.table3", *common, *corpus, *places)
    yield [Benchmark("table3", 90, table3, why, limited=True)]
    even = ("--steps", "2") if options.tiny else ()
    yield [Benchmark("steps", 25, ("benchmarks.gpu.steps", *common, *even, "--out", f"{out}/steps.json"))]
    lengths = ("--lengths", "8", "--positions", "16") if options.tiny else ("--lengths", "16,64,256,1024")
    kernels = ("benchmarks.attention", "--device", options.device, *lengths, "--round", "0.01")
    yield [Benchmark("kernels", 25, (*kernels, "--out", f"{out}/kernels.json"))]
    yield [Benchmark("cards", 60, ("benchmarks.gpu.cards", *common, "--out", f"{out}/cards.json"))]


def _training(
    case: str, seconds: float, variants: str, more: tuple[str, ...], options: argparse.Namespace
) -> Benchmark:
    words = ["benchmarks.gpu.training", "--case", case, "--variants", variants, *more]
    words += ["--device", options.device, "--out", f"{options.out}/training-{case}.json"]
    if options.tiny:
        words += ["--tiny", "--rounds", "2"]
    return Benchmark(f"training-{case}", seconds, tuple(words), limited=True)


def _side_by_side(
    group: list[Benchmark], options: argparse.Namespace, deadline: float
) -> Iterator[tuple[str, Outcome]]:
    """Run the benchmarks of a group at the same time, each in a separate process until it ends or its time is over."""
    running = list[tuple[Benchmark, "_Process"]]()
    for benchmark in group:
        seconds = min(benchmark.seconds * options.stretch, deadline - time.monotonic())
        if benchmark.left_out:
            yield benchmark.name, Outcome("left out", 0, benchmark.left_out)
        elif seconds < options.least:
            yield benchmark.name, Outcome("unfinished", 0, "no time was left; the same command goes on with it")
        else:
            running.append((benchmark, _Process(benchmark, seconds, options.out)))
    try:
        for benchmark, process in running:
            yield benchmark.name, process.outcome()
    finally:
        for _, process in running:
            process.kill()


class _Process:
    """The process of a benchmark."""

    def __init__(self, benchmark: Benchmark, seconds: float, out: Path) -> None:
        self._benchmark, self._began = benchmark, time.monotonic()
        self._end = self._began + seconds
        own = ["--seconds", str(round(max(1, seconds - GRACE_S)))] if benchmark.limited else []
        words = [*benchmark.words, *own]
        self._log = out / f"{benchmark.name}.log"
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str((out / "compiled").absolute())}
        with self._log.open("a", encoding="utf-8") as output:
            output.write(f"{time.strftime('%F %T')} {' '.join(words)}\n")
            output.flush()
            command = [sys.executable, "-m", *words]
            self._process = subprocess.Popen(
                command, stdout=output, stderr=output, env=environment, start_new_session=True
            )

    def outcome(self) -> Outcome:
        """Wait for the process, stop it when its time is over, and return its outcome.

        The results measured until then are in the benchmark's file.
        """
        try:
            code = self._process.wait(max(0.0, self._end - time.monotonic()))
        except subprocess.TimeoutExpired:
            code = UNFINISHED
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE_S)
        self.kill()
        took = round(time.monotonic() - self._began, 1)
        says = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1][:300]
        state = STATES.get(code, "failed")
        if state == "done" and self._benchmark.must_say not in says:
            state = "failed"
        return Outcome(state, took, says)

    def kill(self) -> None:
        """Kill the process and all processes that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _say(name: str, outcome: Outcome, before: str = "") -> None:
    print(f"{name:22} {outcome.state:10} {outcome.seconds:6.1f} s  {before}{outcome.says}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", type=int, choices=(1, 2), required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder for the results and logs of both parts")
    parser.add_argument("--minutes", type=float, help=f"time limit of the part, including saving (default {MINUTES})")
    parser.add_argument("--nanogpt", type=Path, help="the path of nanoGPT's model.py")
    parser.add_argument("--corpus", type=Path, help="corpus of Table 3: a folder with train.<lang> …")
    parser.add_argument("--model", type=Path, help="model for decoding: a folder that `ablations export` wrote")
    parser.add_argument("--source", type=Path, help="text for decoding: newstest in the model's source language")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="run small versions of all benchmarks, as a trial")
    parser.add_argument("--stretch", type=float, default=1, help="factor on the time limits of all benchmarks")
    parser.add_argument("--least", type=float, default=5, help="start no benchmark if fewer seconds are left")
    options = parser.parse_args()
    if bool(options.source) != bool(options.model):
        parser.error("--source and --model go together")
    return options


if __name__ == "__main__":
    sys.exit(main())
