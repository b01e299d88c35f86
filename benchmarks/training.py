"""Speed of training against other toolkits: the same updates, each engine in a separate process.

    python -m benchmarks.training [--quick] [--json] [--peers DIR] [--out FILE] [--clock wall|cpu] [--threads N]

Every engine makes the same updates: the same batches of pairs (with log-normal lengths, similar lengths in one batch),
the same sizes, dropout 0.1, label smoothing 0.1, Adam. The engines do their rounds in turn, and the result is the
median. Peers run in the environments that `python -m benchmarks.setup_peers DIR` creates; the report names the missing
ones. The speed of a matrix product, which no trainer can exceed, is measured too. `limit_share` is our speed as a share
of this limit, with the operations that model.cost counts. `--layers` adds the same comparison for networks of LSTMs, of
convolutions and with relative positions, against the toolkits that support them.

`--corpus DIR` (or `builtin`, the default; `none` to omit it) adds the first steps of a real training, in which almost
every micro-batch has a new shape (benchmarks/real_batches.py), and the share of its time that building kernels takes.

`two runs` compares two simultaneous runs of ours with one thread each, as the scheduler places runs on a CPU, with the
fastest peer with all threads. `worst` is the smallest ratio / floor. The command exits with 1 if `worst` is below 1 or
a case was not measured. `--clock cpu` measures the processor time of each process; use it with --threads 1 on a machine
with other work.
"""

import argparse
import math
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.comparison import MODELS, Engine, conclude, interleave, parser
from benchmarks.engines.serve import target_tokens
from benchmarks.real_batches import real_jobs
from model.config import ModelConfig
from model.cost import flops_per_token

OURS = "train_ours.py"
PEERS = {  # name → (environment or "" for the current one, script, supported layers with "" for the Transformer)
    "torch.nn": ("", "train_torch.py", ("",)),
    "marian": ("hf", "train_marian.py", ("",)),
    "sockeye": ("sockeye", "train_sockeye.py", ("",)),
    "eole": ("eole", "train_eole.py", ("",)),
    "joeynmt": ("joeynmt", "train_joeynmt.py", ("",)),
    "opennmt": ("opennmt", "train_opennmt.py", ("lstm", "convolution", "relative")),
    "fairseq": ("fairseq", "train_fairseq.py", ("lstm", "convolution")),
}
LAYERS: dict[str, dict[str, Any]] = {  # settings that give our network the same layers as the peers
    "": {},
    "lstm": {
        "encoder": "N * lstm",
        "decoder": "N * lstm, cross_attention(num_heads=1, d_k=128, d_v=128)",
        "positions": "none",
    },
    "convolution": {
        "encoder": "N * convolution(gated=true)",
        "decoder": "N * (convolution(gated=true), cross_attention(num_heads=1, d_k=128, d_v=128))",
        "positions": "learned",
        "max_length": 256,
    },
    "relative": {"positions": "relative", "position_clip": 16},
}
LAYER_FLOOR = 1.2
REAL_FLOORS = {"fp32": 1.5, "bf16": 2.0}
REAL_ROUNDS = (10, 8, 8, 8)  # steps of each round; the first round is the warm-up
FLOORS = {("tiny", "fp32"): 1.3, ("tiny", "bf16"): 1.7, ("base", "fp32"): 1.1, ("base", "bf16"): 1.3}
TWO_RUNS_FLOOR = 1.8
# (size, target tokens per batch, mean length, batches per round, rounds)
LAYER_CASE = ("tiny", 4096, 14, 1, 3)
QUICK = (("tiny", 4096, 14, 3, 3),)
FULL = (
    ("tiny", 4096, 14, 6, 5),
    ("tiny", 4096, 28, 6, 5),
    ("base", 1024, 14, 2, 3),
    ("base", 1024, 28, 2, 3),
    ("base", 4096, 14, 1, 3),
    ("base", 4096, 28, 1, 3),
)


