"""Likelihood of running text under a language model, window by window.

Shapes: B windows, T positions, N pieces that are predicted.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.data.batches.windows import collate_windows, cut
from experiments.data.encoding.stream import Stream
from experiments.data.encoding.tokenizer import PAD_ID
from experiments.device import Device
from experiments.errors import Preempted
from experiments.evaluation.in_batches import evaluating
from experiments.evaluation.likelihood import BATCH_TOKENS, piece_nll
from model.protocol import Network


def stream_nll(
    model: Network,
    stream: Stream,
    device: Device,
    *,
    window: int,
    stride: int,
    mix: bool,
    max_batch_tokens: int | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> NDArray[np.float64]:
    """−ln P of every piece after the first, each given the pieces before it in its window: (N,) in float64.

    Windows begin `stride` pieces apart; a piece counts in the first window that has it, so it sees at least
    window − stride pieces where there are so many. mix: windows go on beyond the end of a document.
    The result does not depend on `max_batch_tokens` beyond rounding. Raises Preempted.
    """
    documents = stream.documents[[0, -1]] if mix else stream.documents
    windows = cut(documents, window, stride)
    rows = max(1, (max_batch_tokens or BATCH_TOKENS[device.torch_device.type]) // window)
    found = np.zeros(len(stream) - 1)
    with evaluating(model), device.autocast():
        for start in range(0, len(windows), rows):
            if should_stop is not None and should_stop():
                raise Preempted
            part = windows[start : start + rows]
            batch = collate_windows(stream, part[:, :2], int(part[:, 1].max()))
            nll_BT = _window_nll(model, batch.target_input, batch.target_output, device)
            for (first, length, new), nll_T in zip(part.tolist(), nll_BT, strict=True):
                found[first + length - new : first + length] = nll_T[length - new : length]
    return found


def _window_nll(
    model: Network, read_BT: NDArray[np.int64], predicted_BT: NDArray[np.int64], device: Device
) -> NDArray[np.float64]:
    """(B, T); at padding 0."""
    output_BT = device.move(torch.from_numpy(predicted_BT))
    source_B0 = device.move(torch.zeros(len(read_BT), 0, dtype=torch.int64))
    hidden_BTD = model(source_B0, None, device.move(torch.from_numpy(read_BT)))
    return piece_nll(model, hidden_BTD, output_BT, output_BT != PAD_ID).cpu().numpy()
