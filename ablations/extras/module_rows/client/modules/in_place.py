"""Actions that change a module where it is: `freeze`, `reinitialise`, `shrink` and `tie`."""

from __future__ import annotations

from typing import Any, Mapping

from torch import nn

from .selectors import Found, Line, leaf, owner, select
from .shrink import shrink


def change_in_place(line: Line, name: str, module: nn.Module, initialise: Any) -> None:
    """`freeze`, `shrink` and `reinitialise`."""
    if line.action == "freeze":
        module.requires_grad_(False)
    elif line.action == "shrink":
        shrink(line, name, module)
    elif initialise is not None:
        initialise(module)
    else:
        for place, inner in module.named_modules():
            if hasattr(inner, "reset_parameters"):
                inner.reset_parameters()
            elif next(inner.parameters(recurse=False), None) is not None:
                raise line.refused(f"{name}.{place} has no reset_parameters, which draws its weights")


def tied_to(model: nn.Module, line: Line, modules: Mapping[str, nn.Module]) -> nn.Module:
    """The module whose parameters the others use. Raises UserError if several are named."""
    if not line.argument:
        return next(iter(modules.values()))
    found = select(model, line._replace(selector=line.argument))
    if len(found) > 1:
        raise line.refused(f"tie needs one module, and {line.argument} matches {len(found)}: {', '.join(found)}")
    return next(iter(found.values()))


def tie(found: Found, targets: Mapping[Line, nn.Module]) -> None:
    """Let modules use the parameters of their targets. A target that is tied itself is so at the end, too.

    Raises UserError for modules with other parameters, and for ties that never agree.
    """
    ties = [(line, name, module) for line in targets for name, module in found[line].items()]
    for _ in range(len(ties) + 1):
        changed = False
        for line, name, module in ties:
            theirs, own = dict(targets[line].named_parameters()), dict(module.named_parameters())
            if {n: p.shape for n, p in theirs.items()} != {n: p.shape for n, p in own.items()}:
                to = line.argument or next(iter(found[line]))
                raise line.refused(f"{name} and {to} have no parameters of the same names and shapes")
            for place, parameter in theirs.items():
                if own[place] is not parameter:
                    setattr(owner(module, place), leaf(place), parameter)
                    changed = True
        if not changed:
            return
    raise ties[0][0].refused("the ties of the row go in a circle")
