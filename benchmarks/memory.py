"""Is resident memory flat? Over many training steps, and while a large corpus is prepared.

    python -m benchmarks.memory steps [--steps 20000] [--json]
    python -m benchmarks.memory encode [--pairs 5000000] [--steps 1000] [--json]

`steps` trains a model of width 16 through the trainer and its batches, saving checkpoints. `encode` writes a corpus of
short generated pairs, prepares it as a run does, and tells pairs per second and cores at work while encoding; then it
trains on it, and watches the memory that is the process's own (pages of the mapped corpus are the system's to take
back). Flat means: after the first tenth, no sample is more than 5 % from the median. Exit code 1 if it is not.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from benchmarks.machine import keep_report, machine
from experiments.config import DataConfig, DeviceSpec, RunConfig, TrainingConfig
from experiments.data.corpus import resolve
from experiments.data.encoded import EncodedCorpus
from experiments.data.pairs import SIDES, EncodedPairs, SideWriter, piece_dtype
from experiments.data.prepare import prepare
from experiments.tasks.base import Context
from model.config import ModelConfig

TOLERANCE = 0.05
VOCABULARY, WORDS = 1000, 4000
MODEL = ModelConfig(num_layers=1, d_model=16, d_ff=32, num_heads=2, d_k=8, d_v=8)


class _Samples:
    """Resident memory, or what of it is the process's `own`, time and processor time, now and then."""

    def __init__(self, own: bool = False) -> None:
        self._field = "RssAnon:" if own else "VmRSS:"
        self.memory_mb: list[float] = []
        self._clocks: list[tuple[float, float]] = []

    def take(self) -> None:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        self.memory_mb.append(int(status.partition(self._field)[2].split()[0]) / 2**10)
        self._clocks.append((time.perf_counter(), time.process_time()))

    def facts(self, done: int, what: str) -> dict[str, Any]:
        later = self.memory_mb[len(self.memory_mb) // 10 :]
        median = statistics.median(later)
        wall, busy = (last - first for first, last in zip(self._clocks[0], self._clocks[-1], strict=True))
        off = max(abs(value / median - 1) for value in later)
        return {
            what: done, f"{what}_per_s": round(done / wall, 1), "seconds": round(wall, 1),
            "cores_at_work": round(busy / wall, 2), "processor_s": round(busy, 1),
            "memory_mb": {"first": round(self.memory_mb[0]), "median": round(median), "last": round(later[-1])},
            "largest_deviation": round(off, 4), "flat": off <= TOLERANCE,
        }  # fmt: skip


def train_steps(steps: int, folder: Path, pairs: EncodedPairs, tokens: int, own: bool = False) -> dict[str, Any]:
    """Many small steps on encoded pairs, as a run makes them."""
    from experiments.device import Device, seed_everything
    from experiments.tasks.batches import Batches
    from experiments.training.trainer import train
    from model.factory import build_model

    config = RunConfig(
        model=MODEL,
        data=DataConfig(vocab_size=VOCABULARY),
        training=TrainingConfig(
            train_steps=steps, tokens_per_batch=tokens, checkpoint_steps=steps // 4, precision="fp32"
        ),
    )
    device = Device.open(DeviceSpec("cpu", 1), "fp32")
    context = Context(folder, "memory", folder, {}, DeviceSpec("cpu", 1), _ignore, lambda: False)
    batches = Batches(config, context, cast(EncodedCorpus, SimpleNamespace(train=pairs)))
    seed_everything(1)
    model = build_model(config.model, VOCABULARY)
    samples, done = _Samples(own), 0

    def count() -> bool:
        nonlocal done
        done += 1
        if done % (steps // 100) == 0:
            samples.take()
        return False

    samples.take()
    train(
        model,
        config.training,
        d_model=MODEL.d_model,
        batches=batches,
        seed=1,
        device=device,
        folder=folder,
        emit=_ignore,
        should_stop=count,
        meta={"lineage": "benchmark", "code": "benchmark"},
    )
    return samples.facts(done, "steps")


def encode(pairs: int, steps: int, folder: Path) -> dict[str, Any]:
    """Write a corpus, prepare it with every core, watch the part that encodes; train on it."""
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
    training = train_steps(steps, folder, encoded.train, 4096, own=True)
    return {**facts, "training": training, "flat": facts["flat"] and training["flat"]}


def _lines(count: int, side: int) -> Iterator[str]:
    """Two to nine words of a vocabulary of `WORDS`; source and target have their own."""
    draw = random.Random(side)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(WORDS)]
    lines = [" ".join(draw.choices(words, k=draw.randint(2, 9))) + "\n" for _ in range(50_000)]
    for number in range(count):
        yield f"{words[number % WORDS]} {lines[number * 7919 % len(lines)]}"


def _pieces(folder: Path) -> EncodedPairs:
    draw = np.random.default_rng(1)
    dtype = piece_dtype(VOCABULARY)
    for side in SIDES:
        writer = SideWriter(folder, side, dtype)
        writer.add([draw.integers(4, VOCABULARY, int(n)) for n in draw.integers(3, 20, 20_000)])  # type: ignore[misc]
        writer.close()
    return EncodedPairs(folder, (dtype, dtype))


def _ignore(*_args: Any, **_facts: Any) -> None:
    pass


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("steps", "encode"))
    parser.add_argument("--steps", type=int, help="20,000, or 1,000 on the encoded corpus, if unset")
    parser.add_argument("--pairs", type=int, default=5_000_000)
    parser.add_argument("--json", action="store_true", help="print JSON on one line")
    parser.add_argument("--out", type=Path, help="also write the JSON to a file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        if options.what == "steps":
            facts = train_steps(options.steps or 20_000, place, _pieces(place), 120)
        else:
            facts = encode(options.pairs, options.steps or 1000, place)
    report = {"what": options.what, **facts, **machine()}
    print(json.dumps(report, indent=None if options.json else 1))
    keep_report(report, options.out)
    return 0 if facts["flat"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