def main() -> int:
    options = _options()
    trained = [precision for precision in ("fp32", "bf16") if precision in options.precisions.split(",")]
    results = []
    for size, tokens, mean, batches, rounds in QUICK if options.quick else FULL:
        for precision in trained if size in options.sizes.split(",") else ():
            results += _case(size, precision, _batches(size, tokens, mean, batches), mean, rounds, options)
    for precision in trained if options.corpus != "none" else ():
        results.append(_real_case(precision, options))
    size, tokens, mean, batches, rounds = LAYER_CASE
    for layer in filter(None, options.layers.split(",")):
        for precision in trained:
            results += _case(size, precision, _batches(size, tokens, mean, batches), mean, rounds, options, layer)
    return conclude(results, options)


def _case(
    size: str,
    precision: str,
    batches: list[Any],
    mean: int,
    rounds: int,
    options: argparse.Namespace,
    layer: str = "",
) -> list[dict[str, Any]]:
    """Return one result. For the Transformer of size tiny in bf16, also return the result of two simultaneous runs."""
    job = {
        "model": MODELS[size], "layer": layer, "settings": LAYERS[layer], "precision": precision, "batches": batches,
        "dropout": 0.1, "smoothing": 0.1,
    }  # fmt: skip
    only = options.only.split(",") if options.only else PEERS
    wanted = {
        name: (place, script) for name, (place, script, lanes) in PEERS.items() if layer in lanes and name in only
    }
    engines = {"ours": Engine("", OURS, job, options.threads, options)}
    engines |= {name: Engine(*peer, job, options.threads, options) for name, peer in wanted.items()}
    engines["matrix product"] = Engine("", "matrix_product.py", job, options.threads, options)
    two_runs = size == "tiny" and precision == "bf16" and not layer
    pair = [Engine("", OURS, job, 1, options) for _ in range(2 if two_runs else 0)]
    interleave([*([engine] for engine in engines.values()), pair], rounds)
    found = {name: engine.close() for name, engine in engines.items()}
    limit = found.pop("matrix product")
    ours, peers = found.pop("ours"), found
    tokens = sum(len(target) + 1 for batch in batches for _, target in batch)
    result = {
        "size": size, "layer": layer, "precision": precision,
        "target_tokens": tokens // len(batches), "mean_length": mean,
        "matrix_product_gflops": limit.get("per_s") and round(limit["per_s"] / 1e9, 1),
        "limit_share": _limit_share(ours, limit, size, batches, layer),
        **compared(ours, peers, LAYER_FLOOR if layer else FLOORS[size, precision]),
    }  # fmt: skip
    results = [result]
    if pair:
        halves = [engine.close() for engine in pair]
        both = {**halves[0], "runs": [half.get("per_s") for half in halves]}
        if all(both["runs"]):
            both["per_s"] = round(sum(both["runs"]), 1)
        same = {key: result[key] for key in ("size", "layer", "precision", "target_tokens", "mean_length")}
        results.append({**same, "two_runs": True, **compared(both, peers, TWO_RUNS_FLOOR)})
    if not options.json:
        for each in results:
            _print(each)
    return results


