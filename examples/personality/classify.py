"""The trainer of personality.toml and sixteen.toml, which predicts the personality type of an answer's writer.

It follows a Korean conference paper (README.md). It requires no change of the program and no installation: the modules
that this file imports are in the folder of the studies.
"""

from dataclasses import dataclass
from typing import Literal

import answers
import tokens
import torch
from ablations_task import column, task
from dataset import HERE, augmented, encode, sets
from networks import Classifier, Side
from outputs import correct, loss_of, predict, report, report_published
from vectors import check_shape, cooccurrence_vectors, random_vectors, read_vectors


@dataclass
class Settings:
    """All settings of the trainer. A path is absolute, or relative to this file's folder."""

    network: Literal["lstm", "gru", "feed_forward", "transformer"] = "lstm"
    bidirectional: bool = True  # for lstm and gru
    pretrained: bool = True  # whether embeddings start from `vectors` or at random
    words: Literal["content", "all"] = "all"
    tokens: Literal["words", "subwords", "morphemes"] = "words"
    tagger: Literal["kiwi", "mecab"] = "kiwi"  # analyser that splits words into morphemes
    pieces: int = 2000  # maximum size of the subword vocabulary
    # One preference, one of 16 types with one softmax ("sixteen"), or a type from four binary networks ("four").
    classes: Literal["EI", "NS", "FT", "JP", "sixteen", "four"] = "EI"
    data: str = "generated"  # or the path of a JSONL file (answers.py)
    vectors: str = "cooccurrences"  # computed from unlabelled answers; or the path of word vectors in the .vec format
    train_answers: int = 1000  # this setting and the next three apply to generated answers
    dev_answers: int = 375
    test_answers: int = 38
    doubt: float = 0.15  # probability that a clause expresses the other side of a preference
    augmentation: int = 2  # changed copies of every training answer, alternately by swapping and deleting words
    width: int = 32
    dropout: float = 0.3
    batch_norm: bool = True
    epochs: int = 100
    slow_epochs: int = 10  # number of first epochs with slow_rate
    slow_rate: float = 0.0001
    learning_rate: float = 0.001  # Adam's default
    patience: int = 1  # training stops after this many consecutive epochs without a lower dev loss
    batch: int = 100

    def __post_init__(self):
        if self.tokens == "morphemes":
            tokens.refuse_missing(self.tagger)
        if self.data != "generated":
            answers.read(HERE / self.data, self.preferences)
        if self.pretrained and self.vectors != "cooccurrences":
            check_shape(HERE / self.vectors)

    @property
    def preferences(self) -> tuple[str, ...]:
        return (self.classes,) if self.classes in answers.PREFERENCES else answers.PREFERENCES


COLUMNS = [
    column("accuracy", "accuracy (train, %)", set="train"),
    column("accuracy", "accuracy (dev, %)", set="dev"),
    column("accuracy", "accuracy (test, %)", set="test"),
    column("accuracy", "the paper's cases (%)", set="published"),
]


def files(settings):
    """Return the paths of the files that a run reads. Their content is part of the run's identity."""
    vectors = settings.vectors if settings.pretrained else "cooccurrences"
    return [path for path in (settings.data, vectors) if path not in ("generated", "cooccurrences")]


@task(Settings, columns=COLUMNS, steps="epochs", reads=files)
def TASK(settings, context):
    torch.manual_seed(context.seed)
    texts = sets(settings)
    tokenize = tokens.make_tokenizer(
        settings.tokens, settings.words, settings.tagger, settings.pieces, [answer.text for answer in texts["train"]]
    )
    names = [token for answer in texts["train"] for token in tokenize(answer.text)]
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(names), start=2)}
    data = {name: encode(texts[name], tokenize, vocabulary, settings) for name in ("train", "dev", "test")}
    more = augmented(texts["train"], settings.augmentation, context.seed)
    training = encode(more, tokenize, vocabulary, settings)
    vectors, known = initial_vectors(settings, vocabulary, tokenize, texts, context.seed)
    outputs = 16 if settings.classes == "sixteen" else 1
    count = 4 if settings.classes == "four" else 1
    model = Side([Classifier(settings, vectors, outputs) for _ in range(count)])
    epochs = fit(model, training, data["dev"], settings, context)
    torch.save(model.state_dict(), context.folder / "weights.pt")
    context.facts(
        num_params=sum(p.numel() for p in model.parameters()), vocabulary=len(vocabulary), with_vectors=known,
        training_answers=len(more), epochs=epochs,
    )  # fmt: skip
    found = {name: report(model, data[name], texts[name], name, settings, context) for name in data}
    if settings.classes == "EI":
        found["published"] = report_published(model, tokenize, vocabulary, settings, context)
    return found


def initial_vectors(settings, vocabulary, tokenize, texts, seed):
    """Return the initial embeddings, and the number of tokens of the vocabulary with pretrained embeddings."""
    if not settings.pretrained:
        return random_vectors(vocabulary, settings.width, seed), 0
    if settings.vectors != "cooccurrences":
        return read_vectors(HERE / settings.vectors, vocabulary, seed)
    unlabelled = [tokenize(answer.text) for answer in texts["unlabelled"]]
    return cooccurrence_vectors(vocabulary, settings.width, unlabelled), len(vocabulary)


def fit(model, training, dev, settings, context):
    """Train until the dev loss stops falling, load the best weights, and return the number of epochs."""
    optimizer = torch.optim.Adam(model.parameters())
    best, best_model, since, start = float("inf"), model.state_dict(), 0, 0
    if context.resume:
        state = torch.load(context.resume / "state.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        best, best_model, since, start = state["best"], state["best_model"], state["since"], state["epoch"]
    epoch = start
    while epoch < settings.epochs and since < settings.patience:
        epoch += 1
        for group in optimizer.param_groups:
            group["lr"] = settings.slow_rate if epoch <= settings.slow_epochs else settings.learning_rate
        loss = train_epoch(model, optimizer, training, settings, seed=context.seed * 1000 + epoch)
        with torch.no_grad():
            dev_loss = loss_of(model.eval()(dev.ids, dev.lengths), dev.bits, settings).item()
        right = correct(predict(model, dev, settings)[0], dev).mean().item()
        context.log(epoch, loss=loss, dev_loss=dev_loss, dev_accuracy=100 * right)
        since = 0 if dev_loss < best else since + 1
        if since == 0:
            best, best_model = dev_loss, {name: value.clone() for name, value in model.state_dict().items()}
        with context.checkpoint(epoch) as folder:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "best": best,
                     "best_model": best_model, "since": since, "epoch": epoch}  # fmt: skip
            torch.save(state, folder / "state.pt")
    model.load_state_dict(best_model)
    return epoch


def train_epoch(model, optimizer, data, settings, seed):
    """Train one epoch and return the mean loss.

    `seed` depends on the run's seed and the epoch, so that a resumed run computes the same numbers.
    """
    torch.manual_seed(seed)
    model.train()
    order, total = torch.randperm(len(data.bits)), 0.0
    for chosen in order.split(settings.batch):
        if len(chosen) == 1:
            continue  # batch normalisation needs at least two answers
        lengths = data.lengths[chosen]
        loss = loss_of(model(data.ids[chosen, : lengths.max()], lengths), data.bits[chosen], settings)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(chosen)
    return total / len(order)
