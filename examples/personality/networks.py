"""The paper's LSTM networks and three further networks.

Shapes: B answers, T tokens, E width of an embedding, D width of a layer.
"""

import math

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from vectors import PADDING


class Recurrent(nn.Module):
    """The last state of each direction of an LSTM or a GRU."""

    def __init__(self, layer: type[nn.RNNBase], embedded: int, width: int, bidirectional: bool):
        super().__init__()
        self.layer = layer(embedded, width, batch_first=True, bidirectional=bidirectional)
        self.width = width * (1 + bidirectional)

    def forward(self, x_BTE, lengths):
        packed = pack_padded_sequence(x_BTE, lengths, batch_first=True, enforce_sorted=False)
        _, last = self.layer(packed)
        state = last[0] if isinstance(last, tuple) else last
        return torch.cat(list(state), dim=-1)


class FeedForward(nn.Module):
    """A hidden layer over the mean of the embeddings, which ignores the order of the words."""

    def __init__(self, embedded: int, width: int):
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(embedded, width), nn.LeakyReLU())
        self.width = width

    def forward(self, x_BTE, lengths):
        return self.hidden(mean(x_BTE, kept(x_BTE, lengths)))


class Transformer(nn.Module):
    """The mean of the outputs of a small Transformer encoder with sinusoidal positions."""

    def __init__(self, embedded: int, width: int, dropout: float, layers: int = 2, heads: int = 4):
        super().__init__()
        self.project = nn.Linear(embedded, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.width = width

    def forward(self, x_BTE, lengths):
        keep = kept(x_BTE, lengths)
        x_BTD = self.project(x_BTE)
        x_BTD = x_BTD + sinusoids(x_BTD.shape[1], self.width)
        return mean(self.layers(x_BTD, src_key_padding_mask=~keep), keep)


def make_body(settings, embedded: int) -> nn.Module:
    """Return the network that maps embeddings and lengths to one vector per answer, of the size `width`."""
    if settings.network == "feed_forward":
        return FeedForward(embedded, settings.width)
    if settings.network == "transformer":
        return Transformer(embedded, settings.width, settings.dropout)
    layer = {"lstm": nn.LSTM, "gru": nn.GRU}[settings.network]
    return Recurrent(layer, embedded, settings.width, settings.bidirectional)


class Classifier(nn.Module):
    """A network with `outputs` logits: one for a preference, or one per class."""

    def __init__(self, settings, vectors: torch.Tensor, outputs: int):
        super().__init__()
        self.embedding = nn.Embedding.from_pretrained(vectors.clone(), freeze=False, padding_idx=PADDING)
        self.dropout = nn.Dropout(settings.dropout)
        self.body = make_body(settings, vectors.shape[1])
        self.head = nn.Sequential(
            nn.BatchNorm1d(self.body.width) if settings.batch_norm else nn.Identity(),
            nn.Dropout(settings.dropout),
            nn.Linear(self.body.width, settings.width),
            nn.LeakyReLU(),
            nn.Linear(settings.width, outputs),
        )

    def forward(self, ids_BT, lengths):
        return self.head(self.body(self.dropout(self.embedding(ids_BT)), lengths))


class Side(nn.Module):
    """Classifiers without shared weights. Their logits are concatenated."""

    def __init__(self, classifiers):
        super().__init__()
        self.classifiers = nn.ModuleList(classifiers)

    def forward(self, ids_BT, lengths):
        return torch.cat([classifier(ids_BT, lengths) for classifier in self.classifiers], dim=-1)


def kept(x_BTE, lengths):
    """Return a mask (B, T), True at tokens and False at padding."""
    return torch.arange(x_BTE.shape[1]) < lengths[:, None]


def mean(x_BTD, keep_BT):
    """Return the mean over the tokens, without padding: (B, T, D) → (B, D)."""
    keep = keep_BT[:, :, None].to(x_BTD.dtype)
    return (x_BTD * keep).sum(1) / keep.sum(1)


def sinusoids(length: int, width: int):
    """Return the positional encoding (T, D) of section 3.5 of "Attention Is All You Need"."""
    rate = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000) / width))
    angle = torch.arange(length)[:, None] * rate
    return torch.stack([angle.sin(), angle.cos()], dim=-1).reshape(length, width)
