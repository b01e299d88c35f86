"""Lines and their selectors. A selector is a dotted path with wildcards and slices, or `type:Name`."""

from __future__ import annotations

import difflib
import fnmatch
import re
from typing import Any, Mapping, NamedTuple, Sequence

from torch import nn

from ..errors import UserError

FROM_BATCHES, IN_PLACE = ("mean", "resample"), ("tie", "freeze", "reinitialise", "shrink")
ACTIONS = ("identity", "zero", *FROM_BATCHES, "remove", *IN_PLACE, "package:Class(arguments)")
OF_HEADS = ("zero", *FROM_BATCHES)
LISTED = 40  # maximum number of lines of a module tree in a message


class Line(NamedTuple):
    """A parsed line, such as `head.2 of layers.*.attn -> mean`.

    heads: an index or slice such as "2" or "1:"; "" for the whole module. argument: the text after tie or shrink, or
    the class that replaces a module.
    """

    text: str
    heads: str
    selector: str
    action: str
    argument: str

    @classmethod
    def parse(cls, text: str) -> Line:
        """Parse a line. Raises UserError for an invalid one."""
        match = re.fullmatch(r"\s*(?:head[.[]([-:\d]+)\]?\s+of\s+)?(\S+)\s*->\s*(.*?)\s*", text)
        if match is None:
            raise UserError(f'modules: "{text}" is no line "selector -> action", such as "layers.*.attn -> identity".')
        heads, selector, action = match.groups(default="")
        word, _, argument = action.partition(" ")
        if re.match(r"[\w.]+:\w+", action):
            word, argument = ACTIONS[-1], action
        allowed = OF_HEADS if heads else ACTIONS
        if word not in allowed or (argument and word not in ("tie", "shrink", ACTIONS[-1])):
            raise cls(text, "", "", "", "").refused(f'there is no action "{action}" here: {", ".join(allowed)}')
        return cls(text, heads, selector, word, argument.strip())

    def refused(self, why: str) -> UserError:
        """Return an error that names this line."""
        return UserError(f'modules: "{self.text}": {why}.')


Found = Mapping[Line, Mapping[str, nn.Module]]  # modules by name


def select(model: nn.Module, line: Line) -> dict[str, nn.Module]:
    """Return the modules that a line matches, by name.

    Raises UserError if there are none; the message has the nearest names and the module tree.
    """
    try:
        found = _by_type(model, line.selector[5:]) if line.selector.startswith("type:") else _by_path(model, line)
    except ValueError:
        raise line.refused("in brackets stands an index or a slice, such as [4:]") from None
    if not found:
        known = {name for name, _ in model.named_modules() if name}
        known |= {f"type:{type(module).__name__}" for module in model.modules()}
        near = ", ".join(difflib.get_close_matches(line.selector, sorted(known), 3, 0.4)) or "no name"
        raise line.refused(f"it matches nothing. Nearest: {near}. The network:\n" + "\n".join(tree(model)))
    return found


def _by_type(model: nn.Module, selector: str) -> dict[str, nn.Module]:
    name, index = _indexed(selector)
    every = [
        (place, module)
        for place, module in model.named_modules(remove_duplicate=False)
        if place and any(kind.__name__ == name for kind in type(module).__mro__)
    ]
    return dict(picked([(p, m) for p, m in every if not any(p.startswith(f"{other}.") for other, _ in every)], index))


def _by_path(model: nn.Module, line: Line) -> dict[str, nn.Module]:
    level = {"": model}
    for part in re.findall(r"(?:[^.\[\]]|\[[^\]]*\])+", line.selector):
        pattern, index = _indexed(part)
        below: dict[str, nn.Module] = {}
        for prefix, module in level.items():
            for name in [pattern] if pattern in module._modules else fnmatch.filter(module._modules, pattern):
                one: dict[str, Any] = {f"{prefix}.{name}".lstrip("."): module._modules[name]}
                items = [(f"{p}.{n}", m) for p, child in one.items() for n, m in child._modules.items()]
                below.update(dict(picked(items, index)) if index else one)
        level = below
    return level


def _indexed(part: str) -> tuple[str, str]:
    name, bracket, index = part.partition("[")
    return name, index[:-1] if bracket else ""


def picked(items: Sequence[Any], index: str) -> Sequence[Any]:
    """Return the items at an index or slice, such as "4:"; all items for "". Raises ValueError for other text."""
    if not index:
        return items
    numbers = [int(number) if number.strip() else None for number in index.split(":")]
    return items[slice(*numbers)] if len(numbers) > 1 else items[numbers[0] :][:1]


def leaf(name: str) -> str:
    return name.rpartition(".")[2]


def owner(model: nn.Module, name: str) -> nn.Module:
    return model.get_submodule(name.rpartition(".")[0])


def tree(model: nn.Module) -> list[str]:
    """Return one line per module for a message. Modules whose names differ only in numbers share a line."""
    kinds: dict[str, int] = {}
    for name, module in model.named_modules():
        line = f"  {re.sub('[0-9]+', '*', name)}: {type(module).__name__}"
        kinds[line] = kinds.get(line, 0) + bool(name)
    lines = [f"{line} ({count})" for line, count in kinds.items() if count]
    return [*lines[:LISTED], *["  …"][: len(lines) - LISTED]] if len(lines) > LISTED else lines
