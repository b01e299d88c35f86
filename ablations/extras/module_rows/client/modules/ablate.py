"""Change a network by lines such as `layers.*.attn -> identity`. Needs only torch. network-rows.md describes the lines.

All selectors refer to the network before any change, so the order of the lines does not matter.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any, Callable, Collection, Iterable, Mapping, Sequence

from torch import Tensor, nn

from .batches import BATCHES, from_batches, run
from .heads import change_heads
from .in_place import change_in_place, tie, tied_to
from .selectors import ACTIONS, IN_PLACE, Found, Line, leaf, owner, select
from .stands import Check, Stand, is_of, maker, stand_for


def num_params(model: nn.Module) -> int:
    """Return the number of parameters. Shared parameters count once."""
    return sum(parameter.numel() for parameter in model.parameters())


def ablate(
    model: nn.Module,
    lines: Sequence[str],
    batches: Iterable[Any] = (),
    *,
    own: Callable[[nn.Module, str], type[Stand] | None] = lambda module, action: None,
    initialise: Callable[[nn.Module], Any] | None = None,
    saved: Mapping[str, Tensor] | None = None,
    count: Callable[[nn.Module], int] = num_params,
    packages: Collection[str] | None = None,
    planning: bool = False,
) -> dict[str, Any]:
    """Change a network in place. Return the number of modules per line, and the parameters before and after.

    batches: inputs of the network (a tensor, a tuple or a dict) for `mean` and `resample`. If batches are given, shapes
        are checked at once; otherwise in the first forward pass.
    own: returns the class that must replace a module for an action, or None for the default class `Stand`.
    initialise: draws new weights for a module. If None, the module's `reset_parameters` draws them.
    saved: the state_dict of a network with the same changes. If it is given, the outputs for `mean` and `resample` are
        read from it, not computed from `batches`.
    count: counts the parameters of a module.
    packages: the packages whose classes may replace a module; None allows all.
    planning: the network is only inspected, so a replacement from another package is not made.

    Raises UserError for a line that is invalid or matches nothing, for two lines that change the same module, head or
    tensor, for an action that does not fit the module, and for a class from another package.
    """
    before, given = count(model), list(itertools.islice(batches, BATCHES))
    found = {line: select(model, line) for line in map(Line.parse, lines)}
    targets = {line: tied_to(model, line, modules) for line, modules in found.items() if line.action == "tie"}
    refuse_overlap(found, targets)
    replacing = [line for line in found if line.action == ACTIONS[-1]]
    foreign = {line for line in replacing if planning and not is_of(line.argument, packages)}
    makes = {line: maker(line, packages) for line in replacing if line not in foreign}
    ordered = _in_order(model, found)
    seen = from_batches(model, ordered, given, saved)
    for line, modules in ordered.items():
        if line.action in IN_PLACE and line.action != "tie":
            for name, module in modules.items():
                change_in_place(line, name, module, initialise)
    tie(ordered, targets)
    removed: list[str] = []
    for line, modules in ordered.items():
        stands: dict[int, nn.Module] = {}  # one replacement for a module with several names
        if line in foreign or line.action in IN_PLACE:
            continue
        for name, module in modules.items():
            if line.heads:
                change_heads(line, name, module, seen.get((name, line.action)))
            elif line.action == "remove" and own(module, "remove") is None:
                if not isinstance(owner(model, name), (nn.ModuleList, nn.Sequential)):
                    raise line.refused(f"{name} is no entry of a list; take identity or zero")
                removed.append(name)
            else:
                if id(module) not in stands:
                    kind = own(module, line.action) or Stand
                    outputs = seen.get((name, line.action))
                    make = makes.get(line) or functools.partial(kind, line.action, seen=outputs)
                    stands[id(module)] = stand_for(line, Check(name, module), module, model, make)
                setattr(owner(model, name), leaf(name), stands[id(module)])
    for name in sorted(removed, key=lambda name: -int(leaf(name))):  # last first: removal shifts later entries
        del owner(model, name)[int(leaf(name))]  # type: ignore[operator]
    if lines:
        run(model, given[:1])
    matched = {line.text: len(modules) for line, modules in found.items()}
    return {"modules": matched, "params_before": before, "params_after": count(model)}


def _in_order(model: nn.Module, found: Found) -> Found:
    """Sort the lines by the position of the first module that they match, so that their written order has no effect."""
    places = {name: place for place, (name, _) in enumerate(model.named_modules(remove_duplicate=False))}
    return dict(sorted(found.items(), key=lambda item: (places[next(iter(item[1]))], item[0])))


def refuse_overlap(found: Found, targets: Mapping[Line, nn.Module]) -> None:
    """Raise UserError if two lines change the same module, a module inside it, or a shared tensor.

    Lines that change single heads may share a module. `change_heads` refuses two such lines for the same head.

    targets: for each `tie` line, the module with the weights. No other line may replace, remove or shrink this module.
    """
    taken: dict[int, tuple[Line, str]] = {}  # per id of a module or tensor
    for line, modules in sorted(found.items(), key=lambda item: bool(item[0].heads)):
        for name, module in modules.items():
            tensors = module.parameters() if line.action in IN_PLACE else ()
            for part in [module] if line.heads else [*module.modules(), *tensors]:
                own = (line, name)
                other, where = taken.get(id(part), own) if line.heads else taken.setdefault(id(part), own)
                if other is not line or (where != name and isinstance(part, Tensor)):
                    what = "one tensor (tied weights)" if isinstance(part, Tensor) else "the same module"
                    raise line.refused(
                        f'it reaches {what} as "{other.text}": {name} and {where}. One line alone may change it, once: '
                        "narrow one of the selectors"
                    )
    for line, target in targets.items():
        for part in target.modules():
            other, where = taken.get(id(part), (line, ""))
            if other.action not in ("tie", "freeze", "reinitialise"):
                raise line.refused(
                    f'it takes the weights of {where}, which "{other.text}" changes. Tie to a module that no other '
                    "line replaces, removes or shrinks"
                )
