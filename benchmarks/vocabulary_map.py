"""What a vocabulary map costs and brings: speed, BLEU and equal outputs by its size, on one thread.

    ablations export STUDY MODEL --vocabulary-map 50
    python -m benchmarks.vocabulary_map MODEL SOURCE REFERENCE [--sizes 20,50,100] [--rounds 5] [--json] [--out FILE]

Size 0 is without a map. The sizes take turns, each with the whole file; the median of their rounds counts. Time is the
processor's, so other work on the machine matters little. `pieces`: of the softmax of a sentence, on average.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from sacrebleu import corpus_bleu

from benchmarks.machine import keep_report, machine
from experiments.evaluation.trained.translator import Translator


@dataclass
class Case:
    """A model in one precision, with a map of one size."""

    precision: str
    size: int
    translator: Translator
    seconds: list[float] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)

    def round(self, lines: Sequence[str]) -> None:
        began = time.process_time()
        self.outputs = self.translator.translate(lines)
        self.seconds.append(time.process_time() - began)

    def result(self, lines: Sequence[str], references: Sequence[str], plain: "Case") -> dict[str, Any]:
        mapped, tokenizer = self.translator.vocabulary_map, self.translator.source_tokenizer
        pieces = [len(mapped.pieces(tokenizer.encode(line))) for line in lines] if mapped else [plain.vocabulary]
        same = sum(map(str.__eq__, self.outputs, plain.outputs))
        faster = statistics.median(plain.seconds) / statistics.median(self.seconds)
        return {
            "precision": self.precision,
            "size": self.size,
            "pieces": round(float(np.mean(pieces))),
            "bleu": round(corpus_bleu(self.outputs, [list(references)]).score, 2),
            "same": same,
            "sentences_per_s": round(len(lines) / statistics.median(self.seconds), 1),
            "faster": round(faster, 3),
        }

    @property
    def vocabulary(self) -> int:
        return self.translator.model.vocab_size


def main() -> int:
    options = _options()
    lines, references = (_lines(path) for path in (options.source, options.reference))
    sizes = [0, *map(int, options.sizes.split(","))]
    cases = [
        Case(precision, size, Translator.load(options.model, precision=precision, vocabulary_map=size))
        for precision in options.precisions.split(",")
        for size in sizes
    ]
    for case in cases:
        case.translator.translate(lines[:64])  # warm
    for _ in range(options.rounds):
        for case in cases:
            case.round(lines)
    plain = {case.precision: case for case in cases if not case.size}
    results = [case.result(lines, references, plain[case.precision]) for case in cases]
    if options.json:
        print(json.dumps(results, indent=1))
    else:
        for result in results:
            print(", ".join(f"{name} {value}" for name, value in result.items()))
    keep_report({"sentences": len(lines), "results": results, **machine()}, options.out)
    return 0


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a folder of `ablations export`, with its map")
    parser.add_argument("source", type=Path, help="lines to translate")
    parser.add_argument("reference", type=Path, help="their translations")
    parser.add_argument("--sizes", default="20,50,100", help="target pieces for each source piece")
    parser.add_argument("--precisions", default="fp32,int8")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--out", type=Path, help="also write the JSON to a file")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
