"""Training speed of one row on one GPU, with several variants of our settings and with other programs.

    python -m benchmarks.gpu.training --case base --out FILE.json [--variants NAMES] [--peers torch,marian,nanogpt]
                                      [--nanogpt model.py] [--seconds S] [--device cpu] [--tiny]

All contestants train in one process and take turns (turns.py). The first turn of each is its warm-up. In every later
round, all contestants do the same number of steps, and the result is the median over rounds. The variants are:

  eager              without compilation, as a run trains by default
  free               eager, without fixed shapes of the micro-batches
  shapes16, shapes32, shapes128    eager, with micro-batches padded to this number of shapes
  compiled           with training.compile
  graphs             with training.graphs
  compiled-graphs    with training.compile and training.graphs

Variants that this version of the program does not support are left out; the report contains the reason. The cases are:

  base, big          rows of Table 3 at the paper's sizes, 25,000 target tokens per step; generated pairs, V 37,000,
                     log-normal lengths with mean 28 and standard deviation 0.4 of the logarithm
  even               base with pairs of a single length
  small              base of Table 3's profile small: V 8,000, 4,096 tokens per step, the same lengths
  language-model     GPT-2 124M of the study nanogpt, generated text in windows of 1,024, 491,520 tokens per step

mfu = flops_per_token x target_tokens_per_s / the operations per second of a large bf16 matrix product, measured here.
flops_per_token counts the products of the forward and backward pass for real pieces (model/cost.py), without padding.
The same number is used for all contestants, so that equal speed gives equal mfu.

FILE is written after every round from the second on. The exit code is 1 if a contestant fails or nothing was measured,
and 3 if `--seconds` ended before two rounds. The benchmark needs torch and the packages that `ablations` and
`experiments` import to plan and train.
"""

import argparse
import importlib.util
import itertools
import json
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from ablations.planning.resolve import PlannedRow
from benchmarks.gpu import peers
from benchmarks.gpu.exits import DONE, FAILED, UNFINISHED
from benchmarks.gpu.peers import Counts
from benchmarks.gpu.training_rows import TINY, batches_of, pairs, planned, shapes, text, train_row
from benchmarks.gpu.turns import Turn, close, interleave, rates
from benchmarks.machine import keep_report, machine
from benchmarks.measured import LEAST, exit_code, positive
from experiments.config.run_config import RunConfig
from experiments.data.encoding.sides import Sides
from experiments.device import Device
from experiments.device_spec import DeviceSpec
from experiments.errors import UserError
from experiments.tasks.load import load_task
from model.cost import flops_per_token

FORMULA = "flops_per_token (model/cost.py, real pieces) * target_tokens_per_s / matrix_product_tflops measured here"
SPREAD = 0.4  # standard deviation of the logarithm of lengths


@dataclass(frozen=True)
class Case:
    """A row, its data, and the number of steps that a contestant trains."""

    study: str
    row: str = "base"
    profile: str = "paper"
    spread: float = SPREAD
    warm: int = 12  # steps before the first round
    warm_captured: int = 110  # steps before the first round if every shape must occur often enough to be captured
    steps: int = 10  # steps per round
    peers: tuple[str, ...] = ()


CASES = {
    "base": Case("table3", peers=("torch", "marian")),
    "big": Case("table3", row="big"),
    "even": Case("table3", spread=0.0, warm_captured=12),
    "small": Case("table3", profile="small", warm=100, warm_captured=400, steps=100),
    "language-model": Case("nanogpt", warm=3, warm_captured=3, steps=2, peers=("nanogpt",)),
}
EAGER, COMPILED, GRAPHS = "training.compile=false", "training.compile=true", "training.graphs=true"


@dataclass(frozen=True)
class Variant:
    """Settings of the study, and the number of padded shapes (0 for free shapes, None for a run's choice)."""

    sets: tuple[str, ...] = (EAGER,)
    shapes: int | None = None

    @property
    def captured(self) -> bool:
        """Whether every shape must occur several times in the warm-up."""
        return GRAPHS in self.sets or COMPILED in self.sets


VARIANTS = {
    "eager": Variant(),
    "free": Variant(shapes=0),
    "shapes16": Variant(shapes=16),
    "shapes32": Variant(shapes=32),
    "shapes128": Variant(shapes=128),
    "compiled": Variant((COMPILED,)),
    "graphs": Variant((EAGER, GRAPHS)),
    "compiled-graphs": Variant((COMPILED, GRAPHS)),
}


