"""Speed of sub-layers other than the Transformer's: training against plain torch, search steps against whole prefixes.

    python -m benchmarks.architectures [--quick] [--clock wall|cpu] [--threads N] [--json] [--out FILE]

training  Forward pass, backward pass and one Adam step of a stack of recurrent layers, against torch's modules with the
          same residual connections, dropout and norms. The floor of the ratio is 1.0.
search    30 steps of a beam of 4 with `step`, against one pass over the whole prefix at each step. The floor is 1.5.

The two sides are timed in turn, and the result is the ratio of their medians. `--clock cpu` measures processor time;
use it on a machine with other work. The command exits with 1 if a ratio is below its floor.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.machine import keep_report, machine
from benchmarks.measured import exit_code, median
from model.config import ModelConfig
from model.network import build_model

VOCABULARY, SENTENCES, LENGTH, LAYERS, DROPOUT = 1000, 32, 25, 2, 0.1
STEPS, BEAM = 30, 4
TRAINING_FLOOR, SEARCH_FLOOR = 1.0, 1.5
DECODERS = {
    "lstm": "lstm, cross_attention, lstm",
    "gru": "gru, cross_attention, gru",
    "convolution": "2 * (convolution(gated=true), cross_attention)",
    "average": "2 * (average, cross_attention, feed_forward)",
}


def main() -> int:
    options = _options()
    torch.set_num_threads(options.threads)
    clock = {"wall": time.perf_counter, "cpu": time.process_time}[options.clock]
    rounds = 5 if options.quick else 15
    results = []
    for width in (128,) if options.quick else (128, 512):
        for name, module in {"lstm": nn.LSTM, "gru": nn.GRU}.items():
            sides = _training(_ours(name, width), width), _training(_Plain(module, width), width)
            ours, plain = _by_turns(*sides, 3 * rounds, clock)
            results.append(_result("training", name, width, ours, plain, TRAINING_FLOOR))
            _print(results[-1], options)
        for name, line in DECODERS.items():
            steps, prefixes = _by_turns(*_searches(line, width, 1 if options.quick else 4), rounds, clock)
            results.append(_result("search", name, width, steps, prefixes, SEARCH_FLOOR))
            _print(results[-1], options)
    worst = min(result["ratio"] / result["floor"] for result in results)
    report = {
        "results": results,
        "worst": round(worst, 3),
        "threads": options.threads,
        "clock": options.clock,
        **machine(),
    }
    if options.json:
        print(json.dumps(report, indent=1))
    keep_report(report, options.out)
    return int(worst < 1)


class _Plain(nn.Module):
    """The same network written with torch's modules."""

    def __init__(self, module: Callable[..., nn.Module], width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(module(width, width, batch_first=True) for _ in range(LAYERS))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(LAYERS))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, pieces_BT: Tensor) -> Tensor:
        x_BTD: Tensor = self.dropout(self.embedding(pieces_BT))
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x_BTD = norm(x_BTD + self.dropout(layer(x_BTD)[0]))
        return x_BTD


def _ours(name: str, width: int) -> nn.Module:
    config = ModelConfig(
        d_model=width, positions="none", dropout=DROPOUT, encoder=f"{LAYERS} * {name}", decoder="cross_attention"
    )
    model = build_model(config, VOCABULARY)
    model.decoder.requires_grad_(False)  # the optimizer then skips the decoder
    model.forward = model.encode  # type: ignore[method-assign]
    return model


def _training(model: nn.Module, width: int) -> Callable[[], None]:
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], fused=True)
    pieces_BT = torch.randint(VOCABULARY, (SENTENCES, LENGTH))
    gradient_BTD = torch.randn(SENTENCES, LENGTH, width)

    def once() -> None:
        model(pieces_BT).backward(gradient_BTD)
        optimizer.step()
        optimizer.zero_grad()

    return once


def _searches(line: str, width: int, sentences: int) -> tuple[Callable[[], None], Callable[[], None]]:
    config = ModelConfig(d_model=width, d_ff=4 * width, num_heads=4, d_k=width // 4, d_v=width // 4, decoder=line)
    model = build_model(config, VOCABULARY).eval()
    source_BS, own_K = torch.randint(VOCABULARY, (sentences, LENGTH)), torch.eye(BEAM, dtype=torch.bool)
    pieces_RT = torch.randint(VOCABULARY, (sentences * BEAM, STEPS))
    own_BKTK = own_K[None, :, None, :].expand(sentences, BEAM, STEPS, BEAM)  # each beam continues itself
    with torch.inference_mode():
        memory_BSD = model.encode(source_BS)
    memory_RSD = memory_BSD.repeat_interleave(BEAM, 0)

    @torch.inference_mode()
    def steps() -> None:
        state = model.start_decoding(memory_BSD, None, BEAM, STEPS)
        for t in range(STEPS):
            tokens_BK = pieces_RT[:, t].view(sentences, BEAM)
            model.next_logits(model.decode_step(tokens_BK, state, own_BKTK[:, :, : t + 1]), state)

    @torch.inference_mode()
    def prefixes() -> None:
        for t in range(STEPS):
            model.logits(model.decode(pieces_RT[:, : t + 1], memory_RSD)[:, -1])

    return steps, prefixes


def _by_turns(
    one: Callable[[], None], other: Callable[[], None], rounds: int, clock: Callable[[], float]
) -> tuple[float, float]:
    """Return the median seconds of each function. The first round is a warm-up and does not count."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + 1):
        for call, taken in zip((one, other), times, strict=True):
            began = clock()
            call()
            if number:
                taken.append(clock() - began)
    return median("one side", times[0]), median("the other side", times[1])


def _result(what: str, name: str, width: int, ours: float, other: float, floor: float) -> dict[str, Any]:
    return {
        "what": what, "layer": name, "d_model": width, "ms": round(1000 * ours, 2), "other_ms": round(1000 * other, 2),
        "ratio": round(other / ours, 3), "floor": floor,
    }  # fmt: skip


def _print(result: dict[str, Any], options: argparse.Namespace) -> None:
    if not options.json:
        print(*(f"{name} {value}" for name, value in result.items()), sep=", ", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the small width, fewer sentences and rounds")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--out", type=Path, help="also write the JSON to a file, such as benchmarks/results/….json")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
