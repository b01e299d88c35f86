"""Modules that replace other modules: stand-ins for an action, and classes that the user names."""

from __future__ import annotations

import ast
import functools
import importlib
import itertools
import re
import struct
from typing import Any, Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from ..errors import UserError
from .selectors import ACTIONS, Line


class Stand(nn.Module):
    """A module that replaces another one.

    It returns its input, zeros, the mean of the replaced module's outputs in training batches, or random ones of these
    outputs.
    """

    value: Tensor | None

    def __init__(self, action: str, check: Check, seen: Tensor | None) -> None:
        super().__init__()
        self.action, self.check = action, check
        self.register_buffer("value", seen)

    def forward(self, *args: Any, **named: Any) -> Any:
        self.check.look(args, named)
        output = x = next(value for value in (*args, *named.values()) if isinstance(value, Tensor))
        if self.action == "zero":
            output = x.new_zeros(*x.shape[:-1], self.check.shape[-1] if self.check.shape else x.shape[-1])
        elif self.value is not None:
            generator = generator_for(x, self.training) if self.action == "resample" else None
            output = drawn(self.value, x.shape[:-1], self.action, generator).to(x.dtype)
        self.check.compare(output)
        return (output, *[None] * (self.check.items - 1)) if self.check.items else output


def generator_for(x: Tensor, training: bool) -> torch.Generator | None:
    """Return the generator for `resample`; None means torch's default generator.

    In training the default generator is used, which every step seeds. In evaluation the seed depends only on the input,
    so that the same input gets the same outputs in any thread and order.
    """
    if training:
        return None
    total = 0.0 if x.is_meta else x.detach().float().sum().item()
    return torch.Generator().manual_seed(int.from_bytes(struct.pack("<d", total), "little") >> 1)


def drawn(value: Tensor, places: Sequence[int], action: str, generator: torch.Generator | None) -> Tensor:
    """Return, for each position in `places`, the mean (1, D) or one of the outputs (N, D) of training batches."""
    if action == "mean":
        return value[0].expand(*places, -1)
    return value[torch.randint(len(value), tuple(places), generator=generator).to(value.device)]


class Check:
    """A check that a replacement returns outputs of the same shape as the original module.

    The first forward pass calls the original module once to learn the shape of its output. Then the original module is
    dropped.
    """

    def __init__(self, name: str, original: nn.Module) -> None:
        self.name, self.original, self.compared = name, [original], False
        self.shape, self.items = (), 0  # type: tuple[int, ...], int  # shape of the output; length of the tuple that contains it, or 0

    def look(self, args: Any, named: Mapping[str, Any]) -> None:
        """Call the original in the first pass. Raises UserError if its output is not one tensor."""
        for module in self.original:
            args, named = tree_map_only(Tensor, Tensor.detach, (args, dict(named)))
            device = next(value.device for value in (*args, *named.values()) if isinstance(value, Tensor))
            training = module.training
            with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
                output = module.to(device).eval()(*args, **named)
            module.train(training)
            first, *others = output if isinstance(output, tuple) else [output]
            if not isinstance(first, Tensor) or any(other is not None for other in others):
                kind = "a tuple of several tensors" if isinstance(output, tuple) else f"a {type(output).__name__}"
                raise UserError(
                    f"modules: {self.name} ({type(module).__name__}) returns {kind}, for which no such action can "
                    "stand: replace it by a class of your own, `package:Class(arguments)`, or change a module in it."
                )
            self.shape, self.items = tuple(first.shape), len(others) + 1 if isinstance(output, tuple) else 0
        self.original.clear()

    def compare(self, output: Any) -> None:
        """Raise UserError if the first output of the replacement has another shape."""
        shape = tuple(getattr(output[0] if isinstance(output, tuple) else output, "shape", ()))
        if self.shape and not self.compared and shape != self.shape:
            raise UserError(
                f"modules: {self.name} gives {self.shape}, and what the row puts in its place gives {shape}: the "
                "shapes must be equal. Take another action, or a class that keeps the shape."
            )
        self.compared = True


def stand_for(
    line: Line, check: Check, module: nn.Module, model: nn.Module, make: Callable[..., nn.Module]
) -> nn.Module:
    """Return the replacement of a module.

    make: a function that returns the replacement. For a class that the user names, it is called without arguments. For
    other actions, it is called with `check`.
    """
    like = next(itertools.chain(module.parameters(), model.parameters()), None)
    if line.action != ACTIONS[-1]:
        made = make(check=check)
    else:
        try:
            with torch.device("meta" if like is not None and like.is_meta else "cpu"):
                made = make()
        except Exception as error:
            raise line.refused(f"it cannot be made: {error}") from None
        made.register_forward_pre_hook(lambda _, args, named: check.look(args, named), with_kwargs=True)
        made.register_forward_hook(lambda _, __, output: check.compare(output))
    if like is not None:
        made = made.to(like.device, like.dtype)
    return made.train(module.training)


def is_of(name: str, packages: Collection[str] | None) -> bool:
    """Return whether a dotted name belongs to one of the packages. Always True if `packages` is None."""
    return packages is None or re.split("[.:]", name)[0] in packages


def maker(line: Line, packages: Collection[str] | None) -> Callable[..., nn.Module]:
    """Return a function that makes the module of `package:Class(arguments)`.

    Raises UserError if the name is not a subclass of torch.nn.Module, if it belongs to another package, or if an
    argument is not a literal.
    """
    name, _, arguments = line.argument.partition("(")
    package, _, path = name.partition(":")
    refusal = f"a replacement is a class of {' or '.join(sorted(packages or ()))} here"
    if not is_of(package, packages):
        raise line.refused(refusal)
    try:
        call = ast.parse(f"f({arguments or ')'}", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError("write package:Class(arguments), where arguments are literals")
        values = [ast.literal_eval(one) for one in call.args]
        named = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
        found: Any = importlib.import_module(package)
        for part in path.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise line.refused(f"it cannot be made: {error}") from None
    if not isinstance(found, type) or not issubclass(found, nn.Module):
        raise line.refused(f"{name} is no subclass of torch.nn.Module")
    if not is_of(found.__module__, packages):  # the package imports the class from another package
        raise line.refused(f"{name} is of {found.__module__}, and {refusal}")
    return functools.partial(found, *values, **named)
