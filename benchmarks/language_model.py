"""Speed of training a language model against other programs, on the same text windows, each in a separate process.

    python -m benchmarks.language_model [--quick] [--json] [--peers DIR] [--out FILE] [--clock wall|cpu] [--threads N]

Every engine makes the same updates on the same batches of bytes. The network is GPT-2's (norms before the sub-layers,
learned positions, GELU, one matrix for embedding and softmax) without dropout, and the optimizer is AdamW. The engines
do their rounds in turn, and the result is the median. One peer is nanoGPT's network and loop, rewritten here from its
description, because nanoGPT is not a package. The other is Hugging Face's GPT-2, in the environment `hf` that
`python -m benchmarks.setup_peers DIR` creates. `two runs` compares two simultaneous runs of ours with one thread each
with the fastest peer with all threads. `worst` is the smallest ratio / floor. The command exits with 1 if `worst` is
below 1 or a case was not measured.
"""

import argparse
import random
import sys
import time
from typing import Any

from benchmarks.comparison import Engine, conclude, interleave, parser
from benchmarks.training import compared

PIECES = 260  # vocabulary size: bytes and special symbols
SMALL = {"num_layers": 4, "d_model": 128, "d_ff": 512, "num_heads": 4, "d_k": 32, "d_v": 32}
MIDDLE = {"num_layers": 6, "d_model": 384, "d_ff": 1536, "num_heads": 6, "d_k": 64, "d_v": 64}
# name → (sizes, pieces per window, windows per batch, batches per round, rounds)
CASES = {"small": (SMALL, 128, 32, 4, 5), "middle": (MIDDLE, 256, 16, 1, 3)}
PEERS = {"nanoGPT's loop": ("", "lm_nanogpt.py"), "GPT-2 of transformers": ("hf", "lm_gpt2.py")}
FLOORS = {"fp32": 1.15, "bf16": 1.3}
TWO_RUNS_FLOOR = 1.5


def main() -> int:
    options = _options()
    results = []
    for name in ("small",) if options.quick else CASES:
        for precision in FLOORS:
            if precision in options.precisions.split(","):
                results += _case(name, precision, options)
    return conclude(results, options)


def _case(name: str, precision: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return two results: of one run, and of two simultaneous runs."""
    sizes, window, rows, count, rounds = CASES[name]
    draw = random.Random(1)
    batches = [[[draw.randrange(4, PIECES) for _ in range(window + 1)] for _ in range(rows)] for _ in range(count)]
    job = {"model": {**sizes, "vocab_size": PIECES}, "window": window, "batches": batches, "precision": precision}
    ours = Engine("", "lm_ours.py", job, options.threads, options)
    peers = {peer: Engine(*place, job, options.threads, options) for peer, place in PEERS.items()}
    pair = [Engine("", "lm_ours.py", job, 1, options) for _ in range(2)]
    interleave([[ours], *([engine] for engine in peers.values()), pair], rounds)
    found = {peer: engine.close() for peer, engine in peers.items()}
    halves = [engine.close() for engine in pair]
    both = {**halves[0], "runs": [half.get("per_s") for half in halves]}
    if all(both["runs"]):
        both["per_s"] = round(sum(both["runs"]), 1)
    same = {"size": name, "precision": precision, "window": window, "target_tokens": window * rows}
    results = [
        {**same, **compared(ours.close(), found, FLOORS[precision])},
        {**same, "two_runs": True, **compared(both, found, TWO_RUNS_FLOOR)},
    ]
    for result in () if options.json else results:
        speeds = {"ours": result["ours"], **result["peers"]}
        shown = ", ".join(f"{engine} {speed.get('per_s', '–')}" for engine, speed in speeds.items())
        print(
            f"{time.strftime('%H:%M:%S')} {name}, {precision}{', two runs' if result.get('two_runs') else ''}: {shown} "
            f"bytes/s; against {result['fastest_peer']}: {result['ratio']} (floor {result['floor']})",
            flush=True,
        )
    return results


def _options() -> argparse.Namespace:
    made = parser(__doc__, "the small network alone, about two minutes", "TRAINING_PEERS")
    return made.parse_args()


if __name__ == "__main__":
    sys.exit(main())
