"""Time to decode 3,000 sentences with base and a beam of 4 on a GPU, compared with Hugging Face's `generate`.

    python -m benchmarks.gpu.decoding --out FILE.json [--seconds S] [--device cpu] [--tiny]
    python -m benchmarks.gpu.decoding --out FILE.json --model DIR --source FILE.en

Without --model, the benchmark first trains base on generated sentences. Every sentence is a chain: a fixed sequence of
pieces that occur in no other chain. The target is equal to the source. Hypotheses of the trained model therefore end
after about the length of a translation (lengths like newstest's, median 27 pieces). `right` is the share of sentences
with the whole chain as the hypothesis. The weights are saved next to FILE.

It was not measured whether base learns these chains on a GPU within the time of the benchmark. If base does not learn
them, the benchmark fails. Then use --model with any trained model.

The exit code is 1 if too many hypotheses are empty, reach the length limit or are wrong, or if there are fewer than two
searches. The hypotheses of the first sentences are compared with those of the CPU in fp32. If the package transformers
is installed, the weights are copied into MarianMTModel, and both programs decode the same sentences in turn, in bf16
and fp32. Both use a beam of 4 and no length penalty, because they define the penalty differently. `same` counts equal
hypotheses. Hypotheses may differ in two cases: if a hypothesis reaches the limit, because `generate` also returns
unfinished hypotheses, and if the start symbol is probable, because only our search excludes it.

The benchmark needs torch, sentencepiece, sacrebleu and the packages that `experiments` imports (numpy, pydantic,
safetensors, psutil).
"""

import argparse
import importlib.util
import json
import os
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch

from benchmarks.gpu.exits import DONE
from benchmarks.gpu.marian import Marian
from benchmarks.gpu.training_rows import TINY as TINY_SETTINGS
from benchmarks.gpu.training_rows import ignore, new_model, planned, train_row, written
from benchmarks.machine import keep_report, machine
from benchmarks.measured import NothingMeasuredError, exit_code, median, positive
from experiments.config.run_config import RunConfig
from experiments.data.corpora.corpus import SIDES
from experiments.device import Device
from experiments.device_spec import DeviceSpec
from experiments.errors import Preempted
from experiments.evaluation.beam import Hypothesis, SearchSettings
from experiments.evaluation.translate import translate
from experiments.evaluation.translator import Translator
from model.network import build_model

SENTENCES, TINY, COMPARED = 3000, 24, 300  # numbers of sentences: default, with --tiny, compared with Hugging Face
CHAINS, PAIRS = 16, 20_000
STEPS, EVERY = 4000, 100  # maximum number of updates, and updates between tests of the share of right hypotheses
# The learning rate reaches the paper's peak after 200 steps instead of 4,000. Batches are small.
SETTINGS = (
    "training.tokens_per_batch=4096", "training.warmup_steps=200", "training.learning_rate_scale=0.2236",
    "training.label_smoothing=0.0", "model.dropout=0.0",
)  # fmt: skip
AS_MARIAN = ("model.d_k=8", "model.d_v=8")  # for --tiny, because Marian's heads have the width d_model / num_heads
ENOUGH, LEAST_RIGHT = 0.95, 0.5  # shares of right hypotheses: to end the training, and to accept the measurement
MOST_AT_LIMIT, MOST_EMPTY = 0.2, 0.05  # maximum shares of hypotheses at the length limit, and of empty ones
SLOTS = {"bf16": (2**17, 2**19), "fp32": (2**17,)}  # slots in the cache of a batch; each value is measured
SEARCHES = 2  # number of measured searches after the warm-up
Sources = list[list[int]]


