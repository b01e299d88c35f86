"""Score running text with a language model, window by window. Needs torch, so only child processes import this module.

Shapes: B windows, T positions, D d_model, N predicted pieces.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ablations.extras.language_models.scores import bits_per_byte, piece_perplexity, word_perplexity
from ablations.extras.language_models.windows import collate_windows, cut
from experiments.attempt_context import AttemptContext
from experiments.data.encoding.encoded import EncodedSet
from experiments.data.encoding.sides import Side
from experiments.data.encoding.tokenizer import PAD_ID
from experiments.device import Device
from experiments.errors import Preempted
from experiments.evaluation.likelihood import BATCH_TOKENS, evaluating, piece_nll
from experiments.evaluation.trained import Trained
from model.protocol import Network


def stream_nll(
    model: Network,
    text: Side,
    device: Device,
    *,
    window: int,
    stride: int,
    mix: bool,
    max_batch_tokens: int | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> NDArray[np.float64]:
    """Return −ln P of every piece after the first, given the pieces before it in its window: (N,) in float64.

    Windows begin `stride` pieces apart. A piece is scored in the first window that contains it. It is predicted from at
    least window − stride pieces, except at the start of a document (with `mix`, at the start of the text). mix: windows
    continue into the next document. `max_batch_tokens` changes the result only by rounding. Raises Preempted if
    `should_stop` returns True.
    """
    documents = text.offsets[[0, -1]] if mix else text.offsets
    windows = cut(documents, window, stride)
    rows = max(1, (max_batch_tokens or BATCH_TOKENS[device.torch_device.type]) // window)
    nll = np.zeros(len(text.pieces) - 1)
    with evaluating(model), device.autocast():
        for start in range(0, len(windows), rows):
            if should_stop is not None and should_stop():
                raise Preempted
            part = windows[start : start + rows]
            batch = collate_windows(text, part[:, :2], int(part[:, 1].max()))
            sides = (batch.target_input, batch.target_output)
            read_BT, output_BT = (device.move(torch.from_numpy(side)) for side in sides)
            hidden_BTD = model(read_BT.new_zeros(len(read_BT), 0), None, read_BT)
            nll_BT, _ = piece_nll(model, hidden_BTD, output_BT, output_BT != PAD_ID)  # 0 at padding
            for (first, length, new), nll_T in zip(part.tolist(), nll_BT.cpu().numpy(), strict=True):
                nll[first + length - new : first + length] = nll_T[length - new : length]
    return nll


def measure_text(
    trained: Trained, text: EncodedSet, settings: Mapping[str, Any], mix: bool, folder: Path, context: AttemptContext
) -> dict[str, Any]:
    """Score a set. Write the sum of −ln P and the numbers of pieces, bytes and words of each line to statistics.npy.

    The end of a document is predicted too and belongs to its last line. mix: windows continue into the next document.
    """
    stream = text.sides["target"]
    nll = stream_nll(
        trained.model, stream, trained.device, window=settings["window"], stride=settings["stride"], mix=mix,
        should_stop=context.should_stop,
    )  # fmt: skip
    assert stream.lines is not None
    first = stream.lines[:, 0] - 1  # index of each line's first piece in nll, which begins at the second piece
    pieces = np.diff(first, append=len(nll))
    statistics = np.column_stack([np.add.reduceat(nll, first), pieces, stream.lines[:, 1:]])
    np.save(folder / "statistics.npy", statistics, allow_pickle=False)
    sums = statistics.sum(axis=0)
    return {
        "metrics": {
            "bits_per_byte": float(bits_per_byte(sums)),
            "perplexity": float(piece_perplexity(sums)),
            "word_perplexity": float(word_perplexity(sums)),
        },
        "sentences": len(statistics),
        "pieces": len(nll),
        "set_facts": text.facts,
        **trained.changes,
        **trained.device.describe(),
    }
