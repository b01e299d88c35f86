"""Measure how many German pieces of the built-in corpus (version 2) depend on distant words, by distance.

    python -m benchmarks.word_dependence [--pairs N] [--pieces N] [--json]

For the first N training pairs, the command prints the percentage of German pieces whose word depends on one of these
words (pieces: BPE with a vocabulary of `--pieces`, without EOS):

    source   an English word other than the one that it translates; the distance is in English words between the two
    target   an earlier German word; the distance is in German words

A word that depends on several words counts once, at the largest distance.
"""

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from experiments.config.data import DataConfig
from experiments.data.corpora.builtin import training
from experiments.data.corpora.contextual.rendered import Dependency, Rendered
from experiments.data.encoding.tokenizer import Tokenizer, train_tokenizer

FAR = 15  # words; all larger distances share one line


def main() -> int:
    options = _options()
    rendered = training(options.pairs)
    with tempfile.TemporaryDirectory() as folder:
        lines = [text for pair in rendered for text in pair.pair]
        place = Path(folder) / "tokenizer.model"
        train_tokenizer(lines, DataConfig(vocab_size=options.pieces), place, "the training text")
        pieces = [pieces_of_words(pair, Tokenizer.load(place)) for pair in rendered]
    shares = {side: shares_by_distance(rendered, pieces, side) for side in ("source", "target")}
    if options.json:
        print(json.dumps(shares))
        return 0
    print(f"{'distance':>8}  {'source %':>8}  {'target %':>8}")
    for distance in range(1, FAR + 2):
        name = f"{distance}" if distance <= FAR else f"> {FAR}"
        print(f"{name:>8}  {shares['source'].get(distance, 0):8.2f}  {shares['target'].get(distance, 0):8.2f}")
    print(f"{'all':>8}  {sum(shares['source'].values()):8.2f}  {sum(shares['target'].values()):8.2f}")
    return 0


def shares_by_distance(rendered: Sequence[Rendered], pieces: Sequence[Sequence[int]], side: str) -> dict[int, float]:
    """Return the percentage of German pieces by the distance of the farthest word on which they depend.

    side: "source" or "target", where these words are. The key FAR + 1 stands for every distance beyond FAR.
    pieces: the number of pieces of each German word, for each pair.
    """
    counts, every = Counter[int](), 0
    for pair, numbers in zip(rendered, pieces, strict=True):
        every += sum(numbers)
        dependencies = pair.on_source() if side == "source" else pair.on_target()
        for word, distance in _farthest(dependencies).items():
            counts[min(distance, FAR + 1)] += numbers[word]
    return {distance: 100 * count / every for distance, count in sorted(counts.items())}


def _farthest(dependencies: Iterable[Dependency]) -> dict[int, int]:
    found = dict[int, int]()
    for each in dependencies:
        found[each.word] = max(found.get(each.word, 0), each.distance)
    return found


def pieces_of_words(pair: Rendered, tokenizer: Tokenizer) -> list[int]:
    """Return the number of pieces of each German word, in the order of `pair.target`.

    A piece never continues after a space.
    """
    words = [index for index, word in enumerate(pair.target) if word.name]
    marks = [index for index, word in enumerate(pair.target) if not word.name]
    counts, at = [0] * len(pair.target), -1
    for piece in tokenizer.surfaces(pair.pair[1]):
        at += piece.startswith("\u2581")
        if piece.strip("\u2581") in (",", "."):
            counts[marks[0]] += 1  # any punctuation mark will do, because no mark depends on another word
        else:
            counts[words[max(at, 0)]] += 1
    return counts


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3000, help="training pairs (default %(default)s)")
    parser.add_argument("--pieces", type=int, default=1000, help="vocabulary size (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
