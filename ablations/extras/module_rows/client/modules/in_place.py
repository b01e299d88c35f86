"""Actions that change a module in place: `freeze`, `reinitialise`, `shrink` and `tie`."""

from __future__ import annotations

from typing import Any, Mapping

from torch import nn

from .selectors import Found, Line, leaf, owner, select
from .shrink import shrink


def change_in_place(line: Line, name: str, module: nn.Module, initialise: Any) -> None:
    """Apply `freeze`, `shrink` or `reinitialise` to a module. Raises UserError if the action does not fit it."""
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
    """Return the module whose parameters the others share. Raises UserError if `tie` names several."""
    if not line.argument:
        return next(iter(modules.values()))
    found = select(model, line._replace(selector=line.argument))
    if len(found) > 1:
        raise line.refused(f"tie needs one module, and {line.argument} matches {len(found)}: {', '.join(found)}")
    return next(iter(found.values()))


def tie(found: Found, targets: Mapping[Line, nn.Module]) -> None:
    """Let modules share the parameters of their targets, also of targets that are tied to other modules.

    Raises UserError if the parameters have other names or shapes, and for ties that form a circle.
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
