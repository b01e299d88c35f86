"""Make bf16 copies of the weights of projections, once per step and in one operation.

Autocast casts every weight at its first use in every micro-batch, and casts every gradient back. These casts are about
260 of the 1,000 operations in a micro-batch of the paper's base model. This module needs two operations per step and
two per micro-batch. Products, gradients and their sums are bit-identical to those with autocast.
"""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from experiments.training.gradients import add_gradients
from model.layers.attention.multi_head import Attention
from model.layers.position_wise.feed_forward import FeedForward


class NarrowWeights:
    """bf16 copies of the trained weights and biases of attention and feed-forward networks.

    Call `refresh` once per step. For each micro-batch, run the forward pass in the context `used`, and call `collect`
    after the backward pass. Autocast still casts other weights. NarrowWeights cannot be used with DDP, which waits for
    gradients of the original weights.
    """

    def __init__(self, model: nn.Module) -> None:
        layers = [module for module in model.modules() if isinstance(module, Attention | FeedForward)]
        linears = [child for layer in layers for child in layer.children() if type(child) is nn.Linear]
        narrow: dict[nn.Parameter, nn.Parameter] = {}  # parameters are compared by identity
        self._places: list[tuple[nn.Linear, str, nn.Parameter, nn.Parameter]] = []
        for linear in linears:
            for name, wide in linear.named_parameters(recurse=False):
                if wide.requires_grad and wide.dtype == torch.float32:
                    copy = narrow.setdefault(wide, nn.Parameter(torch.empty_like(wide, dtype=torch.bfloat16)))
                    self._places.append((linear, name, wide, copy))
        self._wide: list[Tensor] = list(narrow)
        self._narrow: list[Tensor] = list(narrow.values())

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the current weights to the bf16 copies."""
        if self._wide:
            torch._foreach_copy_(self._narrow, self._wide)

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Return a context in which the network computes with the bf16 copies."""
        for linear, name, _, narrow in self._places:
            linear._parameters[name] = narrow
        try:
            yield
        finally:
            for linear, name, wide, _ in self._places:
                linear._parameters[name] = wide

    @torch.no_grad()
    def collect(self) -> None:
        """Add the gradients of the copies to the fp32 gradients of the original weights."""
        found = [(wide, narrow.grad) for wide, narrow in zip(self._wide, self._narrow, strict=True)]
        present = [(wide, gradient) for wide, gradient in found if gradient is not None]
        if not present:
            return
        gradients = [torch.empty_like(wide) for wide, _ in present]
        torch._foreach_copy_(gradients, [gradient for _, gradient in present])
        add_gradients([wide for wide, _ in present], gradients)
        for narrow in self._narrow:
            narrow.grad = None
