"""Check that memory is constant and as predicted over many training steps and while a large corpus is prepared.

    python -m benchmarks.memory steps [--steps 20000] [--json]
    python -m benchmarks.memory shapes [--model multi30k] [--steps 1500] [--threads 2] [--precision auto] [--json]
    python -m benchmarks.memory encode [--pairs 5000000] [--steps 1000] [--json]

`steps` trains a model of width 16 with the trainer, its batches and its checkpoints.
`shapes` trains on pairs with the lengths of multi30k, so that almost every batch has a new shape. It compares the
memory with the prediction of `plan`.
`encode` writes a corpus of short generated pairs and prepares it as a run does. It reports pairs per second and busy
cores while encoding. Then it trains on the corpus and measures the process's anonymous memory, without the pages of the
mapped corpus, which the system can reclaim.

Memory is flat if, after the first tenth (`shapes`: after step 500), no sample differs from the median by more than
5 %. Otherwise the exit code is 1.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import keep_report, machine
from benchmarks.measured import NothingMeasuredError, exit_code
from experiments.attempt_context import AttemptContext
from experiments.config.data import DataConfig
from experiments.config.field_types import PrecisionChoice
from experiments.config.run_config import RunConfig
from experiments.config.training import TrainingConfig
from experiments.data.corpora.corpus import SIDES
from experiments.data.corpora.parallel import resolve
from experiments.data.encoding.prepare import prepare
from experiments.data.encoding.sides import Side, Sides, SideWriter, piece_dtype
from experiments.device_spec import DeviceSpec
from experiments.processes.processor import allocator
from experiments.run_spec import RunSpec
from experiments.store.spec import AttemptSpec
from experiments.tasks.load import load_task
from model.config import ModelConfig

TOLERANCE = 0.05
VOCABULARY, WORDS = 1000, 4000
FEWEST_SAMPLES = 10  # minimum number of samples after settling; with fewer, any memory would count as flat
SETTLED = 500  # number of steps after which the cache of kernels is full


@dataclass(frozen=True)
class Case:
    """A model, and the settings that determine the memory of a run."""

    model: ModelConfig
    vocabulary: int = VOCABULARY
    tokens: int = 120
    precision: PrecisionChoice = "fp32"
    threads: int = 1

    def config(self, steps: int) -> RunConfig:
        training = TrainingConfig(
            train_steps=steps,
            tokens_per_batch=self.tokens,
            checkpoint_steps=max(1, steps // 4),
            precision=self.precision,
        )
        return RunConfig(model=self.model, data=DataConfig(vocab_size=self.vocabulary), training=training)


NARROW = Case(ModelConfig(num_layers=1, d_model=16, d_ff=32, num_heads=2, d_k=8, d_v=8))
CASES = {
    "narrow": replace(NARROW, tokens=1024),
    "demo": Case(ModelConfig(num_layers=3, d_model=64, d_ff=256, num_heads=8, d_k=8, d_v=8), 600, 300),
    "multi30k": Case(ModelConfig(num_layers=4, d_model=128, d_ff=256, num_heads=4, d_k=32, d_v=32), 8000, 4096),
    "base": Case(ModelConfig(), 8000, 4096),
}


class _Samples:
    """Samples of resident memory (with `own`, of anonymous memory), time and processor time."""

    def __init__(self, own: bool = False) -> None:
        self._field = "RssAnon:" if own else "VmRSS:"
        self.memory_mb: list[float] = []
        self._clocks: list[tuple[float, float]] = []

    def take(self) -> None:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        self.memory_mb.append(int(status.partition(self._field)[2].split()[0]) / 2**10)
        self._clocks.append((time.perf_counter(), time.process_time()))

    def facts(self, done: int, what: str, settling: float = 0.1) -> dict[str, Any]:
        """Return the summary of all samples. settling: share of the samples at the start in which memory may grow."""
        later = self.memory_mb[int(len(self.memory_mb) * settling) :]
        if len(later) < FEWEST_SAMPLES:
            raise NothingMeasuredError(f"{len(later)} of at least {FEWEST_SAMPLES} samples of memory: take more {what}")
        median = statistics.median(later)
        wall, busy = (last - first for first, last in zip(self._clocks[0], self._clocks[-1], strict=True))
        off = max(abs(value / median - 1) for value in later)
        return {
            what: done, f"{what}_per_s": round(done / wall, 1), "seconds": round(wall, 1),
            "cores_at_work": round(busy / wall, 2), "processor_s": round(busy, 1),
            "memory_mb": {"first": round(self.memory_mb[0]), "median": round(median), "last": round(later[-1]),
                          "peak": round(max(self.memory_mb))},
            "largest_deviation": round(off, 4), "flat": off <= TOLERANCE,
        }  # fmt: skip


def train_steps(
    steps: int, folder: Path, pairs: Sides, case: Case, own: bool = False, settling: float = 0.1
) -> dict[str, Any]:
    """Train `steps` steps on encoded pairs as a run does, and return the summary of the memory samples."""
    from experiments.device import Device, seed_everything
    from experiments.tasks.pair_batches import Batches
    from experiments.training.state import Training
    from experiments.training.trainer import train
    from model.network import build_model

    config, spec = case.config(steps), DeviceSpec("cpu", case.threads)
    device = Device.open(spec, case.precision)
    attempt = AttemptSpec(RunSpec("memory", {}, {}), str(folder), 1, spec)
    context = AttemptContext(attempt, folder, _ignore, lambda: False)
    seed_everything(1)
    model = build_model(config.model, case.vocabulary)
    batches = Batches(config, context, pairs)
    samples, done = _Samples(own), 0

    def count() -> bool:
        nonlocal done
        done += 1
        if done % max(1, steps // 100) == 0:
            samples.take()
        return False

    samples.take()
    train(Training(model, config, replace(context, should_stop=count), device), batches)
    return samples.facts(done, "steps", settling)


def shapes(case: Case, steps: int, folder: Path) -> dict[str, Any]:
    """Train on batches with many different shapes. Return the measured memory and the prediction."""
    pairs = _pieces(folder, case.vocabulary, (8, 30))
    facts = train_steps(steps, folder, pairs, case, settling=min(0.9, SETTLED / steps))
    config = case.config(steps)
    predicted = load_task("translation").memory_bytes(config, "cpu") / 2**20
    held = facts["memory_mb"]["peak"]
    settings = {**asdict(case), "model": case.model.model_dump(exclude_defaults=True)}
    return {
        **settings, **facts, "predicted_mb": round(predicted), "predicted_over_peak": round(predicted / held, 3),
        "allocator": {name: os.environ.get(name, "") for name in ("LD_PRELOAD", "GLIBC_TUNABLES")},
    }  # fmt: skip


def encode(pairs: int, steps: int, folder: Path) -> dict[str, Any]:
    """Write a corpus, prepare it with all cores and measure the encoding. Then train on the corpus."""
    corpus, samples = folder / "corpus", _Samples()
    corpus.mkdir()
    for name, count in (("train", pairs), ("dev", 100)):
        for side, language in enumerate(("en", "de")):
            with (corpus / f"{name}.{language}").open("w", encoding="utf-8") as file:
                file.writelines(_lines(count, side))
    phases = dict[str, float]()

    def progress(what: str, done: int, _total: int) -> None:
        phases.setdefault(what, time.perf_counter())
        if what == "encoding" and (done // 16_384) % max(1, pairs // 16_384 // 100) == 0:
            samples.take()

    began = time.perf_counter()
    data = DataConfig(corpus=str(corpus), source="en", target="de", vocab_size=VOCABULARY)
    encoded = prepare(resolve(data), data, True, folder / "encoded", progress)
    facts = samples.facts(pairs, "pairs")
    facts |= {"whole_s": round(time.perf_counter() - began, 1), "encoding": encoded.facts["encoding"]}
    training = train_steps(steps, folder, encoded.train, replace(NARROW, tokens=4096), own=True)
    return {**facts, "training": training, "flat": facts["flat"] and training["flat"]}


def _lines(count: int, side: int) -> Iterator[str]:
    """Yield lines of three to ten words from a vocabulary of `WORDS` words per side."""
    draw = random.Random(side)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(WORDS)]
    lines = [" ".join(draw.choices(words, k=draw.randint(2, 9))) + "\n" for _ in range(50_000)]
    for number in range(count):
        yield f"{words[number % WORDS]} {lines[number * 7919 % len(lines)]}"


def _pieces(folder: Path, vocabulary: int = VOCABULARY, lengths: tuple[int, int] = (3, 20)) -> Sides:
    draw = np.random.default_rng(1)
    dtype = piece_dtype(vocabulary)
    for side in SIDES:
        writer = SideWriter(folder, side, dtype)
        writer.add([draw.integers(4, vocabulary, int(n)) for n in draw.integers(*lengths, 20_000)])  # type: ignore[misc]
        writer.close()
    return {side: Side(folder, side, dtype) for side in SIDES}


def _ignore(*_args: Any, **_facts: Any) -> None:
    pass


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("steps", "shapes", "encode"))
    parser.add_argument("--steps", type=int, help="training steps (steps: 20,000, shapes: 1,500, encode: 1,000)")
    parser.add_argument("--model", choices=tuple(CASES), default="multi30k", help="model of `shapes`")
    parser.add_argument("--precision", choices=("auto", "fp32", "bf16"), default="auto", help="precision of `shapes`")
    parser.add_argument("--threads", type=int, default=2, help="threads of `shapes`")
    parser.add_argument("--pairs", type=int, default=5_000_000)
    parser.add_argument("--json", action="store_true", help="print JSON on one line")
    parser.add_argument("--out", type=Path, help="also write the JSON to a file")
    options = parser.parse_args()
    if options.what == "shapes" and not os.environ.keys() & {"LD_PRELOAD", "GLIBC_TUNABLES"}:
        # As for a run, the allocator's variables must be set before the process starts.
        os.execve(sys.executable, [*sys.orig_argv], {**os.environ, **allocator()})
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        if options.what == "steps":
            facts = train_steps(options.steps or 20_000, place, _pieces(place), NARROW)
        elif options.what == "shapes":
            case = replace(CASES[options.model], precision=options.precision, threads=options.threads)
            facts = shapes(case, options.steps or 1500, place)
        else:
            facts = encode(options.pairs, options.steps or 1000, place)
    report = {"what": options.what, **facts, **machine()}
    print(json.dumps(report, indent=None if options.json else 1))
    keep_report(report, options.out)
    return 0 if facts["flat"] else 1


if __name__ == "__main__":
    raise SystemExit(exit_code(main))
