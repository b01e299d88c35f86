"""Change heads of attention in the input of the output projection."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from .selectors import Line, leaf, picked
from .shrink import COUNTS, is_product
from .stands import drawn, generator_for

HEADS = "ablated_heads"
_OUTPUT = ("output", "out_proj", "o_proj", "c_proj", "proj", "out_lin", "dense", "wo", "o", "out")


def projection(line: Line, name: str, module: nn.Module) -> tuple[nn.Module, int]:
    """Return the output projection and the number of heads. Raises UserError if they cannot be determined."""
    described = [one for inner in module.modules() for one in (inner, getattr(inner, "config", None))]
    counts = [n for one in described for key in COUNTS for n in [getattr(one, key, None)] if isinstance(n, int)]
    names, places = [], []
    for place, inner in module.named_modules():
        if leaf(place) in _OUTPUT and is_product(inner):
            names.append(f"{name}.{place}")
            places.append(inner)
    if not counts or not places:
        raise line.refused(
            f"{name} ({type(module).__name__}) has no heads that are known here: a number of heads "
            f"({', '.join(COUNTS)}) and an output projection ({', '.join(_OUTPUT)})"
        )
    if len(places) > 1:
        raise line.refused(
            f"{name} ({type(module).__name__}) has {len(places)} output projections: {', '.join(names)}. Name the "
            "attention whose heads are meant"
        )
    if isinstance(module, nn.MultiheadAttention) and line.action != "zero":
        raise line.refused("torch.nn.MultiheadAttention shows no head's output: its heads can be zero alone")
    return places[0], counts[0]


class Heads(nn.Module):
    """A module that changes heads in the input (…, count · n) of an output projection.

    For `torch.nn.MultiheadAttention`, this module changes the matrix of the output projection instead.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.rules: dict[int, str] = {}

    def before(self, _: nn.Module, args: Any) -> Any:
        return (self(args[0]), *args[1:])

    def forward(self, x: Tensor) -> Tensor:
        heads = torch.unflatten(x, -1, (self.count, -1)).clone()
        generator = generator_for(x, self.training) if "resample" in self.rules.values() else None
        for head, action in self.rules.items():
            if action == "zero":
                heads[..., head, :] = 0
            else:
                value = torch.unflatten(getattr(self, action), -1, (self.count, -1))[:, head]
                heads[..., head, :] = drawn(value, heads.shape[:-2], action, generator).to(x.dtype)
        return heads.flatten(-2)


def change_heads(line: Line, name: str, module: nn.Module, seen: Tensor | None) -> None:
    """Apply a line to heads of a module. Raises UserError for a head that does not exist or that another line changes.

    seen: the outputs for `mean` and `resample`.
    """
    place, count = projection(line, name, module)
    if HEADS not in module._modules:
        module.add_module(HEADS, heads := Heads(count))  # a submodule is copied, moved and saved with the network
        if isinstance(module, nn.MultiheadAttention):  # this class does not call its projection as a module
            parametrize.register_parametrization(place, "weight", heads)
        else:
            place.register_forward_pre_hook(heads.before)
    rules: Any = module._modules[HEADS]
    chosen = picked(range(count), line.heads)
    if not chosen or set(chosen) & set(rules.rules):
        raise line.refused("another line changes this head" if chosen else f"heads are from 0 to {count - 1}")
    rules.rules.update(dict.fromkeys(chosen, line.action))
    if seen is not None:
        rules.register_buffer(line.action, seen)
