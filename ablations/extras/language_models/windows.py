"""Assign windows of running text to batches, as a pure function of seed and step. Imports no torch.

The plan uses only raw bits of PCG64 and stable sorts, so every version of numpy makes the same plan.
"""

import numpy as np
from numpy.typing import NDArray

from experiments.data.collate import Batch
from experiments.data.encoding.sides import Places, Side
from experiments.data.encoding.tokenizer import PAD_ID
from experiments.errors import UserError
from experiments.messages import number

Windows = NDArray[np.int64]  # (B, 2): index of the first piece that is read, number of predicted pieces


class WindowPlan:
    """The windows of each batch. Every window occurs once per epoch, in an order that differs between epochs.

    documents: the positions of EOS (encoding/sides.py). window: number of pieces that a window predicts. mix: whether
    windows continue into the next document. With mix, each epoch cuts the text at other positions. Without mix, each
    document is cut from its start, and its last window may be short.
    Steps and epochs are counted from 0. Raises UserError for a text or a batch that is smaller than a window.
    """

    def __init__(self, documents: Places, window: int, mix: bool, tokens_per_batch: int, seed: int) -> None:
        self.window, self.seed = window, seed
        self.rows = rows_of(tokens_per_batch, window)
        self._last = int(documents[-1])  # number of pieces that can be predicted
        if mix and self._last < window:
            raise UserError(
                f"The training text has {number(self._last, 'piece')}, fewer than data.window = {window}. Set "
                f"data.window to {self._last} or less, or take more text."
            )
        self._cut = None if mix else cut(documents, window, window)[:, :2]
        # With mix, the number of windows is the number of whole windows that fit for every offset.
        self.windows = max(1, (self._last - window + 1) // window) if self._cut is None else len(self._cut)
        self._cached: tuple[int, Windows] = (-1, np.zeros((0, 2), np.int64))

    def batch(self, step: int) -> Windows:
        """Return the windows of update number `step`."""
        places = np.arange(step * self.rows, (step + 1) * self.rows)
        epochs = places // self.windows
        return np.concatenate([self.epoch(int(e))[places[epochs == e] % self.windows] for e in np.unique(epochs)])

    def seen(self, steps: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the lengths of windows, and the number of windows of each length in the first `steps` updates."""
        if self._cut is None:
            return np.array([self.window]), np.array([steps * self.rows])
        epochs, rest = divmod(steps * self.rows, self.windows)
        lengths = np.concatenate([self._cut[:, 1]] * (epochs > 0) + [self.epoch(epochs)[:rest, 1]])
        weights = np.repeat([epochs, 1], [self.windows * (epochs > 0), rest])
        different, where = np.unique(lengths, return_inverse=True)
        return different, np.bincount(where, weights, len(different)).astype(np.int64)

    def epoch(self, epoch: int) -> Windows:
        """Return all windows of an epoch in training order. The last requested epoch is cached."""
        if self._cached[0] != epoch:
            bits = np.random.PCG64(np.random.SeedSequence([self.seed, epoch]))
            order = np.argsort(bits.random_raw(self.windows), kind="stable")
            windows = self._cut
            if windows is None:
                offset = int(bits.random_raw()) % (self._last - self.windows * self.window + 1)
                starts = offset + self.window * np.arange(self.windows)
                windows = np.stack([starts, np.full_like(starts, self.window)], axis=1)
            self._cached = epoch, windows[order]
        return self._cached[1]


def rows_of(tokens_per_batch: int, window: int) -> int:
    """Return the number of windows in a batch. Raises UserError if it is 0."""
    if tokens_per_batch < window:
        raise UserError(
            f"training.tokens_per_batch = {tokens_per_batch} is less than data.window = {window}: a batch holds at "
            f"least one window. Set training.tokens_per_batch to {window} or more, or data.window to less."
        )
    return tokens_per_batch // window


def cut(documents: Places, window: int, stride: int) -> NDArray[np.int64]:
    """Return windows that together score every piece of every document once, as an array of shape (n, 3).

    A row of the array has the index of the first piece that is read, the number of predicted pieces, and the number of
    pieces at the end of the window that no earlier window predicts. Each window begins `stride` pieces after the one
    before it in the same document.
    """
    length = np.diff(documents)  # number of pieces to predict, including EOS
    counts = 1 + np.maximum(0, -(-(length - window) // stride))
    document = np.repeat(np.arange(len(length)), counts)
    # Number of each window within its document.
    place = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    begins = stride * place
    ends = np.minimum(begins + window, length[document])
    new = ends - np.where(place > 0, begins - stride + window, 0)
    return np.stack([documents[document] + begins, ends - begins, new], axis=1)


def collate_windows(text: Side, windows: Windows, width: int) -> Batch[NDArray[np.int64]]:
    """Return a batch with input pieces and with target pieces one position later, padded to `width`.

    Without windows, the batch has one row of PAD.
    """
    starts, lengths = windows[:, 0], windows[:, 1]
    steps = np.arange(width + 1)
    if len(windows):
        read = text.read(np.minimum(starts[:, None] + steps, len(text.pieces) - 1), len(windows))
        pieces = np.where(steps <= lengths[:, None], read, PAD_ID)
    else:
        pieces = np.full((1, width + 1), PAD_ID)
    read, predicted = pieces[:, :-1].copy(), pieces[:, 1:].copy()
    read[predicted == PAD_ID] = PAD_ID
    return Batch(np.zeros((len(read), 0), np.int64), read, predicted, 0, int(lengths.sum()))
