"""All measurements on a GPU by one command, unattended: each part alone, in order of worth, until the time is over.

    python -m benchmarks.gpu --minutes 9 --out DIR [--corpus DIR]
    python -m benchmarks.gpu --minutes 9 --out DIR --device cpu --tiny      # everything in miniature on a processor

The same command continues: parts that are done are not repeated, others go on from what is in DIR. A part is a process
of its own: whatever happens to it, the next one runs. It writes DIR/<part>.json after every measurement and its output
to DIR/<part>.log; DIR/report.json says how each part ended. One line is printed per part. Exit code: 0 if every part is
done or left out, 1 if one failed, 3 if one is unfinished.

Table 3 needs `--corpus`, a folder such as multi30k's: the built-in corpus is too small for its vocabulary. The tests
need pytest, the part `command` what the command needs (typer, mlflow, optuna, pandas), and says that it is left out
where they are not there; everything else only torch, sentencepiece, sacrebleu, numpy, pydantic, psutil and safetensors.

Not compared, because the program has no such switch: CUDA graphs (of training and of decoding steps), bf16 against fp32
logits alone, padded shapes without compilation, models fused into one process.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.gpu.exits import DONE, LEFT_OUT, UNFINISHED
from benchmarks.machine import machine
from experiments.store.checksummed import write_json

GRACE_S = 20  # between the request to stop and the end
FAILED = 1


@dataclass(frozen=True)
class Part:
    """`share`: the most ninths of the time that it takes; `words`: the command after `python -m`."""

    name: str
    share: float
    words: tuple[str, ...]
    left_out: str = ""  # why, if it cannot run here
    limited: bool = False  # whether it takes --seconds and ends by itself


@dataclass
class Outcome:
    state: str  # done, failed, unfinished, left out
    seconds: float
    says: str  # the last line that it printed


def main() -> int:
    options = _options()
    deadline = time.monotonic() + 60 * options.minutes
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "report.json"
    known = json.loads(path.read_text(encoding="utf-8"))["parts"] if path.exists() else {}
    outcomes = {name: Outcome(**facts) for name, facts in known.items()}
    for part in _parts(options):
        if part.name in outcomes and outcomes[part.name].state == "done":
            _say(part, outcomes[part.name], "before: ")
            continue
        outcomes[part.name] = _run(part, options, deadline)
        report = {"parts": {name: asdict(outcome) for name, outcome in outcomes.items()}, **machine()}
        write_json(path, report, checksummed=False)
        _say(part, outcomes[part.name])
    states = {outcome.state for outcome in outcomes.values()}
    return FAILED if "failed" in states else UNFINISHED if "unfinished" in states else DONE


def _parts(options: argparse.Namespace) -> Iterator[Part]:
    """In order of worth."""
    out, device = options.out, ("--device", options.device)
    common = (*device, *(["--tiny"] if options.tiny else []))
    short = ("--steps", "2", "--warm", "1") if options.tiny else ()
    attention = (
        ("--lengths", "8", "--positions", "16", "--round", "0.001") if options.tiny else ("--lengths", "16,64,256,1024")
    )
    training = ("benchmarks.gpu.training", *common, *short, "--out", str(out / "training.json"))
    few = ("--warm", "2", "--steps", "2", "--rounds", "1")  # a step of GPT-2 124M has 491,520 tokens
    language = ("benchmarks.gpu.training", *common, *few, "--out", str(out / "language-model.json"))
    no_pytest = "" if importlib.util.find_spec("pytest") else "pytest is not installed"
    tests = ("pytest", "tests/gpu", "-o", "addopts=", "-m", "gpu", "-q", "-p", "no:cacheprovider")
    yield Part("tests", 1.2, tests, no_pytest)
    yield Part("errors", 0.3, ("benchmarks.gpu.errors", *common, "--out", str(out / "errors.json")))
    even = ("--steps", "2") if options.tiny else ()
    yield Part("steps", 0.6, ("benchmarks.gpu.steps", *common, *even, "--out", str(out / "steps.json")))
    yield Part("command", 1.0, ("benchmarks.gpu.command", *common, "--out", str(out / "command.json")))
    kernels = ("benchmarks.attention", "--round", "0.02", *device, *attention, "--out", str(out / "kernels.json"))
    yield Part("kernels", 0.5, kernels)
    yield Part("training", 1.5, (*training, "--rows", "base,big"), limited=True)
    compiled = (*training, "--rows", "base" if options.tiny else "base,big", "--compile")
    yield Part("training-compiled", 1.5, compiled, limited=True)
    yield Part("language-model", 0.5, (*language, "--study", "nanogpt", "--rows", "base,rotary"), limited=True)
    counts = ("--counts", "1,2", "--seconds", "1") if options.tiny else ()
    yield Part("packing", 1.5, ("benchmarks.gpu.packing", *common, *counts, "--out", str(out / "packing.json")))
    model = ("--model", str(options.model), "--source", str(options.source)) if options.model else ()
    learned = ("--steps", "20") if options.tiny else ()
    yield Part(
        "decoding", 1.2, ("benchmarks.gpu.decoding", *common, *learned, *model, "--out", str(out / "decoding.json"))
    )
    yield Part("cards", 0.8, ("benchmarks.gpu.cards", *common, "--out", str(out / "cards.json")))
    corpus = ("--corpus", str(options.corpus)) if options.corpus else ()
    rows = ("--rows", "base,E", "--together", "2", "--threads", "1") if options.tiny else ()
    places = ("--work", str(out / "table3"), "--out", str(out / "table3.json"))
    why = "" if options.corpus or options.tiny else "it needs --corpus DIR, such as multi30k's folder"
    yield Part("table3", 9, ("benchmarks.gpu.table3", *common, *corpus, *rows, *places), why, limited=True)


def _run(part: Part, options: argparse.Namespace, deadline: float) -> Outcome:
    """Run a part in its own process to its end, or to the end of its time."""
    if part.left_out:
        return Outcome("left out", 0, part.left_out)
    began = time.monotonic()
    seconds = min(60 * part.share * options.minutes / 9, deadline - began)
    if seconds < options.least:
        return Outcome("unfinished", 0, "no time was left; the same command goes on with it")
    words = [*part.words, *(["--seconds", str(round(max(1, seconds - GRACE_S)))] if part.limited else [])]
    log = options.out / f"{part.name}.log"
    with log.open("a", encoding="utf-8") as output:
        output.write(f"{time.strftime('%F %T')} {' '.join(words)}\n")
        output.flush()
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str((options.out / "compiled").absolute())}
        process = subprocess.Popen(
            [sys.executable, "-m", *words], stdout=output, stderr=output, env=environment, start_new_session=True
        )
        try:
            code = process.wait(seconds)
        except (subprocess.TimeoutExpired, KeyboardInterrupt) as stopped:
            code = _stop(process)
            if isinstance(stopped, KeyboardInterrupt):
                raise
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # whatever it has started
    took = round(time.monotonic() - began, 1)
    says = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1][:200]
    states = {DONE: "done", UNFINISHED: "unfinished", LEFT_OUT: "left out"}
    return Outcome(states.get(code, "failed"), took, says)


def _stop(process: subprocess.Popen[bytes]) -> int:
    """End a part whose time is over. What it had measured is in its file."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return UNFINISHED


def _say(part: Part, outcome: Outcome, before: str = "") -> None:
    print(f"{part.name:18} {outcome.state:10} {outcome.seconds:6.1f} s  {before}{outcome.says}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=9, help="everything is saved and ended by then")
    parser.add_argument("--out", type=Path, required=True, help="a folder for results and logs")
    parser.add_argument("--corpus", type=Path, help="of Table 3: a folder with train.<lang> …")
    parser.add_argument("--model", type=Path, help="of decoding: a folder that `ablations export` wrote")
    parser.add_argument("--source", type=Path, help="of decoding: newstest in the model's source language")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="every part in miniature: does the whole path work?")
    parser.add_argument("--least", type=float, default=5, help="no part begins with fewer seconds left")
    options = parser.parse_args()
    if bool(options.source) != bool(options.model):
        parser.error("--source and --model go together")
    return options


if __name__ == "__main__":
    sys.exit(main())