def main() -> int:
    options = _options()
    deadline = time.monotonic() + options.seconds
    report: dict[str, Any] = {"sentences": 0, "runs": [], **machine()}
    device = Device.open(DeviceSpec(options.device, 4), "bf16")
    report["device"] = device.describe()
    work = _Exported(options) if options.model else _Trained(options, device)
    report |= {"model": work.facts, "sentences": len(work.sources)}
    keep_report(report, options.out)
    report["as_on_cpu"] = _as_on_processor(work, replace(device, precision="fp32"), options)
    keep_report(report, options.out)
    for precision in ("bf16", "fp32"):
        at = replace(device, precision=precision)
        for slots in SLOTS[precision][: 1 if options.tiny else None]:
            report["runs"].append(_timed(work, at, slots))
            print(json.dumps(report["runs"][-1]), flush=True)
            keep_report(report, options.out)
    report["best_s"] = min(run["seconds"] for run in report["runs"])
    report["generate"] = _beside_generate(work, device, deadline, options)
    keep_report(report, options.out)
    print(_in_short(report))
    return DONE


class _Trained:
    """Base, which this benchmark trains to write chains."""

    settings = SearchSettings(4, 0.6, 50)

    def __init__(self, options: argparse.Namespace, device: Device) -> None:
        profile, sets = ("demo", (*TINY_SETTINGS, *AS_MARIAN)) if options.tiny else ("paper", SETTINGS)
        self._row = planned("table3", profile, sets, "base")[0]
        self.config = cast(RunConfig, self._row.config)
        self._vocabulary = self.config.data.vocab_size
        self._chains = chains(8 if options.tiny else CHAINS, self._vocabulary, 9 if options.tiny else 150)
        draw = random.Random(2)
        drawn = [draw.choice(self._chains) for _ in range(TINY if options.tiny else SENTENCES)]
        self.sources: Sources = [list(chain) for chain in drawn]
        self.expected: Sources | None = self.sources
        self.facts: dict[str, Any] = {"trained_on": f"{len(self._chains)} chains"}
        weights = options.out.with_suffix(".pt")
        if weights.exists():
            kept = torch.load(weights, map_location="cpu", weights_only=True)
            self._weights, self.facts = kept["weights"], kept["facts"]
            return
        self._train(options, device)
        torch.save({"weights": self._weights, "facts": self.facts}, weights)

    def model(self, device: Device) -> Any:
        """Return a copy of the trained model on a device."""
        model = build_model(self.config.model, self._vocabulary, device=device.torch_device)
        model.load_state_dict(self._weights)
        return model.eval()

    def _train(self, options: argparse.Namespace, device: Device) -> None:
        """Train until the share of right hypotheses is ENOUGH, for at most half of the time and `--steps` updates."""
        began, steps, right = time.monotonic(), 0, 0.0
        model = new_model(self._row, device)
        known = self._chains

        def stop() -> bool:
            nonlocal steps, right
            steps += 1
            over = steps >= options.steps or time.monotonic() - began > 0.5 * options.seconds
            if steps % (20 if options.tiny else EVERY) == 0 or over:
                right = _share_right(translate(model, known, self.settings, device), known)
                print(f"step {steps}: {right:.0%} right, {time.monotonic() - began:.0f} s", flush=True)
                if right >= ENOUGH or over:
                    raise Preempted
            return False

        with tempfile.TemporaryDirectory() as folder:
            draw = random.Random(1)
            lines = [draw.choice(self._chains) for _ in range(2000 if options.tiny else PAIRS)]
            data = written(Path(folder), self._vocabulary, dict.fromkeys(SIDES, lines))
            train_row(self._row, data, device, Path(folder), stop, ignore, model=model)
        self._weights = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
        self.facts |= {"steps": steps, "right": round(right, 3), "train_s": round(time.monotonic() - began, 1)}


class _Exported:
    """A model that `ablations export` wrote, and a test set in its source language."""

    expected: Sources | None = None

    def __init__(self, options: argparse.Namespace) -> None:
        self._folder = options.model
        found = self._load(Device.open(DeviceSpec("cpu", 4), "fp32"))
        self.settings = found.settings
        lines = options.source.read_text(encoding="utf-8").split("\n")[:SENTENCES]
        self.sources: Sources = found.source_tokenizer.encode_batch([line for line in lines if line])
        self.facts: dict[str, Any] = {"exported": options.model.name, "source": options.source.name}

    def model(self, device: Device) -> Any:
        """Return the model on a device."""
        return self._load(device).model

    def _load(self, device: Device) -> Translator:
        spec = DeviceSpec("cuda" if device.is_cuda else "cpu", device.threads)
        return Translator.load(self._folder, spec, device.precision)


