"""Jobs for the first training steps on a corpus, in which almost every micro-batch has a new shape.

Our engine makes its batches as a run does (experiments/tasks/pair_batches.py). The peers get the same pairs, in
batches as toolkits make them: the pairs of a round are sorted by length and divided into batches in which neither side
has more than the given number of tokens, including padding. The batches are then shuffled. The work of a round is
counted in target tokens without padding.
"""

import random
from pathlib import Path
from typing import Any

from benchmarks.engines.serve import Pair, target_tokens
from experiments.config.run_config import RunConfig
from experiments.data.batching import BatchPlan
from experiments.data.encoding.encoded import encoded_digest, open_encoded
from experiments.tasks.translation import TASK

SIZES = {"num_layers": 4, "d_model": 128, "d_ff": 256, "num_heads": 4, "d_k": 32, "d_v": 32}
PIECES, TOKENS, SEED = 8000, 4096, 1
BUILTIN_PIECES = 2000  # the generated text allows at most 2,467 pieces


def real_jobs(corpus: str, store: Path, precision: str, rounds: list[int]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return our job and the peers' job.

    corpus: "builtin" or a folder; rounds: number of steps of each round, of which the first is the warm-up.
    """
    pieces = BUILTIN_PIECES if corpus == "builtin" else PIECES
    settings = {
        "model": {**SIZES, "dropout": 0.1},
        "data": {"corpus": corpus, "vocab_size": pieces},
        "training": {"tokens_per_batch": TOKENS, "precision": precision},
        "seed": SEED,
    }
    config = RunConfig.from_mapping(settings)
    TASK.prepare(config, store, lambda *_: None)
    inputs = TASK.inputs(config, store)
    name = encoded_digest(inputs["corpus"], config.data, config.model.shared_vocabulary)
    pairs = open_encoded(store / "corpora", name).train
    plan = BatchPlan(pairs["source"].lengths, pairs["target"].lengths, TOKENS, SEED)
    ours, theirs, peer_batches, step = [], [], list[list[Pair]](), 0
    for steps in rounds:
        drawn = [
            (pairs["source"][i].tolist(), pairs["target"][i].tolist())
            for s in range(step, step + steps)
            for i in plan.batch(s)
        ]
        batches = as_toolkits(drawn, TOKENS)
        ours.append([steps, target_tokens(drawn)])
        theirs.append([len(batches), target_tokens(drawn)])
        peer_batches += batches
        step += steps
    common = {"model": {**SIZES, "vocab_size": pieces}, "precision": precision, "dropout": 0.1, "smoothing": 0.1}
    common |= {"layer": "", "settings": {}}
    real = {"store": str(store), "settings": settings, "inputs": inputs}
    return {**common, "real": real, "rounds": ours, "batches": []}, {
        **common,
        "batches": peer_batches,
        "rounds": theirs,
    }


def as_toolkits(pairs: list[Pair], tokens: int) -> list[list[Pair]]:
    """Return batches of pairs of similar length in random order. Each side has at most `tokens` tokens with padding."""
    batches, widest = [list[Pair]()], 0
    for pair in sorted(pairs, key=lambda each: (max(map(len, each)), len(each[0]))):
        widest = max(widest, 1 + max(map(len, pair)))
        if batches[-1] and (len(batches[-1]) + 1) * widest > tokens:
            batches.append([])
            widest = 1 + max(map(len, pair))
        batches[-1].append(pair)
    random.Random(SEED).shuffle(batches)
    return batches
