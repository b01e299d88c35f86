"""Load or generate the sets of answers, augment them, and encode them as padded tensors."""

import random
from dataclasses import dataclass
from pathlib import Path

import answers
import tokens
import torch
from torch import nn
from vectors import PADDING, UNKNOWN

HERE = Path(__file__).parent  # relative paths start in this folder


@dataclass
class Data:
    ids: torch.Tensor  # token ids, (answers, longest answer)
    lengths: torch.Tensor
    bits: torch.Tensor  # (answers, preferences), 1.0 for the first letter of a preference


def sets(settings):
    """Return the answers by set. The set "unlabelled" is used for the embeddings only."""
    if settings.data != "generated":
        found = answers.read(HERE / settings.data, settings.preferences)
        return {**found, "unlabelled": found["train"]}
    sizes = {"train": settings.train_answers, "dev": settings.dev_answers, "test": settings.test_answers}
    return {
        name: answers.generate(name, size, settings.preferences, settings.doubt)
        for name, size in {**sizes, "unlabelled": 3000}.items()
    }


def augmented(texts, copies, seed):
    """Return every answer and its changed copies, without duplicates."""
    chance = random.Random(seed)
    found = [answers.Answer(text, one.label) for one in texts for text in tokens.augment(one.text, copies, chance)]
    return list(dict.fromkeys(found))


def encode(texts, tokenize, vocabulary, settings):
    rows = [[vocabulary.get(token, UNKNOWN) for token in tokenize(answer.text)] or [UNKNOWN] for answer in texts]
    ids = nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=PADDING)
    firsts = [pair[0] for pair in settings.preferences]
    bits = [[float(a == b) for a, b in zip(answer.label, firsts, strict=True)] for answer in texts]
    return Data(ids, torch.tensor([len(row) for row in rows]), torch.tensor(bits))