def chains(count: int, vocabulary: int, longest: int) -> Sources:
    """Return up to `count` chains: sentences of at least three pieces that have no piece in common.

    Every piece except the last therefore has exactly one successor. The lengths are like newstest's.
    """
    draw, next_piece, found = random.Random(1), 4, list[list[int]]()
    for _ in range(count):
        length = min(longest, max(3, round(draw.lognormvariate(3.3, 0.55))))
        found.append(list(range(next_piece, min(next_piece + length, vocabulary))))
        next_piece += length
    return [chain for chain in found if len(chain) > 2]


def refuse_idle(
    what: str, found: Sequence[Hypothesis], sources: Sources, settings: SearchSettings, expected: Sources | None
) -> dict[str, Any]:
    """Return statistics of the hypotheses. Raises NothingMeasuredError if they are not like those of a translation."""
    pieces = sum(len(hypothesis.ids) for hypothesis in found)
    empty = sum(not hypothesis.ids for hypothesis in found) / len(found)
    at_limit = sum(not hypothesis.finished for hypothesis in found) / len(found)
    facts = {"pieces": pieces, "empty": round(empty, 4), "at_limit": round(at_limit, 4)}
    positive(what, pieces=pieces)
    if empty > MOST_EMPTY:
        raise NothingMeasuredError(f"{what}: {empty:.0%} of the hypotheses are empty")
    if at_limit > MOST_AT_LIMIT:
        raise NothingMeasuredError(
            f"{what}: {at_limit:.0%} of the hypotheses reach the limit, the source's length + "
            f"{settings.max_extra_length}: the model was not trained long enough"
        )
    if expected is not None:
        facts["right"] = round(_share_right([[one] for one in found], expected), 4)
        if facts["right"] < LEAST_RIGHT:
            raise NothingMeasuredError(
                f"{what}: {facts['right']:.0%} of the hypotheses are right: the model was not trained long enough"
            )
    return facts


def _share_right(found: Sequence[Sequence[Hypothesis]], expected: Sources) -> float:
    return sum(list(one[0].ids) == right for one, right in zip(found, expected, strict=True)) / len(expected)


def _as_on_processor(work: _Trained | _Exported, device: Device, options: argparse.Namespace) -> dict[str, int]:
    """Return how many of the first sentences have the same hypothesis as on the CPU, both in fp32."""
    sources = work.sources[: options.compare]
    there = translate(work.model(device), sources, work.settings, device)
    cpu = Device.open(DeviceSpec("cpu", options.threads), "fp32")
    here = translate(work.model(cpu), sources, work.settings, cpu)
    expected = None if work.expected is None else work.expected[: len(sources)]
    refuse_idle("the first sentences", [one[0] for one in there], sources, work.settings, expected)
    same = sum(one[0].ids == other[0].ids for one, other in zip(here, there, strict=True))
    return {"sentences": len(sources), "same": same}


def _timed(work: _Trained | _Exported, device: Device, slots: int) -> dict[str, Any]:
    """Return the median time of the measured searches, and statistics of their hypotheses."""
    what = f"decoding in {device.precision}"
    model = work.model(device)
    times, found = list[float](), list[list[Hypothesis]]()
    for _ in range(1 + SEARCHES):  # the first search is the warm-up
        device.synchronize()
        began = time.perf_counter()
        found = translate(model, work.sources, work.settings, device, max_batch_slots=slots)
        device.synchronize()
        times.append(time.perf_counter() - began)
    facts = refuse_idle(what, [one[0] for one in found], work.sources, work.settings, work.expected)
    seconds = median(what, times[1:])
    return {
        "precision": device.precision, "slots": slots, "seconds": round(seconds, 3), **facts,
        "pieces_per_s": round(facts["pieces"] / seconds), "peak_memory_gb": round(device.peak_memory_bytes() / 1e9, 2),
    }  # fmt: skip