def _real_case(precision: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the result for the first steps of a training on a corpus."""
    with tempfile.TemporaryDirectory() as folder:
        ours_job, peer_job = real_jobs(options.corpus, Path(folder), precision, list(options.rounds))
        only = options.only.split(",") if options.only else PEERS
        wanted = {name: peer for name, (*peer, lanes) in PEERS.items() if "" in lanes and name in only}
        engines = {"ours": Engine("", OURS, ours_job, options.threads, options)}
        engines |= {name: Engine(*peer, peer_job, options.threads, options) for name, peer in wanted.items()}
        interleave([[engine] for engine in engines.values()], len(options.rounds) - 1)
        found = {name: engine.close() for name, engine in engines.items()}
        found["ours"] |= _kernels(ours_job, options)
    tokens = sum(target_tokens(batch) for batch in peer_job["batches"])
    result = {
        "size": "real", "layer": "", "corpus": Path(options.corpus).name, "precision": precision,
        "target_tokens": round(tokens / sum(options.rounds)), "mean_length": "as it is", "limit_share": None,
        **compared(found.pop("ours"), found, REAL_FLOORS[precision]),
    }  # fmt: skip
    if not options.json:
        _print(result)
    return result


def _kernels(job: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Return the number of kernels that oneDNN builds in the last round, and their share of the processor time.

    This needs a separate training, because oneDNN's report takes time too.
    """
    engine = Engine("", OURS, job, options.threads, options, {"ONEDNN_VERBOSE": "profile_create"})
    interleave([[engine]], len(job["rounds"]) - 1)
    log, busy = engine.last_log, engine.last_cpu_seconds
    engine.close()
    built = [float(line.rsplit(",", 1)[1]) for line in log.splitlines() if "create:cache_miss" in line]
    return {"kernels_built": len(built), "kernels_share": round(sum(built) / 1e3 / busy, 4) if busy else None}


def compared(ours: dict[str, Any], peers: dict[str, Any], floor: float) -> dict[str, Any]:
    """Return a result that compares our speed with the fastest peer's."""
    rates = {name: peer["per_s"] for name, peer in peers.items() if "per_s" in peer}
    fastest = max(rates, key=rates.__getitem__, default=None)
    ratio = round(ours["per_s"] / rates[fastest], 3) if fastest and "per_s" in ours else None
    return {"ours": ours, "peers": peers, "fastest_peer": fastest, "ratio": ratio, "floor": floor}


def _limit_share(
    ours: dict[str, Any], limit: dict[str, Any], size: str, batches: list[Any], layer: str
) -> float | None:
    if "per_s" not in ours or "per_s" not in limit:
        return None
    pairs = [pair for batch in batches for pair in batch]
    source, target = (sum(len(pair[side]) + 1 for pair in pairs) / len(pairs) for side in (0, 1))
    sizes = {name: value for name, value in MODELS[size].items() if name != "vocab_size"}
    work = flops_per_token(ModelConfig(**sizes, **LAYERS[layer]), MODELS[size]["vocab_size"], source, target)
    return round(ours["per_s"] * work / limit["per_s"], 3)


def _batches(size: str, tokens: int, mean: int, count: int) -> list[list[tuple[list[int], list[int]]]]:
    """Return `count` batches of an epoch that is sorted by length.

    Each batch has at most `tokens` target pieces, including EOS.
    """
    draw, spread, vocabulary = random.Random(1), 0.4, MODELS[size]["vocab_size"]
    centre = mean * math.exp(-(spread**2) / 2)
    lengths = []
    for _ in range(20_000):
        source = min(120, max(3, round(draw.lognormvariate(0, spread) * centre)))
        lengths.append((min(120, max(3, round(source * draw.gauss(1, 0.12)))), source))
    lengths.sort()
    batches = []
    for index in range(count):
        at, batch, used = int((index + 0.5) / count * len(lengths)), list[tuple[list[int], list[int]]](), 0
        while used + lengths[at][0] + 1 <= tokens:
            sides = [[draw.randrange(4, vocabulary) for _ in range(length)] for length in lengths[at]]
            batch.append((sides[1], sides[0]))
            used, at = used + lengths[at][0] + 1, at + 1
        batches.append(batch)
    return batches


def _print(result: dict[str, Any]) -> None:
    speeds = {"ours": result["ours"], **result["peers"]}
    shown = ", ".join(f"{name} {speed.get('per_s', '–')}" for name, speed in speeds.items())
    network = " ".join(filter(None, (result["size"], result["layer"])))
    if "corpus" in result:
        what = f"{result['corpus']}; kernels {100 * (result['ours'].get('kernels_share') or 0):.1f} % of the last round"
    else:
        what = "two runs of one thread" if result.get("two_runs") else f"{result['limit_share']} of the matrix product"
    print(
        f"{time.strftime('%H:%M:%S')} {network}, {result['target_tokens']} tokens, length "
        f"{result['mean_length']}, {result['precision']} ({what}): {shown} target tokens/s; against "
        f"{result['fastest_peer']}: {result['ratio']} (floor {result['floor']})",
        flush=True,
    )


def _options() -> argparse.Namespace:
    made = parser(__doc__, "tiny alone, about five minutes", "TRAINING_PEERS")
    made.add_argument("--only", default="", help="peers to measure, by name; all of them if unset")
    made.add_argument(
        "--layers", default=",".join(filter(None, LAYERS)), help="other layers to compare; empty for none"
    )
    made.add_argument("--corpus", default="builtin", help="corpus of the real training: builtin, a folder, or none")
    made.add_argument(
        "--rounds", type=_rounds, default=REAL_ROUNDS, help="steps of each round of the real training: 200,20,20"
    )
    return made.parse_args()


def _rounds(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


if __name__ == "__main__":
    sys.exit(main())
