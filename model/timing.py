"""Time single sub-layers: `python -m model.timing REQUEST` prints [sub-layer, width, length, seconds] as JSON.

REQUEST is JSON: {"sublayers": lines of one sub-layer each, "lengths": …, "widths": …}.
"""

import json
import sys
import time
from collections.abc import Iterable

import torch

from model.config import ModelConfig
from model.layers.contract import Inputs
from model.network import build_model

TOKENS = 1024  # of a batch: short sequences are computed together, as in training
REPETITIONS = 3


def seconds_per_sequence(line: str, width: int, length: int) -> float:
    """Forward and backward pass of one causal sub-layer over a sequence, the fastest of some; 8 heads."""
    config = ModelConfig(
        encoder="", decoder=line, positions="none", d_model=width, d_k=width // 8, d_v=width // 8, dropout=0.0
    )
    model = build_model(config, 16)
    (layer,) = model.decoder
    sublayer = layer.get_submodule(layer.names[0])
    sequences = max(1, TOKENS // length)
    x_BTD = torch.randn(sequences, length, width, requires_grad=True)
    inputs, times = Inputs(causal=True), []
    for _ in range(1 + REPETITIONS):  # the first one warms up
        begun = time.perf_counter()
        sublayer(x_BTD, inputs).sum().backward()
        times.append(time.perf_counter() - begun)
    return min(times[1:]) / sequences


def measure(sublayers: Iterable[str], lengths: Iterable[int], widths: Iterable[int]) -> list[list[object]]:
    """Every combination."""
    places = [(line, width, length) for line in sublayers for width in widths for length in lengths]
    return [[*place, seconds_per_sequence(*place)] for place in places]


if __name__ == "__main__":
    print(json.dumps(measure(**json.loads(sys.argv[1]))))
