"""Shrink a feed-forward network: keep a share of its inner units.

A product is a module that multiplies its input by a matrix, such as `torch.nn.Linear`.
"""

from __future__ import annotations

import re
from inspect import signature
from typing import Any, Sequence

import torch
from torch import Tensor, nn

from .selectors import Line

COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads")


def is_product(module: Any) -> bool:
    return getattr(getattr(module, "weight", None), "ndim", 0) == 2 and not isinstance(module, nn.Embedding)


def _sizes(product: Any) -> tuple[int, int]:
    """Return the numbers of inputs and outputs. Conv1D of Hugging Face stores the transposed matrix."""
    rows, columns = product.weight.shape
    return (columns, rows) if isinstance(product, nn.Linear) else (rows, columns)


def shrink(line: Line, name: str, module: nn.Module) -> None:
    """Keep the first inner units of a feed-forward network. The argument of the line is the share of units to keep.

    Raises UserError for an invalid share, and for a module that is not a feed-forward network.
    """
    products: list[Any] = [inner for inner in module.modules() if is_product(inner)]
    if not re.fullmatch(r"0?\.\d+", line.argument):
        raise line.refused("shrink needs a factor between 0 and 1, such as shrink 0.5")
    attends = any(hasattr(inner, key) for inner in module.modules() for key in COUNTS)
    outer = None if attends else _outer(module, products)
    if outer is None:
        raise line.refused(
            f"{name} ({type(module).__name__}) is no feed-forward network known here: products into a width, and a "
            "last one out of it"
        )
    width = _sizes(outer)[0]
    kept = torch.arange(max(1, round(width * float(line.argument))))
    for product in products:  # one product of a gated network may compute gate and value side by side
        if product is not outer:
            blocks = torch.arange(0, _sizes(product)[1], width)
            _cut(product, (blocks[:, None] + kept).flatten(), ("out_features", "nf"))
    _cut(outer, kept, ("in_features", "nx"))


def _outer(module: nn.Module, products: Sequence[Any]) -> Any:
    """Return the product that maps the inner units to the output: the one that the forward pass computes last.

    If the module cannot be called on its own, return the only product that the shapes allow. Return None if there is
    no such product.
    """

    def fits(outer: Any) -> bool:
        others = [_sizes(product) for product in products if product is not outer]
        inputs, width = {size[0] for size in others}, _sizes(outer)[0]
        return len(inputs) == 1 and not any(size[1] % width for size in others)

    fitting = [product for product in products if fits(product)]
    for width in dict.fromkeys(_sizes(product)[0] for product in products):
        called = _called(module, products, width)
        if called:
            once = len(called) == len(products) and len(set(map(id, called))) == len(called)
            return called[-1] if once and any(called[-1] is one for one in fitting) else None
    return fitting[0] if len(fitting) == 1 else None


def _called(module: nn.Module, products: Sequence[Any], width: int) -> list[Any]:
    """Return the products in the order in which the module calls them for one position of zeros; [] if that fails.

    width: the width of the input.
    """
    called: list[Any] = []
    hooks = [product.register_forward_pre_hook(lambda one, _: called.append(one)) for product in products]
    like, training = products[0].weight, module.training
    needed = [
        one for one in signature(module.forward).parameters.values()
        if one.kind is one.POSITIONAL_OR_KEYWORD and one.default is one.empty
    ]  # fmt: skip
    try:
        with torch.no_grad(), torch.random.fork_rng([like.device] if like.is_cuda else []):
            zeros = torch.zeros(1, 1, width, dtype=like.dtype, device=like.device)
            module.eval()(zeros, *[None] * (len(needed) - 1))
    except Exception:  # a module may raise anything for an unsuitable input
        return []
    finally:
        module.train(training)
        for hook in hooks:
            hook.remove()
    return called


def _cut(product: Any, kept: Tensor, sizes: tuple[str, str]) -> None:
    """Keep only some outputs or inputs of a product.

    kept: the indices of these outputs or inputs. sizes: the attributes in which Linear and Conv1D store their number.
    """
    out, kept = sizes[0] == "out_features", kept.to(product.weight.device)
    for key, dimension in (("weight", int(out != isinstance(product, nn.Linear))), ("bias", 0)):
        old = getattr(product, key, None)
        if old is not None and (out or key == "weight"):
            setattr(product, key, nn.Parameter(old.detach().index_select(dimension, kept), old.requires_grad))
    for size in sizes:
        if hasattr(product, size):
            setattr(product, size, len(kept))
