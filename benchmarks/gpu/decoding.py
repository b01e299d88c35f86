"""Time to decode 3,000 sentences with base and a beam of 4 on a GPU, unattended.

    python -m benchmarks.gpu.decoding [--source FILE.en] [--model DIR] [--out FILE.json]
    python -m benchmarks.gpu.decoding --tiny --device cpu          # the whole path in miniature

Needs torch, sentencepiece, sacrebleu and what `experiments` itself imports (numpy, pydantic, safetensors, psutil).
Without --model and --source, base is first trained here for STEPS steps to copy sentences, so that hypotheses end where
a translation would, after about their source's length; lengths are like newstest's (median 27 pieces), and the weights
are kept beside FILE. The first sentences are compared with the processor's in fp32.
"""

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any, cast

import torch

from benchmarks.gpu.training_rows import TINY as TINY_SETTINGS
from benchmarks.gpu.training_rows import pairs, planned, train_row
from benchmarks.machine import keep_report, machine
from experiments.config import DeviceSpec, RunConfig
from experiments.device import Device
from experiments.evaluation.beam import SearchSettings
from experiments.evaluation.translate import translate
from experiments.evaluation.translator import Translator
from model.network import build_model

SENTENCES, TINY, VOCABULARY = 3000, 20, 37000
STEPS, COPIED = 400, 1000  # of the training; kinds of pieces in its sentences
SLOTS = (2**17, 2**18, 2**19)  # places in a batch's cache; each number is measured


def main() -> None:
    options = _options()
    report: dict[str, Any] = {"runs": []}
    if options.out and options.out.exists():
        report = json.loads(options.out.read_text(encoding="utf-8"))
    report |= {"sentences": TINY if options.tiny else SENTENCES, **machine()}
    for precision in ("bf16", "fp32"):
        device = Device.open(DeviceSpec(options.device, 4), precision)
        report["gpu"] = device.name
        for slots in SLOTS[: 1 if options.tiny else None]:
            compares = precision == "fp32" and slots == SLOTS[0] and "as_on_cpu" not in report
            if not compares and any((run["precision"], run["slots"]) == (precision, slots) for run in report["runs"]):
                continue
            run, outputs = _timed(options, device, precision, slots)
            report["runs"].append(run)
            print(json.dumps(run), flush=True)
            keep_report(report, options.out)
            if compares:
                report["as_on_cpu"] = _compare(options, *outputs)
                print(json.dumps(report["as_on_cpu"]), flush=True)
                keep_report(report, options.out)
    report["best_s"] = min(run["seconds"] for run in report["runs"])
    keep_report(report, options.out)
    alike = "{same} of {sentences} as on the processor".format(**report["as_on_cpu"])
    print(
        f"{report['sentences']} sentences in {report['best_s']} s at best (3,000 of newstest on an H200: 3 s); {alike}"
    )


def _timed(options: argparse.Namespace, device: Device, precision: str, slots: int) -> tuple[dict[str, Any], Any]:
    """The fastest of three searches; the sentences, settings and outputs."""
    model, sources, settings = _work(options, device, precision)
    best, found = float("inf"), list[Any]()
    for _ in range(3):
        device.synchronize()
        began = time.perf_counter()
        found = translate(model, sources, settings, device, max_batch_slots=slots)
        device.synchronize()
        best = min(best, time.perf_counter() - began)
    pieces = sum(len(hypotheses[0].ids) for hypotheses in found)
    limit = sum(len(source) + settings.max_extra_length for source in sources)
    run = {
        "precision": precision, "slots": slots, "seconds": round(best, 3), "pieces": pieces, "pieces_at_most": limit,
        "pieces_per_s": round(pieces / best), "peak_memory_gb": round(device.peak_memory_bytes() / 1e9, 2),
    }  # fmt: skip
    return run, (sources, settings, [hypotheses[0].ids for hypotheses in found])


def _work(options: argparse.Namespace, device: Device, precision: str) -> tuple[Any, list[list[int]], SearchSettings]:
    """The model on this device, the sentences' pieces, the search settings."""
    if options.model:
        kind = "cuda" if device.is_cuda else "cpu"
        translator = Translator.load(options.model, DeviceSpec(kind, device.threads), precision)
        lines = options.source.read_text(encoding="utf-8").split("\n")[:SENTENCES]
        return translator.model, translator.source_tokenizer.encode_batch(lines), translator.settings
    profile, sets = ("demo", TINY_SETTINGS) if options.tiny else ("paper", ("training.warmup_steps=150",))
    row = planned("table3", profile, sets, "base")[0]
    config = cast(RunConfig, row.config)
    vocabulary, copied = (config.data.vocab_size, 100) if options.tiny else (VOCABULARY, COPIED)
    weights = options.out.with_suffix(".pt") if options.out else None
    if weights and weights.exists():
        model: Any = build_model(config.model, vocabulary, device=device.torch_device)
        model.load_state_dict(torch.load(weights, map_location=device.torch_device, weights_only=True))
    else:
        with tempfile.TemporaryDirectory() as folder:
            data, steps = pairs(Path(folder), vocabulary, 0.55, copied=copied), iter(range(1, options.steps + 1))
            model, _ = train_row(row, data, device, Path(folder), lambda: next(steps) == options.steps, lambda *_: None)
        if weights:
            torch.save(model.state_dict(), weights)
    draw = random.Random(1)
    count = TINY if options.tiny else SENTENCES
    lengths = [min(150, max(3, round(draw.lognormvariate(3.3, 0.55)))) for _ in range(count)]
    sources = [[draw.randrange(4, 4 + copied) for _ in range(n)] for n in lengths]
    return model.eval(), sources, SearchSettings(4, 0.6, 50)


def _compare(
    options: argparse.Namespace, sources: list[list[int]], settings: SearchSettings, found: list[tuple[int, ...]]
) -> dict[str, int]:
    """The number of the first sentences that are the same as on the processor in fp32."""
    cpu = Device.open(DeviceSpec("cpu", 8), "fp32")
    model, _, _ = _work(options, cpu, "fp32")
    count = min(options.compare, len(sources))
    here = translate(model, sources[:count], settings, cpu)
    same = sum(one[0].ids == there for one, there in zip(here, found[:count], strict=True))
    return {"sentences": count, "same": same}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, help="newstest in the model's source language, one sentence a line")
    parser.add_argument("--model", type=Path, help="a folder that `ablations export` wrote")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--steps", type=int, default=STEPS, help="of the model's training, without --model")
    parser.add_argument("--tiny", action="store_true", help="the demo's sizes and 20 sentences")
    parser.add_argument("--compare", type=int, default=100, help="sentences that the processor decodes too")
    options = parser.parse_args()
    if bool(options.source) != bool(options.model):
        parser.error("--source and --model go together")
    return options


if __name__ == "__main__":
    main()