@dataclass
class Contestant:
    """A training that takes turns with others."""

    turn: Turn
    warm: int  # steps of the first turn
    counts: Callable[[int], Counts]  # step (from 1) → result of peers.counts
    facts: dict[str, Any]  # description of the batches, known after the first turn

    def of_rounds(self) -> list[list[Counts]]:
        """Return the counts of the steps of every round."""
        begin, steps = 1 + self.warm, self.turn.steps
        rounds = range(len(self.turn.seconds))
        return [[self.counts(begin + number * steps + step) for step in range(steps)] for number in rounds]


def main() -> int:
    options = _options()
    deadline = time.monotonic() + options.seconds
    device = Device.open(DeviceSpec(options.device, options.threads), "auto")
    limit = _matrix_flops(device)
    report: dict[str, Any] = {
        "case": options.case, "rounds": 0, "mfu_formula": FORMULA, "matrix_product_tflops": round(limit / 1e12, 3),
        "device": device.describe(), "left_out": {}, "contestants": {}, **machine(),
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        plan = _Plan(CASES[options.case], device, Path(folder), options)
        contestants = plan.contestants()
        report["left_out"] = plan.left_out
        turns = [contestant.turn for contestant in contestants.values()]
        try:
            for number in interleave(turns, 0 if options.warm_only else options.rounds, deadline):
                if number >= LEAST:
                    report |= {"rounds": number, "contestants": plan.results(contestants, limit)}
                    keep_report(report, options.out)
        finally:
            close(turns)
        return _warmed(turns) if options.warm_only else _concluded(report, turns)


class _Plan:
    """The contestants of a case."""

    def __init__(self, case: Case, device: Device, folder: Path, options: argparse.Namespace) -> None:
        self._case, self._device, self._folder, self._options = case, device, folder, options
        self._steps = 2 if options.tiny else case.steps
        self.left_out = dict[str, str]()  # contestant that cannot be measured → reason
        self._row = self._planned(())
        self._config = cast(RunConfig, self._row.config)
        vocabulary = self._config.data.vocab_size
        spread = 0.0 if options.tiny else case.spread  # with --tiny, one shape, so that torch compiles only once
        self._data: Sides = pairs(folder, vocabulary, spread) if case.study == "table3" else text(folder, vocabulary)

    def _planned(self, sets: tuple[str, ...]) -> PlannedRow:
        profile, own = ("demo", TINY) if self._options.tiny else (self._case.profile, ())
        return planned(self._case.study, profile, (*own, *sets), self._case.row)[0]

    def contestants(self) -> dict[str, Contestant]:
        """Return the contestants by name: the first variant, the peers, then the other variants."""
        found = dict[str, Contestant]()
        for name in self._options.variants.split(","):
            try:
                found[name] = self._ours(name, VARIANTS[name])
            except UserError as error:  # this version does not have the setting
                self.left_out[name] = str(error).splitlines()[0]
        for name in self._case.peers if self._options.peers is None else filter(None, self._options.peers.split(",")):
            if why := missing(name, self._options.nanogpt):
                self.left_out[name] = why
            else:
                found[name] = self._peer(name)
        for name, why in self.left_out.items():
            print(f"{name} is left out: {why}", flush=True)
        # The peers come second, because compiling the other variants may take all the time.
        first = self._options.variants.split(",")[0]
        return dict(sorted(found.items(), key=lambda item: item[0] in VARIANTS and item[0] != first))

    def _ours(self, name: str, variant: Variant) -> Contestant:
        row, pinned = self._planned(variant.sets), shapes(self._row, self._data, variant.shapes)
        warm = self._case.warm_captured if variant.captured else self._case.warm
        warm = 3 if self._options.tiny else warm
        seen, facts = dict[int, Counts](), dict[str, Any]()

        def saw(step: int, parts: Any) -> None:
            seen[step] = peers.counts(parts)

        def train(turn: Turn) -> None:
            train_row(row, self._data, self._device, self._folder, turn.stop, saw, facts=facts, pinned=pinned)

        return Contestant(Turn(name, train, self._device, warm, self._steps), warm, seen.__getitem__, facts)

    def _peer(self, name: str) -> Contestant:
        warm = 3 if self._options.tiny else min(self._case.warm, 6)
        last = warm + self._steps * self._options.rounds
        if name == "nanogpt":
            nanogpt = peers.NanoGPT(self._options.nanogpt, self._options.tiny)
            train = peers.contestant(partial(nanogpt.step, self._device), partial(itertools.repeat, None))
            counts: Callable[[int], Counts] = lambda _: (nanogpt.tokens, 0, 1)  # noqa: E731
        else:
            step = {"torch": peers.torch_step, "marian": peers.marian_step}[name]
            work = peers.Prepared(batches_of(self._row, self._data, self._device, self._folder), last)
            vocabulary = self._config.data.vocab_size
            train = peers.contestant(partial(step, self._config.model, vocabulary, self._device), work)
            counts = work.counts.__getitem__
        return Contestant(Turn(name, train, self._device, warm, self._steps), warm, counts, {})

    def results(self, contestants: dict[str, Contestant], limit: float) -> dict[str, dict[str, Any]]:
        """Return the results of each contestant so far. Raises NothingMeasuredError."""
        work = next((self._flops(each) for each in contestants.values() if each.turn.seconds), 0.0)
        num_params = load_task(self._config.task).num_params(self._config)
        found = {}
        for name, contestant in contestants.items():
            tokens = [sum(target for target, *_ in steps) for steps in contestant.of_rounds()]
            found[name] = rates(contestant.turn, tokens)
            if "failed" not in found[name]:
                mfu = work * found[name]["target_tokens_per_s"] / limit
                positive(name, mfu=mfu)
                found[name] |= {
                    "mfu": round(mfu, 4),
                    "flops_per_token": round(work),
                    "num_params": num_params,
                    "target_tokens_per_step": round(sum(tokens) / len(tokens) / contestant.turn.steps),
                    **contestant.facts,
                }
        return found

    def _flops(self, contestant: Contestant) -> float:
        """Return the operations of forward and backward pass per target piece, for the mean lengths of the rounds."""
        steps = [step for round_ in contestant.of_rounds() for step in round_]
        target, source, rows = (sum(column) for column in zip(*steps, strict=True))
        positive(contestant.turn.name, target_tokens=target, rows=rows)
        return flops_per_token(self._config.model, self._config.data.vocab_size, source / rows, target / rows)


def missing(peer: str, nanogpt: Path | None) -> str:
    """Return the reason why a peer cannot be measured, or "" if it can be measured."""
    if peer == "marian" and importlib.util.find_spec("transformers") is None:
        return "the package transformers is not installed"
    if peer == "nanogpt" and (nanogpt is None or not nanogpt.is_file()):
        return "--nanogpt names no file: give the path of nanoGPT's model.py"
    return ""


def _warmed(turns: list[Turn]) -> int:
    print("warm: " + ", ".join(f"{turn.name} {turn.failed or f'{turn.warm_s:.0f} s'}" for turn in turns))
    return FAILED if any(turn.failed for turn in turns) else DONE


def _concluded(report: dict[str, Any], turns: list[Turn]) -> int:
    """Print one line for each contestant and a summary. Return the exit code."""
    failed = {turn.name: turn.failed for turn in turns if turn.failed}
    found = report["contestants"]
    for name, facts in found.items():
        print(name, json.dumps(facts), flush=True)
    if failed:
        print("; ".join(f"{name} failed: {why}" for name, why in failed.items()))
        return FAILED
    if late := [turn.name for turn in turns if turn.late]:
        print(f"no time was left for {', '.join(late)}")
        return UNFINISHED
    if not found:
        print("the time was over before two rounds: nothing was measured")
        return UNFINISHED
    told = (
        f"{name} {facts['target_tokens_per_s']:,.0f} tokens/s, MFU {facts['mfu']:.1%}" for name, facts in found.items()
    )
    print(f"{report['case']}: {'; '.join(told)}")
    return DONE


def _matrix_flops(device: Device) -> float:
    """Return the operations per second of a large square matrix product in the device's precision.

    Training cannot be faster.
    """
    dtype = torch.bfloat16 if device.precision == "bf16" else torch.float32
    size, repeats = (8192, 20) if device.is_cuda else (1024, 4)
    left, right = (torch.randn(size, size, device=device.torch_device).to(dtype) for _ in range(2))
    fastest = math.inf
    for _ in range(4):  # the fastest repetition counts
        device.synchronize()
        began = time.perf_counter()
        for _ in range(repeats):
            left @ right
        device.synchronize()
        fastest = min(fastest, time.perf_counter() - began)
    return repeats * 2 * size**3 / fastest


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=tuple(CASES), default="base")
    parser.add_argument("--out", type=Path, help="the report, written after every round")
    parser.add_argument("--variants", default="eager", help=f"separated by commas: {', '.join(VARIANTS)}")
    parser.add_argument("--peers", help="separated by commas; empty for none (default: the peers of the case)")
    parser.add_argument("--nanogpt", type=Path, help="nanoGPT's model.py")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=540, help="start no round that would end later")
    parser.add_argument("--warm-only", action="store_true", help="fill torch's cache of compiled code")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--tiny", action="store_true", help="the sizes of the profile demo and few steps")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(exit_code(main))
