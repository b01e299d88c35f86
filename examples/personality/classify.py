"""E or I? Five LSTM classifiers of personality from answers: the trainer of personality.toml.

After a study of a Korean conference paper. Nothing of the harness is edited and nothing is installed: this file and
answers.py lie beside the study.
"""

import random
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from answers import answers, augmented, words
from torch import nn

from experiments.tasks.own.function import column, task

PADDING, UNKNOWN = 0, 1


@dataclass
class Settings:
    """What the variants differ in, and what they share."""

    bidirectional: bool = True
    pretrained: bool = True  # embeddings from co-occurrences in unlabelled answers
    words: Literal["content", "all"] = "all"
    augmentation: int = 2  # changed copies of every training answer, by swap and deletion in turn
    dropout: float = 0.3
    batch_norm: bool = True
    width: int = 32
    epochs: int = 40
    slow_epochs: int = 10  # with a tenth of the rate, at the beginning
    patience: int = 8  # epochs without a better dev accuracy
    learning_rate: float = 0.003
    batch: int = 50
    train_answers: int = 1000
    doubt: float = 0.15  # how often a clause speaks for the other side


@dataclass
class Data:
    ids: torch.Tensor  # answers × longest
    lengths: torch.Tensor
    labels: torch.Tensor


class Classifier(nn.Module):
    def __init__(self, settings, vectors):
        super().__init__()
        self.embedding = nn.Embedding.from_pretrained(vectors, freeze=False, padding_idx=PADDING)
        self.lstm = nn.LSTM(settings.width, settings.width, batch_first=True, bidirectional=settings.bidirectional)
        outputs = settings.width * (1 + settings.bidirectional)
        self.head = nn.Sequential(
            nn.BatchNorm1d(outputs) if settings.batch_norm else nn.Identity(),
            nn.Dropout(settings.dropout),
            nn.Linear(outputs, settings.width),
            nn.LeakyReLU(),
            nn.Linear(settings.width, 1),
        )
        self.dropout = nn.Dropout(settings.dropout)

    def forward(self, ids, lengths):
        """The logit of "extraverted", from the last state of each direction."""
        packed = nn.utils.rnn.pack_padded_sequence(
            self.dropout(self.embedding(ids)), lengths, batch_first=True, enforce_sorted=False
        )
        _, (last, _) = self.lstm(packed)
        return self.head(torch.cat(list(last), dim=-1)).squeeze(-1)


COLUMNS = [column("accuracy", f"accuracy ({name}, %)", set=name, digits=2) for name in ("train", "dev", "test")]


@task(Settings, columns=COLUMNS, steps="epochs")
def TASK(settings, context):
    torch.manual_seed(context.seed)
    texts = {name: answers(name, size, settings.doubt) for name, size in sizes(settings).items()}
    vocabulary = {}
    for text, _ in texts["train"]:
        for word in words(text, settings.words):
            vocabulary.setdefault(word, len(vocabulary) + 2)
    data = {name: encode(settings, vocabulary, texts[name]) for name in ("train", "dev", "test")}
    more = encode(settings, vocabulary, texts["train"], copies=settings.augmentation, seed=context.seed)
    model = Classifier(settings, vectors(settings, vocabulary, texts["unlabelled"], context.seed))
    optimizer = torch.optim.Adam(model.parameters(), settings.learning_rate)
    best, since, start = (-1.0, model.state_dict()), 0, 0
    if context.resume:
        state = torch.load(context.resume / "state.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        best, since, start = (state["best"], state["best_model"]), state["since"], state["epoch"]
    for epoch in range(start + 1, settings.epochs + 1):
        if since >= settings.patience:
            break
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * (0.1 if epoch <= settings.slow_epochs else 1)
        loss = train_epoch(model, optimizer, more, settings.batch, seed=context.seed * 1000 + epoch)
        accuracy = correct(model, data["dev"])[0].mean() * 100
        context.log(epoch, loss=loss, dev_accuracy=accuracy)
        since = 0 if accuracy > best[0] else since + 1
        if since == 0:
            best = float(accuracy), {name: value.clone() for name, value in model.state_dict().items()}
        with context.checkpoint(epoch) as folder:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "best": best[0],
                     "best_model": best[1], "since": since, "epoch": epoch}  # fmt: skip
            torch.save(state, folder / "state.pt")
    model.load_state_dict(best[1])
    torch.save(model.state_dict(), context.folder / "weights.pt")
    context.facts(num_params=sum(p.numel() for p in model.parameters()), vocabulary=len(vocabulary))
    return {name: report(model, data[name], texts[name], name, context) for name in data}


def sizes(settings):
    return {"train": settings.train_answers, "dev": 375, "test": 38, "unlabelled": 3000}


def encode(settings, vocabulary, texts, copies=0, seed=0):
    chance = random.Random(seed)
    rows = []
    for text, label in texts:
        tokens = words(text, settings.words)
        rows.append((tokens, label))
        rows += [(augmented(tokens, chance, ("swap", "deletion")[n % 2]), label) for n in range(copies)]
    longest = max(len(tokens) for tokens, _ in rows)
    ids = torch.full((len(rows), longest), PADDING)
    for place, (tokens, _) in enumerate(rows):
        ids[place, : len(tokens)] = torch.tensor([vocabulary.get(token, UNKNOWN) for token in tokens])
    lengths, labels = torch.tensor([len(t) for t, _ in rows]), torch.tensor([float(label) for _, label in rows])
    return Data(ids, lengths, labels)


def vectors(settings, vocabulary, unlabelled, seed):
    """Random vectors, or the leading singular vectors of positive pointwise mutual information within 3 words."""
    generator = torch.Generator().manual_seed(seed)
    found = torch.randn(len(vocabulary) + 2, settings.width, generator=generator) * 0.1
    if settings.pretrained:
        counts = np.ones((len(found), len(found))) * 1e-3
        for text, _ in unlabelled:
            ids = [vocabulary.get(word, UNKNOWN) for word in words(text, settings.words)]
            for distance in (1, 2, 3):
                for a, b in zip(ids, ids[distance:], strict=False):
                    counts[a, b] += 1 / distance
                    counts[b, a] += 1 / distance
        total = counts.sum()
        information = np.log(counts * total / np.outer(counts.sum(0), counts.sum(1))).clip(min=0)
        u, s, _ = np.linalg.svd(information)
        leading = torch.tensor(u[:, : settings.width] * np.sqrt(s[: settings.width]), dtype=torch.float32)
        found = leading / leading.std() * 0.1
    found[PADDING] = 0
    return found


def train_epoch(model, optimizer, data, batch, seed):
    """Everything random is a function of the seed and the epoch: a resumed run computes the same."""
    torch.manual_seed(seed)
    model.train()
    order, total = torch.randperm(len(data.labels)), 0.0
    for chosen in order.split(batch):
        logits = model(data.ids[chosen], data.lengths[chosen])
        loss = nn.functional.binary_cross_entropy_with_logits(logits, data.labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(chosen)
    return total / len(order)


@torch.no_grad()
def correct(model, data):
    model.eval()
    probability = model(data.ids, data.lengths).sigmoid().double()
    return ((probability > 0.5) == data.labels.bool()).double(), probability


def report(model, data, texts, name, context):
    right, probability = correct(model, data)
    if name != "train":
        context.examples(name, [
            {"answer": text, "type": "IE"[label], "predicted": "IE"[int(p > 0.5)], "P(E)": round(p, 4), "accuracy": r}
            for (text, label), p, r in zip(texts, probability.tolist(), right.tolist(), strict=True)
        ])  # fmt: skip
    return {"accuracy": right.mean().item() * 100}
