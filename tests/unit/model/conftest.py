"""Fixtures for small networks in float64, in which equivalences hold up to rounding."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from model.config import ModelConfig
from model.network import build_model
from model.protocol import Network

SMALL: dict[str, Any] = {
    "num_layers": 2,
    "d_model": 8,
    "d_ff": 12,
    "num_heads": 2,
    "d_k": 4,
    "d_v": 4,
    "max_length": 16,
}
VOCAB_SIZE = 20


@pytest.fixture
def small_config() -> Callable[..., ModelConfig]:
    return lambda **changes: ModelConfig(**{**SMALL, **changes})


@pytest.fixture
def small_model(small_config: Callable[..., ModelConfig]) -> Callable[..., Network]:
    """Return a function that builds a network in eval mode with random biases and norms, so that ignoring one shows."""

    def build(**changes: Any) -> Network:
        torch.manual_seed(7)
        model = build_model(small_config(**changes), VOCAB_SIZE).double().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.add_(torch.randn_like(parameter), alpha=0.3)
        return model

    return build


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread, because a second thread makes tests of width 8 ten times as slow on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
