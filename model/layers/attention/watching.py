"""Observe the weights of every attention sub-layer while a network computes.

Shapes: B sentences, T positions, M memory positions, D d_model, H heads.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from model.layers.contract import Sublayer

KINDS = ("encoder", "decoder", "cross")
See = Callable[[str, Tensor], None]  # receives a kind and weights (B, H, T, M)


@contextmanager
def watching(model: nn.Module, see: See) -> Iterator[None]:
    """Within this context, call `see` with the weights of each attention sub-layer before the sub-layer computes.

    The weights are computed separately with the plain formula. The outputs of the network do not change.
    """
    hooks = [
        module.register_forward_pre_hook(_look(see))
        for module in model.modules()
        if isinstance(module, Sublayer) and module.attends_to is not None
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _look(see: See) -> Any:
    def hook(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        assert isinstance(module, Sublayer)
        x_BTD, inputs = arguments
        if module.attends_to == "source":
            kind = "cross"
        else:
            kind = "decoder" if inputs.causal else "encoder"
        see(kind, module.weights(x_BTD, inputs))

    return hook
