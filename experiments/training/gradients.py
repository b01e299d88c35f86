"""Add gradients to the gradients of parameters."""

from collections.abc import Sequence

import torch
from torch import Tensor


def add_gradients(parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
    """Add `gradients` to the gradients of the parameters, as a backward pass does.

    If a parameter has no gradient, the given tensor becomes its gradient without a copy.
    """
    sums: list[Tensor] = []
    more: list[Tensor] = []
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is None:
            continue
        if parameter.grad is None:
            parameter.grad = gradient
        else:
            sums.append(parameter.grad)
            more.append(gradient)
    if sums:
        torch._foreach_add_(sums, more)
