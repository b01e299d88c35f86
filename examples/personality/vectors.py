"""Initial embeddings: random, read from a .vec file, or computed from co-occurrences in text."""

import functools
from pathlib import Path

import numpy as np
import torch

PADDING, UNKNOWN = 0, 1  # the first two rows of the table


def random_vectors(vocabulary: dict[str, int], width: int, seed: int) -> torch.Tensor:
    """Return random embeddings (len(vocabulary) + 2, width). The row of padding is 0."""
    generator = torch.Generator().manual_seed(seed)
    found = torch.randn(len(vocabulary) + 2, width, generator=generator) * 0.1
    found[PADDING] = 0
    return found


def cooccurrence_vectors(vocabulary: dict[str, int], width: int, texts: list[list[str]]) -> torch.Tensor:
    """Return embeddings from the leading singular vectors of positive pointwise mutual information within 3 tokens."""
    counts = np.full((len(vocabulary) + 2, len(vocabulary) + 2), 1e-3)
    for tokens in texts:
        ids = [vocabulary.get(token, UNKNOWN) for token in tokens]
        for distance in (1, 2, 3):
            for a, b in zip(ids, ids[distance:], strict=False):
                counts[a, b] += 1 / distance
                counts[b, a] += 1 / distance
    information = np.log(counts * counts.sum() / np.outer(counts.sum(0), counts.sum(1))).clip(min=0)
    u, s, _ = np.linalg.svd(information)
    found = torch.zeros(len(counts), width)
    rank = min(width, len(s))
    found[:, :rank] = torch.tensor(u[:, :rank] * np.sqrt(s[:rank]), dtype=torch.float32)
    found = found / found.std() * 0.1
    found[PADDING] = 0
    return found


def check_shape(path: Path) -> tuple[int, bool]:
    """Return the width of a file's vectors, and whether its first line is a header. Raises ValueError.

    The format is the text format of word2vec and fastText: an optional first line "count width", then lines with a word
    and its numbers, separated by spaces.
    """
    try:
        status = path.stat()
        return _shape(path, status.st_mtime_ns, status.st_size)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None


@functools.cache  # every row of a plan checks the same file
def _shape(path: Path, changed: int, size: int) -> tuple[int, bool]:
    width = count = announced = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            fields = line.rstrip()
            if number == 1 and len(numbers := fields.split()) == 2 and all(part.isdigit() for part in numbers):
                announced, width = map(int, numbers)
                continue
            found = fields.count(b" ")
            width = width or found
            if found != width or not width:
                raise ValueError(
                    f"{path}, line {number} has {found} numbers, and {width} are expected. Every line of a .vec file "
                    "has a word and the same count of numbers, separated by single spaces"
                )
            count += 1
    if not count or (announced and announced != count):
        raise ValueError(f"{path} has {count} vectors, and its first line says {announced}: it is cut off")
    return width, announced > 0


def read_vectors(path: Path, vocabulary: dict[str, int], seed: int) -> tuple[torch.Tensor, int]:
    """Return embeddings, and the number of tokens of the vocabulary that the file contains.

    The other tokens get random embeddings with the standard deviation of those in the file.
    """
    width, header = check_shape(path)
    found: dict[str, list[float]] = {}
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for number, line in enumerate(file, start=1):
            word, *values = line.rstrip().split(" ")
            if word in vocabulary and word not in found and not (header and number == 1):
                found[word] = _numbers(path, number, values)
    table = random_vectors(vocabulary, width, seed)
    if found:
        known = torch.tensor(list(found.values()))
        table[UNKNOWN:] *= known.std(correction=0) / 0.1
        table[[vocabulary[word] for word in found]] = known
    return table, len(found)


def _numbers(path: Path, number: int, values: list[str]) -> list[float]:
    try:
        numbers = [float(value) for value in values]
    except ValueError as error:
        raise ValueError(f"{path}, line {number}: {error}.") from None
    if not np.isfinite(numbers).all():
        raise ValueError(f"{path}, line {number}: a number is not finite.")
    return numbers
