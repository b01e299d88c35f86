"""Speed of decoding against other toolkits: same sizes, sentences, beam and steps, each engine in a separate process.

    python -m benchmarks.decoding [--quick] [--json] [--peers DIR] [--only NAMES] [--precisions NAMES]

Every engine decodes each batch for the length of its longest source + 10 steps, with a beam of 4 and random weights
with which no output ends early. The engines do their rounds in turn, and the result is the median. Peers run in the
environments that `python -m benchmarks.setup_peers DIR` creates; the report names the missing ones. `--clock cpu`
measures the processor time of each process; use it with --threads 1 on a machine with other work.

`ratio` is our speed divided by the speed of the fastest peer of the case: PyTorch toolkits in fp32, or CTranslate2 in
fp32. `worst` is the smallest ratio / floor. The command exits with 1 if `worst` is below 1 or a case was not measured.
"""

import argparse
import random
import sys
import time
from typing import Any

from benchmarks.comparison import MODELS, Engine, conclude, interleave, parser

PYTORCH = ("sockeye", "marian", "joeynmt")
PEERS = {  # name → environment, script, precision
    "sockeye": ("sockeye", "sockeye3.py", "fp32"),
    "marian": ("hf", "marian.py", "fp32"),
    "joeynmt": ("joeynmt", "joey.py", "fp32"),
    "ctranslate2": ("ct2", "ct2.py", "fp32"),
}
SLOW = ("joeynmt",)  # takes many minutes for base or for a whole set, because it does not cache keys and values
# (size, batch or "set" for a whole test set, our precision, peers to compare with, floor)
CASES: tuple[tuple[str, int | str, str, tuple[str, ...], float], ...] = (
    ("tiny", 1, "fp32", PYTORCH, 1.5),
    ("tiny", 32, "fp32", PYTORCH, 1.5),
    ("tiny", 32, "fp32", ("ctranslate2",), 1.0),
    ("tiny", "set", "fp32", ("ctranslate2",), 1.0),
    ("base", 1, "fp32", PYTORCH, 1.15),
    ("base", 32, "fp32", PYTORCH, 1.15),
    ("base", 32, "fp32", ("ctranslate2",), 1.0),
    ("base", "set", "fp32", ("ctranslate2",), 1.0),
    ("base", 1, "bf16", PYTORCH, 1.8),
    ("base", 32, "bf16", PYTORCH, 1.8),
)


def main() -> int:
    options = _options()
    known = dict[tuple[str, int | str], dict[str, dict[str, Any]]]()
    results = []
    for size, batch, precision, against, floor in CASES:
        if size not in options.sizes.split(",") or str(batch) not in options.batches.split(","):
            continue
        if precision not in options.precisions.split(","):
            continue
        if (size, batch) not in known:
            known[size, batch] = _measured(size, batch, options)
        ours = known[size, batch][f"ours {precision}"]
        peers = {name: speed for name, speed in known[size, batch].items() if name in PEERS}
        measured = {
            name: peers[name]["sentences_per_s"] for name in against if "sentences_per_s" in peers.get(name, {})
        }
        fastest = max(measured, key=measured.__getitem__, default=None)
        ratio = ours["sentences_per_s"] / measured[fastest] if fastest and "sentences_per_s" in ours else None
        results.append(
            {
                "size": size, "batch": batch, "precision": precision, "ours": ours, "peers": peers,
                "fastest_peer": fastest, "ratio": ratio and round(ratio, 3), "floor": floor,
            }
        )  # fmt: skip
        if not options.json:
            _print(results[-1])
    return conclude(results, options)


def _measured(size: str, batch: int | str, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Run all engines on the same work with interleaved rounds. Our engine runs in each precision that has a floor."""
    job = _job(size, batch, options)
    precisions = options.precisions.split(",")
    wanted = sorted({case[2] for case in CASES if case[:2] == (size, batch) and case[2] in precisions}, reverse=True)
    named = options.only.split(",") if options.only else PEERS
    named = [name for name in named if name not in SLOW or (size == "tiny" and batch != "set")]
    scripts = {f"ours {precision}": ("", "ours.py", precision) for precision in wanted}
    scripts |= {name: PEERS[name] for name in named}
    engines = {
        name: Engine(environment, script, {**job, "variant": variant}, options.threads, options)
        for name, (environment, script, variant) in scripts.items()
    }
    interleave([[engine] for engine in engines.values()], 3 if options.quick else 5)
    return {name: _speed(engine.close()) for name, engine in engines.items()}


def _speed(found: dict[str, Any]) -> dict[str, Any]:
    if "per_s" in found:
        found["sentences_per_s"] = found.pop("per_s")
        found["pieces_per_s"] = round(found["sentences_per_s"] * found["pieces_per_sentence"], 1)
    return found


def _job(size: str, batch: int | str, options: argparse.Namespace) -> dict[str, Any]:
    draw = random.Random(1)
    whole = batch == "set"
    if whole:
        count = {"tiny": 1024, "base": 64 if options.quick else 256}[size]  # multi30k's test sets have 1,000
    else:
        count = max(int(batch), 4) if size == "tiny" or not options.quick else max(int(batch), 2)
    # A single batch has similar lengths, like a batch of a sorted test set.
    lengths = [
        min(60, max(5, round(draw.lognormvariate(3.2, 0.5)))) if whole else draw.randint(20, 28) for _ in range(count)
    ]
    at_once = {"tiny": 32, "base": 16}[size] if whole else int(batch)
    if whole:  # give all sources of a batch the same length, because peers stop all sentences of a batch together
        lengths.sort(reverse=True)
        lengths = [lengths[at - at % at_once] for at in range(count)]
    vocabulary = MODELS[size]["vocab_size"]
    return {
        "model": MODELS[size],
        "sentences": [[draw.randrange(4, vocabulary) for _ in range(length)] for length in lengths],
        "batch": at_once,
        "sorted": whole,
        "beam": 4,
        "extra": 10,
    }


def _print(result: dict[str, Any]) -> None:
    speeds = {"ours": result["ours"], **result["peers"]}
    shown = ", ".join(f"{name} {speed.get('sentences_per_s', '–')}" for name, speed in speeds.items())
    print(
        f"{time.strftime('%H:%M:%S')} {result['size']}, batch {result['batch']}, {result['precision']}: {shown} "
        f"sentences/s; against {result['fastest_peer']}: {result['ratio']} (floor {result['floor']})",
        flush=True,
    )


def _options() -> argparse.Namespace:
    made = parser(__doc__, "fewer sentences and rounds", "DECODING_PEERS")
    made.add_argument("--only", default="", help="peers to measure, by name; all of them if unset")
    made.add_argument("--batches", default="1,32,set", help="sentences at once; set: a whole test set")
    return made.parse_args()


if __name__ == "__main__":
    sys.exit(main())
