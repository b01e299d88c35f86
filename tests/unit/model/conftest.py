"""Small networks in float64, where equivalences hold to rounding."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from model.config import ModelConfig
from model.factory import build_model
from model.transformer import Transformer

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
def small_model(small_config: Callable[..., ModelConfig]) -> Callable[..., Transformer]:
    """A network in eval mode with random biases and norms, so that a forgotten one changes the output."""

    def build(**changes: Any) -> Transformer:
        torch.manual_seed(7)
        model = build_model(small_config(**changes), VOCAB_SIZE).double().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.add_(torch.randn_like(parameter), alpha=0.3)
        return model

    return build
