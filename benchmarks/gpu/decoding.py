"""Time to decode 3,000 sentences with base and a beam of 4 on a GPU, unattended.

    python -m benchmarks.gpu.decoding [--source FILE.en] [--model DIR] [--out FILE.json]
    python -m benchmarks.gpu.decoding --tiny --device cpu          # the whole path in miniature

Needs torch, sentencepiece, sacrebleu and what `experiments` itself imports (numpy, pydantic, safetensors, psutil).
Without --model the weights are random and every output has its source's length + 10; without --source the lengths are
drawn like newstest's (median 27 pieces). With both, the first sentences are compared with the processor's in fp32.
"""

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import keep_report, machine
from experiments.config import DeviceSpec
from experiments.data.encoding.tokenizer import EOS_ID
from experiments.device import Device
from experiments.evaluation.beam import SearchSettings
from experiments.evaluation.translate import translate
from experiments.evaluation.translator import Translator
from model.config import ModelConfig
from model.network import build_model

SENTENCES, TINY, VOCABULARY = 3000, 20, 37000
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
    run = {
        "precision": precision, "slots": slots, "seconds": round(best, 3), "pieces": pieces,
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
    torch.manual_seed(1)
    config = ModelConfig(num_layers=1, d_model=8, d_ff=16, num_heads=2, d_k=4, d_v=4) if options.tiny else ModelConfig()
    model = build_model(config, VOCABULARY, device=device.torch_device).eval()
    with torch.no_grad():
        model.target_embedding.weight[EOS_ID] = 0  # far below the best of thousands, so no output ends early
    draw = random.Random(1)
    count = TINY if options.tiny else SENTENCES
    lengths = [min(150, max(3, round(draw.lognormvariate(3.3, 0.55)))) for _ in range(count)]
    return model, [[draw.randrange(4, VOCABULARY) for _ in range(n)] for n in lengths], SearchSettings(4, 0.6, 9)


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
    parser.add_argument("--tiny", action="store_true", help="a model of width 8 and 20 sentences")
    parser.add_argument("--compare", type=int, default=100, help="sentences that the processor decodes too")
    options = parser.parse_args()
    if bool(options.source) != bool(options.model):
        parser.error("--source and --model go together")
    return options


if __name__ == "__main__":
    main()
