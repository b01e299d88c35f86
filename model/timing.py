"""Time single sub-layers: `python -m model.timing REQUEST` prints [sub-layer, width, length, seconds of each round].

REQUEST is JSON: {"sublayers": lines of one sub-layer each, "lengths": …, "widths": …, "rounds": …}. The output is a
JSON list with one entry for each combination of sub-layer, width and length.

Shapes: B sequences, T length, D width.
"""

import itertools
import json
import sys
import time
from collections.abc import Callable, Sequence

import torch

from model.config import ModelConfig
from model.layers.contract import Inputs
from model.network import build_model

TOKENS = 1024  # tokens per batch; a batch contains several short sequences, as in training


def timed(line: str, width: int, length: int) -> Callable[[], float]:
    """Return a function that times one causal sub-layer of 8 heads.

    The function returns the CPU seconds per sequence of a forward and a backward pass.
    """
    config = ModelConfig(
        encoder="", decoder=line, positions="none", d_model=width, d_k=width // 8, d_v=width // 8, dropout=0.0
    )
    model = build_model(config, 16)
    (layer,) = model.decoder
    sublayer = layer.get_submodule(layer.names[0])
    sequences = max(1, TOKENS // length)
    x_BTD = torch.randn(sequences, length, width, requires_grad=True)

    def once() -> float:
        begun = time.process_time()
        sublayer(x_BTD, Inputs(causal=True)).sum().backward()
        return (time.process_time() - begun) / sequences

    once()  # warm-up
    return once


def measure(
    sublayers: Sequence[str], lengths: Sequence[int], widths: Sequence[int], rounds: int
) -> list[tuple[str, int, int, tuple[float, ...]]]:
    """Time all combinations with one thread. For each width and length, a round times all sub-layers in turn."""
    torch.set_num_threads(1)
    found = []
    for width, length in itertools.product(widths, lengths):
        once = [timed(line, width, length) for line in sublayers]
        times = zip(*([one() for one in once] for _ in range(rounds)), strict=True)
        found += [(line, width, length, seconds) for line, seconds in zip(sublayers, times, strict=True)]
    return found


if __name__ == "__main__":
    print(json.dumps(measure(**json.loads(sys.argv[1]))))
