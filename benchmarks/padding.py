"""Measure the padding of batches with a fixed number of shapes (16, 32, 64 or 128) and with free shapes.

    python -m benchmarks.padding [--corpus DIR] [--pieces N] [--tokens 4096,25000] [--json] [--out FILE]

The pairs come from a corpus (BPE with `--pieces` pieces) and from two generated corpora of 30,000 and 300,000 pairs
with log-normal lengths (mean 28 pieces). A batch is one micro-batch, as on a GPU. As in a run, the shapes are fitted to
the first epochs. The results are measured on later epochs:

    padding  share of padding in the matrices of source and target pieces
    rows     share of padding in the rows of the product with the output matrix; on a GPU, a shape fixes their number
    cut      number of later batches, of about 500, that fit into no shape and were therefore divided
    fit_s    seconds to fit the shapes, which a run does once at its start
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.machine import keep_report, machine
from experiments.config.run_config import RunConfig
from experiments.data.batching import BatchPlan, Indices
from experiments.data.encoding.encoded import encoded_digest, open_encoded
from experiments.data.shapes import EPOCHS, SPARE_ROWS, Shapes
from experiments.tasks.translation import TASK

Lengths = tuple[NDArray[np.int64], NDArray[np.int64]]
NUMBERS = (16, 32, 64, 128)
MEAN, SPREAD = 28, 0.4
MEASURED = 500  # least number of measured batches, from as many later epochs as necessary


def main() -> int:
    options = _options()
    rows = []
    for name, lengths in _corpora(options):
        for tokens in options.tokens:
            rows += _curve(name, lengths, tokens)
            if not options.json:
                print(_table(rows[-len(NUMBERS) - 1 :]), flush=True)
    report = {"rows": rows, "pieces": options.pieces, **machine()}
    keep_report(report, options.out)
    if options.json:
        print(json.dumps(report))
    return 0


def _corpora(options: argparse.Namespace) -> Iterator[tuple[str, Lengths]]:
    """Yield the name of each corpus and the lengths of its sources and targets, including EOS."""
    if options.corpus:
        yield options.corpus.name, _encoded(options.corpus, options.pieces)
    for pairs in (30_000, 300_000):
        draw = np.random.default_rng(1)
        source = np.clip(np.rint(draw.lognormal(np.log(MEAN) - SPREAD**2 / 2, SPREAD, pairs)), 3, 200)
        target = np.clip(np.rint(source * draw.normal(1, 0.3 * SPREAD, pairs)), 3, 200)
        yield f"log-normal {pairs:,}", (source.astype(np.int64), target.astype(np.int64))


def _encoded(corpus: Path, pieces: int) -> Lengths:
    config = RunConfig.from_mapping({"data": {"corpus": str(corpus), "vocab_size": pieces}})
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder)
        TASK.prepare(config, store, lambda *_: None)
        inputs = TASK.inputs(config, store)
        name = encoded_digest(inputs["corpus"], config.data, config.model.shared_vocabulary)
        train = open_encoded(store / "corpora", name).train
        return train["source"].lengths.copy(), train["target"].lengths.copy()


def _curve(name: str, lengths: Lengths, tokens: int) -> list[dict[str, Any]]:
    """Return the padding with free shapes, and with each number of fixed shapes."""
    plan = BatchPlan(*lengths, tokens, seed=1)
    batches = list(_later(plan))
    common = {"lengths": name, "tokens_per_batch": tokens, "batches_per_epoch": len(plan.epoch(0))}
    free = [(len(batch), int(lengths[0][batch].max()), int(lengths[1][batch].max())) for batch in batches]
    found = [{**common, "shapes": "free", "distinct": len(set(free)), **_padding(lengths, tokens, batches, free)}]
    for most in NUMBERS:
        began = time.process_time()
        shapes = Shapes.fitted(plan, lambda batch: [batch], most, SPARE_ROWS)
        seconds = time.process_time() - began
        parts = [each for batch in batches for each in shapes.fit(batch)]
        padding = _padding(lengths, tokens, [part for part, _ in parts], [shape for _, shape in parts])
        found.append(
            {**common, "shapes": most, "distinct": len(shapes.shapes), **padding, "cut": len(parts) - len(batches),
             "fit_s": round(seconds, 2)}
        )  # fmt: skip
    return found


def _later(plan: BatchPlan) -> Iterator[Indices]:
    """Yield batches of epochs that were not used to fit the shapes."""
    seen, epoch = 0, EPOCHS
    while seen < MEASURED:
        batches = plan.epoch(epoch)[:MEASURED]
        yield from batches
        seen, epoch = seen + len(batches), epoch + 1


def _padding(
    lengths: Lengths, tokens: int, parts: list[Indices], shapes: list[tuple[int, int, int]]
) -> dict[str, float]:
    real = sum(int(side[part].sum()) for side in lengths for part in parts)
    labels = sum(int(lengths[1][part].sum()) for part in parts)
    places = sum(rows * (source + target) for rows, source, target in shapes)
    rows = sum(min(rows * target, tokens) for rows, _, target in shapes)
    return {"padding": round(1 - real / places, 4), "rows": round(1 - labels / rows, 4)}


def _table(rows: list[dict[str, Any]]) -> str:
    first = rows[0]
    lines = [
        f"{first['lengths']}: batches of {first['tokens_per_batch']:,} tokens, {first['batches_per_epoch']} an epoch",
        f"{'shapes':>8}{'distinct':>10}{'padding':>9}{'rows':>8}{'cut':>5}{'fit_s':>7}",
    ]
    for row in rows:
        last = f"{row['cut']:5}{row['fit_s']:7}" if "cut" in row else ""
        lines.append(f"{row['shapes']:>8}{row['distinct']:>10}{row['padding']:9.1%}{row['rows']:8.1%}{last}")
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, help="a folder with train.<lang>; if unset, only generated lengths")
    parser.add_argument("--pieces", type=int, default=8000, help="vocabulary size of the corpus")
    parser.add_argument("--tokens", type=_numbers, default=(4096, 25_000), help="tokens of a batch: 4096,25000")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--out", type=Path, help="also write the JSON to a file")
    return parser.parse_args()


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


if __name__ == "__main__":
    sys.exit(main())
