"""The loss, the predicted letters, and the reported accuracies of each set."""

import answers
import published
import torch
from dataset import encode
from torch import nn


def loss_of(logits, bits, settings):
    """Return the mean loss: cross entropy over 16 classes, or the sum of binary cross entropies over preferences."""
    if settings.classes == "sixteen":
        return nn.functional.cross_entropy(logits, class_of(bits))
    return nn.functional.binary_cross_entropy_with_logits(logits, bits, reduction="none").sum(-1).mean()


def class_of(bits):
    return (bits.long() * 2 ** torch.arange(bits.shape[-1])).sum(-1)


@torch.no_grad()
def predict(model, data, settings):
    """Return the predicted bits and a probability for each answer.

    It is the probability of the first letter if there is one preference, else that of the predicted type.
    """
    logits = model.eval()(data.ids, data.lengths).double()
    if settings.classes == "sixteen":
        probability, number = logits.softmax(-1).max(-1)
        return (number[:, None] // 2 ** torch.arange(4)) % 2, probability
    first = logits.sigmoid()
    bits = (first >= 0.5).long()
    return bits, first[:, 0] if len(settings.preferences) == 1 else torch.where(bits > 0, first, 1 - first).prod(-1)


def correct(bits, data):
    """Return 1.0 for each answer with all letters right, else 0.0."""
    return (bits == data.bits).all(-1).double()


def report(model, data, texts, name, settings, context):
    """Return the accuracy in % of whole types and of single letters. Store the predictions of dev and test."""
    bits, probability = predict(model, data, settings)
    right = correct(bits, data)
    shown = "P" if len(settings.preferences) > 1 else f"P({settings.classes[0]})"
    if name != "train":
        context.examples(name, [
            {"question": answer.question, "answer": answer.text, "type": answer.label,
             "predicted": letters(settings, row), shown: round(p, 4), "accuracy": r}
            for answer, row, p, r in zip(texts, bits.tolist(), probability.tolist(), right.tolist(), strict=True)
        ])  # fmt: skip
    single = (bits == data.bits).double().mean(0).tolist()
    each = {pair: 100 * share for pair, share in zip(settings.preferences, single, strict=True)}
    return {"accuracy": right.mean().item() * 100, **each}


def report_published(model, tokenize, vocabulary, settings, context):
    """Report the paper's seven cases and return the accuracy in %. The neutral word is not counted."""
    cases = [answers.Answer(text, label[0]) for _, text, label in published.CASES]
    bits, probability = predict(model, encode(cases, tokenize, vocabulary, settings), settings)
    theirs = None
    if settings.network == "lstm":
        theirs = published.answered(settings.bidirectional, settings.pretrained, settings.words)
    rows, right = [], []
    for place, (number, text, label) in enumerate(published.CASES):
        found = tokenize(text)
        row = {"case": number, "answer": text, "type": label, "predicted": letters(settings, bits[place].tolist()),
               "P(E)": round(probability[place].item(), 4), "paper": theirs[place][0] if theirs else None,
               "paper P(E)": theirs[place][1] if theirs else None,
               "unknown tokens": f"{sum(token not in vocabulary for token in found)}/{len(found)}"}  # fmt: skip
        rows.append(row)
        right += [row["predicted"] == label] if label != "neutral" else []
    context.examples("published", rows)
    return {"accuracy": 100 * sum(right) / len(right)}


def letters(settings, bits):
    return "".join(pair[1 - int(bit)] for pair, bit in zip(settings.preferences, bits, strict=True))