def _beside_generate(
    work: _Trained | _Exported, device: Device, deadline: float, options: argparse.Namespace
) -> dict[str, Any]:
    """Time our search and Hugging Face's `generate` in turn, with the same weights."""
    if isinstance(work, _Exported) or importlib.util.find_spec("transformers") is None:
        return {"left_out": "it needs the package transformers and the model trained here"}
    settings = replace(work.settings, length_penalty=0.0)
    sources = work.sources[: TINY if options.tiny else COMPARED]
    found: dict[str, Any] = {"sentences": len(sources), "beam_size": settings.beam_size, "length_penalty": 0.0}
    for precision in ("fp32", "bf16"):
        at = replace(device, precision=precision)
        model = work.model(at)
        marian = Marian(work.config.model, work.config.data.vocab_size, model, at)
        outputs: dict[str, Any] = {}

        def ours(at: Device = at, model: Any = model) -> list[tuple[int, ...]]:
            return [one[0].ids for one in translate(model, sources, settings, at)]

        def theirs(marian: Marian = marian) -> list[tuple[int, ...]]:
            return marian.generate(sources, settings.beam_size, settings.max_extra_length)

        times: dict[str, list[float]] = {"ours": [], "generate": []}
        for number in range(1 + SEARCHES):  # the first round is the warm-up
            if time.monotonic() > deadline and number > 2:
                break
            for name, decode in (("ours", ours), ("generate", theirs)):
                at.synchronize()
                began = time.perf_counter()
                outputs[name] = decode()
                at.synchronize()
                if number:
                    times[name].append(time.perf_counter() - began)
        seconds = {name: median(f"{name} in {precision}", some) for name, some in times.items()}
        positive("generate", pieces=sum(map(len, outputs["generate"])))
        same = [one == other for one, other in zip(outputs["ours"], outputs["generate"], strict=True)]
        found[precision] = {
            "ours_s": round(seconds["ours"], 3), "generate_s": round(seconds["generate"], 3),
            "ratio": round(seconds["generate"] / seconds["ours"], 2), "same": sum(same),
            "first_difference": _first_difference(outputs, same),
        }  # fmt: skip
        print(precision, json.dumps(found[precision]), flush=True)
        if precision == "fp32" and sum(same) < LEAST_RIGHT * len(same):
            raise NothingMeasuredError(f"generate: {sum(same)} of {len(same)} hypotheses are equal: another network")
    return found


def _first_difference(outputs: dict[str, list[tuple[int, ...]]], same: list[bool]) -> dict[str, Any] | None:
    """Return the first sentence with different hypotheses, or None if there is none."""
    if all(same):
        return None
    at = same.index(False)
    return {"sentence": at, **{name: list(some[at]) for name, some in outputs.items()}}


def _in_short(report: dict[str, Any]) -> str:
    compared = report["generate"]
    beside = "; ".join(
        f"generate in {name} takes {compared[name]['ratio']} times as long, {compared[name]['same']} of "
        f"{compared['sentences']} hypotheses the same"
        for name in ("bf16", "fp32")
        if name in compared
    )
    alike = "{same} of {sentences} as on the processor".format(**report["as_on_cpu"])
    return f"{report['sentences']} sentences in {report['best_s']} s at best; {alike}" + (
        f"; {beside}" if beside else ""
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=120, help="the training takes at most half of them")
    parser.add_argument("--source", type=Path, help="newstest in the model's source language, one sentence a line")
    parser.add_argument("--model", type=Path, help="a folder that `ablations export` wrote")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--steps", type=int, default=STEPS, help="maximum number of training steps")
    parser.add_argument("--tiny", action="store_true", help="the sizes of the profile demo and few sentences")
    parser.add_argument("--compare", type=int, default=60, help="number of sentences that the CPU decodes too")
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads for the CPU's search"
    )
    options = parser.parse_args()
    if bool(options.source) != bool(options.model):
        parser.error("--source and --model go together")
    return options


if __name__ == "__main__":
    raise SystemExit(exit_code(main))
