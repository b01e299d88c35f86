"""Rows that change a network: `layers.*.attn -> identity`. Needs torch alone; docs/network-rows.md has the language.

All selectors are resolved in the network as it was given, so the order of the lines does not matter.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import fnmatch
import functools
import importlib
import itertools
import re
from typing import Any, Callable, Iterable, Mapping, NamedTuple, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils._pytree import tree_flatten, tree_map_only
from torch.utils.flop_counter import FlopCounterMode

from .errors import UserError

PLAIN = ("identity", "zero", "mean", "resample")
ACTIONS = (*PLAIN, "remove", "tie", "freeze", "reinitialise", "shrink", "package:Class(arguments)")
OF_HEADS = ("zero", "mean", "resample")
BATCHES, BANK = 100, 1024  # most batches of a mean; outputs from which `resample` draws
LISTED = 40  # lines of a tree in a message


class Line(NamedTuple):
    """`head.2 of layers.*.attn -> mean`. heads: ".2" or "[1:]"; "": the module itself."""

    text: str
    heads: str
    selector: str
    action: str
    argument: str  # of tie, shrink and a class

    @classmethod
    def parse(cls, text: str) -> Line:
        """Raises UserError for a line that is none."""
        match = re.fullmatch(r"\s*(?:head(\.-?\d+|\[[^\]]*\])\s+of\s+)?(\S+)\s*->\s*(.*?)\s*", text)
        if match is None:
            raise UserError(f'modules: "{text}" is no line "selector -> action", such as "layers.*.attn -> identity".')
        heads, selector, action = match.groups(default="")
        word, _, argument = action.partition(" ")
        if re.match(r"[\w.]+:\w+", action):
            word, argument = "class", action
        allowed = OF_HEADS if heads else (*ACTIONS[:-1], "class")
        if word not in allowed or (argument and word not in ("tie", "shrink", "class")):
            known = ", ".join(OF_HEADS if heads else ACTIONS)
            raise UserError(f'modules: "{text}": there is no action "{action}"{" of a head" * bool(heads)}: {known}.')
        return cls(text, heads, selector, word, argument.strip())


@dataclasses.dataclass(frozen=True)
class Change:
    """What was done. matched: by line, the names of its modules; parameters are counted once where they are shared."""

    matched: Mapping[str, Sequence[str]]
    params_before: int
    params_after: int

    @property
    def words(self) -> list[str]:
        """For a log: a line each."""
        lines = [f"{line}: {len(names)} module{'s' * (len(names) != 1)}" for line, names in self.matched.items()]
        return [*lines, f"parameters: {self.params_before:,} before, {self.params_after:,} after"]

    @property
    def facts(self) -> dict[str, Any]:
        """For a run's record."""
        matched = {line: len(names) for line, names in self.matched.items()}
        return {"modules": matched, "params_before": self.params_before, "params_after": self.params_after}


def ablate(
    model: nn.Module,
    lines: Sequence[str],
    batches: Iterable[Any] = (),
    *,
    own: Callable[[nn.Module, str], type[Stand] | None] = lambda module, action: None,
    initialise: Callable[[nn.Module], Any] | None = None,
    saved: Mapping[str, Tensor] | None = None,
) -> Change:
    """Change a network in place.

    batches: inputs of the network (a tensor, a tuple, a dict, or a function that runs one), for `mean` and `resample`;
    with one, shapes are checked here, otherwise in the first forward pass. own: the class of a stand-in that a kind of
    module needs. initialise: draws the weights of a module; its `reset_parameters` if None. saved: the state_dict of a
    network with the same changes, in place of batches.
    Raises UserError: for a line that is none, or matches nothing; two lines that reach the same; an action that the
    module cannot have.
    """
    parsed, before = [Line.parse(text) for text in lines], num_params(model)
    found = {line: select(model, line) for line in parsed}
    _refuse_overlap(found)
    given = list(itertools.islice(batches, BATCHES))
    seen = _collected(model, found, given, saved)
    removed: list[str] = []
    for line, modules in found.items():
        stands: dict[int, nn.Module] = {}  # a module in several places has one
        first = next(iter(modules.items()))
        for name, module in modules.items():
            if line.heads:
                _heads_of(name, module, model).change(line, seen.get(name))
            elif line.action in ("freeze", "reinitialise", "shrink", "tie"):
                _in_place(line, name, module, model, first, initialise)
            elif line.action == "remove" and own(module, "remove") is None:
                owner = _owner(model, name)
                if not isinstance(owner, (nn.ModuleList, nn.Sequential)):
                    raise UserError(f'modules: "{line.text}": {name} is no entry of a list; take identity or zero.')
                removed.append(name)
            else:
                if id(module) not in stands:
                    stands[id(module)] = _stand(line, name, module, model, own, seen.get(name))
                setattr(_owner(model, name), name.rpartition(".")[2], stands[id(module)])
    for name in sorted(removed, key=lambda name: -int(name.rpartition(".")[2])):  # the last first: others keep places
        del _owner(model, name)[int(name.rpartition(".")[2])]  # type: ignore[operator]
    if given and lines:
        _run(model, given[:1])
    return Change({line.text: list(modules) for line, modules in found.items()}, before, num_params(model))


def num_params(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


# --- Selectors: a dotted path with wildcards and slices, or `type:Name`


def select(model: nn.Module, line: Line) -> dict[str, nn.Module]:
    """The modules of a line by name. Raises UserError if there are none, with the nearest names and the tree."""
    try:
        found = _by_type(model, line.selector[5:]) if line.selector.startswith("type:") else _by_path(model, line)
    except ValueError:
        raise UserError(f'modules: "{line.text}": in brackets stands an index or a slice, such as [4:].') from None
    if not found:
        known = {name for name, _ in model.named_modules() if name}
        known |= {f"type:{type(module).__name__}" for module in model.modules()}
        near = difflib.get_close_matches(line.selector, sorted(known), 3, 0.4)
        nearest = f"Nearest: {', '.join(near)}. " if near else ""
        raise UserError(f'modules: "{line.text}" matches nothing. {nearest}The network:\n' + "\n".join(tree(model)))
    return found


def _by_type(model: nn.Module, selector: str) -> dict[str, nn.Module]:
    name, index = _indexed(selector)
    every = [
        (place, module)
        for place, module in model.named_modules(remove_duplicate=False)
        if place and any(kind.__name__ == name for kind in type(module).__mro__)
    ]
    outer = [(p, m) for p, m in every if not any(p.startswith(f"{other}.") for other, _ in every)]
    return dict(_picked(outer, index))


def _by_path(model: nn.Module, line: Line) -> dict[str, nn.Module]:
    level = {"": model}
    for part in re.findall(r"(?:[^.\[\]]|\[[^\]]*\])+", line.selector):
        pattern, index = _indexed(part)
        below: dict[str, nn.Module] = {}
        for prefix, module in level.items():
            children = {name.rpartition(".")[2]: (name, child) for name, child in _children(prefix, module)}
            names = [pattern] if pattern in children else fnmatch.filter(children, pattern)
            for name, child in map(children.__getitem__, names):
                below.update(_picked(_children(name, child), index) if index else [(name, child)])
        level = below
    return level


def _children(prefix: str, module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Also those that are elsewhere too, which `named_children` leaves out."""
    join = f"{prefix}." if prefix else ""
    return [(f"{join}{name}", child) for name, child in module._modules.items() if child is not None]


def _indexed(part: str) -> tuple[str, str]:
    name, bracket, index = part.partition("[")
    return name, index[:-1] if bracket else ""


def _picked(items: Sequence[Any], index: str) -> Sequence[Any]:
    """items[4:], items[-1:]…; all without an index. Raises ValueError for another text."""
    if not index:
        return items
    numbers = [int(number) if number.strip() else None for number in index.split(":")]
    return items[slice(*numbers)] if len(numbers) > 1 else items[numbers[0] :][:1]


def tree(model: nn.Module) -> list[str]:
    """The modules, a line each; those that differ only in numbers are one."""
    kinds: dict[str, list[str]] = {}
    for name, module in model.named_modules():
        if name:
            kinds.setdefault(f"{re.sub(r'[0-9]+', '*', name)}: {type(module).__name__}", []).append(name)
    lines = [f"  {line}" + (f" ({len(names)})" if len(names) > 1 else "") for line, names in kinds.items()]
    return [*lines[:LISTED], *(["  …"] if len(lines) > LISTED else [])]


def _owner(model: nn.Module, name: str) -> nn.Module:
    return model.get_submodule(name.rpartition(".")[0])


def _refuse_overlap(found: Mapping[Line, Mapping[str, nn.Module]]) -> None:
    """Raises UserError where two lines reach the same module, a part of it, or a tensor that is shared."""
    taken: dict[int, tuple[Line, str]] = {}  # by module and tensor
    for line, modules in sorted(found.items(), key=lambda item: bool(item[0].heads)):
        for name, module in modules.items():
            shared = line.action in ("freeze", "reinitialise", "shrink", "tie")
            parts = [module] if line.heads else [*module.modules(), *(module.parameters() if shared else ())]
            for part in parts:
                own = (line, name)
                other, where = taken.get(id(part), own) if line.heads else taken.setdefault(id(part), own)
                if other is not line or (where != name and isinstance(part, Tensor)):
                    what = "one tensor (tied weights)" if isinstance(part, Tensor) else "the same module"
                    raise UserError(
                        f'modules: "{other.text}" and "{line.text}" reach {what}: {where} and {name}. Only one line '
                        "may change it, once: narrow one of the selectors."
                    )


# --- What a network computes on one batch


class Inspected(BaseException):
    """Ends a trainer whose network is only looked at. rows: of `modules` (inspect)."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        super().__init__()
        self.rows = rows


def inspect(model: nn.Module, run: Callable[[], Any] | None = None) -> list[dict[str, Any]]:
    """Parameters, operations and shapes of each module in one forward pass, with the modules inside it.

    run: the pass; if None, the next one raises Inspected with the rows at its end. Operations are those of torch's
    counter, which counts 0 for fused recurrent layers: theirs are two for each weight of a matrix and each position.
    """
    counter, fused = FlopCounterMode(display=False), [0]
    rows = {
        name: {"name": name, "type": type(module).__name__, "params": num_params(module), "flops": 0}
        for name, module in model.named_modules()
    }

    def total() -> int:
        return int(counter.get_total_flops()) + fused[0]

    def before(name: str, module: nn.Module, args: Any, named: Any) -> None:
        if not name and run is None:
            counter.__enter__()  # type: ignore[no-untyped-call]
        rows[name]["before"] = total()

    def after(name: str, module: nn.Module, args: Any, named: Any, output: Any) -> None:
        row, start = rows[name], rows[name].pop("before")
        if isinstance(module, (nn.RNNBase, nn.RNNCellBase)) and total() == start:
            x = args[0].data  # also of packed sequences
            matrices = sum(weight.numel() for weight in module.parameters() if weight.dim() == 2)
            fused[0] += 2 * matrices * (x.numel() // module.input_size)
        row["flops"] += total() - start
        row.setdefault("input", _shape([*args, *named.values()]))
        row.setdefault("output", _shape(output))
        if not name and run is None:
            counter.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            raise Inspected(list(rows.values()))

    for name, module in model.named_modules():
        module.register_forward_pre_hook(functools.partial(before, name), with_kwargs=True)
        module.register_forward_hook(functools.partial(after, name), with_kwargs=True)
    if run is not None:
        with counter, torch.no_grad():
            run()
    return list(rows.values())


def _shape(value: Any) -> list[int] | None:
    """Of the first tensor in it."""
    leaves, _ = tree_flatten(value)
    return next((list(leaf.shape) for leaf in leaves if isinstance(leaf, Tensor)), None)


# --- Actions that put a stand-in in a module's place


class Stand(nn.Module):
    """Stands in a module's place and gives its input, zeros, or what the module gave in training batches.

    In the first forward pass the module itself is computed once, for its shape. It is no part of the network any more.
    """

    value: Tensor | None

    def __init__(self, name: str, action: str, original: nn.Module, seen: Tensor | None) -> None:
        super().__init__()
        self.name, self.action, self._check = name, action, Check(name, original)
        self.width, self.others = 0, 0  # of the output, and of the tuple that the module returns
        self.register_buffer("value", seen)
        self.draws = torch.Generator().manual_seed(0)

    def forward(self, *args: Any, **named: Any) -> Any:
        x = next(value for value in (*args, *named.values()) if isinstance(value, Tensor))
        shape = None
        if self._check.original:
            shape, self.others = self._check.of(args, named)
            self.width = shape[-1]
        output = x if self.action in ("identity", "remove") else self._filled(x)
        if shape is not None:
            self._check.compare(output, shape)
        return (output, *[None] * (self.others - 1)) if self.others else output

    def _filled(self, x: Tensor) -> Tensor:
        if self.action == "zero":
            return x.new_zeros(*x.shape[:-1], self.width or x.shape[-1])
        assert self.value is not None
        return drawn(self.value, x.shape[:-1], self.action, self.draws).to(x.dtype)


def drawn(value: Tensor, places: Sequence[int], action: str, generator: torch.Generator) -> Tensor:
    """The mean (1, D), or for each place one of the outputs (N, D) of training batches."""
    if action == "mean":
        return value[0].expand(*places, -1)
    return value[torch.randint(len(value), tuple(places), generator=generator).to(value.device)]


class Check:
    """The shape that a module has, computed once. Raises UserError for a stand-in with another one."""

    def __init__(self, name: str, original: nn.Module) -> None:
        self.name, self.original = name, [original]

    def of(self, args: Any, named: Mapping[str, Any]) -> tuple[torch.Size, int]:
        """The shape of the output, or of the first in a tuple, and the length of that tuple; 0: none."""
        module = self.original.pop()
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
                f"modules: {self.name} ({type(module).__name__}) returns {kind}, which no such action can stand for: "
                "replace it by a class of your own, `package:Class(arguments)`, or change a module inside it."
            )
        return first.shape, len(others) + 1 if isinstance(output, tuple) else 0

    def compare(self, output: Any, shape: torch.Size) -> None:
        output = output[0] if isinstance(output, tuple) and output else output
        if getattr(output, "shape", None) != shape:
            raise UserError(
                f"modules: {self.name} gives {tuple(shape)}, and what the row puts in its place gives "
                f"{tuple(getattr(output, 'shape', ()))}: the shapes must be equal. Take another action, or a class "
                "that keeps the shape."
            )


def _stand(line: Line, name: str, module: nn.Module, model: nn.Module, own: Any, seen: Tensor | None) -> nn.Module:
    kind = own(module, line.action)
    if line.action in (*PLAIN, "remove"):
        if line.action in ("mean", "resample") and isinstance(module, nn.modules.conv._ConvNd):
            raise UserError(f'modules: "{line.text}": {name} is a convolution; a mean is of the last dimension.')
        return _at((kind or Stand)(name, line.action, module, seen), module, model)
    made = _at(_made(line), module, model)
    check = Check(name, module)

    def compare(_: nn.Module, args: Any, named: Any, output: Any) -> None:
        if check.original:
            check.compare(output, check.of(args, named)[0])

    made.register_forward_hook(compare, with_kwargs=True)
    return made


def _made(line: Line) -> nn.Module:
    """The module of `package:Class(arguments)`. Raises UserError if it cannot be made."""
    match = re.fullmatch(r"([\w.]+):(\w+)(?:\((.*)\))?", line.argument)
    try:
        if match is None:
            raise ValueError("write package:Class(arguments)")
        package, name, arguments = match.groups(default="")
        call = ast.parse(f"f({arguments})", mode="eval").body
        assert isinstance(call, ast.Call)
        positional = [ast.literal_eval(one) for one in call.args]
        named = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
        made = getattr(importlib.import_module(package), name)(*positional, **named)
    except Exception as error:
        raise UserError(f'modules: "{line.text}": {line.argument} cannot be made: {error}.') from None
    if not isinstance(made, nn.Module):
        raise UserError(f'modules: "{line.text}": {line.argument} is no torch.nn.Module.')
    return made


def _at(made: nn.Module, module: nn.Module, model: nn.Module) -> nn.Module:
    """A new module on the device, in the type and in the mode of the one that it replaces."""
    like = next(itertools.chain(module.parameters(), model.parameters()), None)
    if like is not None:
        made = made.to(like.device, like.dtype if like.is_floating_point() else None)
    return made.train(module.training)


# --- What modules give in training batches, for `mean` and `resample`


def _collected(
    model: nn.Module,
    found: Mapping[Line, Mapping[str, nn.Module]],
    batches: Sequence[Any],
    saved: Mapping[str, Tensor] | None,
) -> dict[str, Tensor]:
    """name → the mean (1, D) of the last dimension, or BANK outputs (N, D). Raises UserError without batches."""
    asked = {name: (line, m) for line, modules in found.items() if line.action in OF_HEADS[1:]
             for name, m in modules.items()}  # fmt: skip
    if saved is not None:
        parts = {
            name: f"ablated_heads.value_{line.action}" if line.heads else "value" for name, (line, _) in asked.items()
        }
        return {name: saved[f"{name}.{part}"] for name, part in parts.items()}
    if not asked:
        return {}
    if not batches:
        line = next(iter(asked.values()))[0]
        raise UserError(
            f'modules: "{line.text}" needs batches of training: context.ablate(model, batches), an iterable of the '
            "network's inputs."
        )
    sums: dict[str, list[Tensor]] = {name: [] for name in asked}
    draws, each = torch.Generator().manual_seed(0), -(-BANK // len(batches))

    def take(name: str, action: str, output: Any) -> None:
        rows = (output[0] if isinstance(output, tuple) else output).detach().flatten(0, -2)
        if action == "resample":
            sums[name].append(rows[torch.randint(len(rows), (each,), generator=draws).to(rows.device)])
        else:
            sums[name].append(torch.cat([rows.double().sum(0), rows.new_full((1,), len(rows)).double()]))

    hooks = []
    for name, (line, module) in asked.items():
        keep = functools.partial(take, name, line.action)
        if line.heads:
            hooks.append(_heads_of(name, module, model).watch(keep))
        else:
            hooks.append(module.register_forward_hook(lambda _, __, output, keep=keep: keep(output)))
    try:
        _run(model, batches)
    finally:
        for hook in hooks:
            hook.remove()
    return {
        name: torch.cat(parts)[:BANK] if asked[name][0].action == "resample"
        else (torch.stack(parts).sum(0)[:-1] / torch.stack(parts)[:, -1].sum()).float().unsqueeze(0)
        for name, parts in sums.items() if parts
    }  # fmt: skip


def _run(model: nn.Module, batches: Iterable[Any]) -> None:
    """Forward passes without gradients or dropout."""
    training, like = model.training, next(model.parameters(), torch.empty(0))
    with torch.no_grad(), torch.random.fork_rng([like.device] if like.is_cuda else []):
        model.eval()
        for batch in batches:
            if callable(batch) and not isinstance(batch, (Tensor, Mapping)):
                batch()
                continue
            moved = tree_map_only(Tensor, lambda tensor: tensor.to(like.device), batch)
            if isinstance(moved, Mapping):
                model(**moved)
            else:
                model(*moved) if isinstance(moved, (tuple, list)) else model(moved)
        model.train(training)


# --- Heads of attention: what each gives to the output projection


_OUTPUT = ("output", "out_proj", "o_proj", "c_proj", "proj", "out_lin", "dense", "wo", "o", "out", "to_out")
_COUNT = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads")


def picked_heads(line: Line, count: int, changed: Iterable[int] = ()) -> Sequence[int]:
    """The heads of a line. Raises UserError for a head that is not there, or that another line changes."""
    heads: Sequence[int] = _picked(range(count), line.heads.strip(".[]"))
    if not heads or set(heads) & set(changed):
        why = f"there are {count} heads, from 0 to {count - 1}" if not heads else "another line changes this head"
        raise UserError(f'modules: "{line.text}": {why}.')
    return heads


class Heads(nn.Module):
    """Changes heads in the input (…, count · n) of an output projection, or in the output of a module without one."""

    def __init__(self, count: int, place: nn.Module, before: bool) -> None:
        super().__init__()
        self.count, self.rules, self.draws = count, {}, torch.Generator().manual_seed(0)  # type: ignore[var-annotated]
        self._place, self._before = [place], before  # in a list: it is registered elsewhere

    def watch(self, see: Callable[[Tensor], Any]) -> Any:
        place = self._place[0]
        if self._before:
            return place.register_forward_pre_hook(lambda _, args: see(args[0]))
        return place.register_forward_hook(lambda _, __, output: see(output))

    def change(self, line: Line, seen: Tensor | None) -> None:
        heads = picked_heads(line, self.count, self.rules)
        if not self.rules:
            place = self._place[0]
            if self._before:
                place.register_forward_pre_hook(self._in)
            else:
                place.register_forward_hook(self._out)
        self.rules.update(dict.fromkeys(heads, line.action))
        if line.action != "zero" and seen is not None:
            self.register_buffer(f"value_{line.action}", seen)

    def _in(self, _: nn.Module, args: Any) -> Any:
        return (self.changed(args[0]), *args[1:])

    def _out(self, _: nn.Module, __: Any, output: Any) -> Any:
        return (self.changed(output[0]), *output[1:]) if isinstance(output, tuple) else self.changed(output)

    def changed(self, x: Tensor) -> Tensor:
        """(…, count · n) with the heads of the rules changed."""
        heads = torch.unflatten(x, -1, (self.count, -1)).clone()
        for head, action in self.rules.items():
            if action == "zero":
                heads[..., head, :] = 0
            else:
                value = torch.unflatten(getattr(self, f"value_{action}"), -1, (self.count, -1))[:, head]
                heads[..., head, :] = drawn(value, heads.shape[:-2], action, self.draws).to(x.dtype)
        return heads.flatten(-2)


class WeightHeads(nn.Module):
    """torch.nn.MultiheadAttention calls no projection: a head is taken from the weights of its output."""

    keep: Tensor

    def __init__(self, module: nn.MultiheadAttention) -> None:
        super().__init__()
        self.count, self._place = module.num_heads, [module.out_proj]
        self.register_buffer("keep", torch.ones(module.embed_dim, device=module.out_proj.weight.device))

    def watch(self, see: Any) -> Any:
        raise UserError("modules: torch.nn.MultiheadAttention shows no head's output: its heads can be `zero` alone.")

    def change(self, line: Line, seen: Tensor | None) -> None:
        self.keep.view(self.count, -1)[list(picked_heads(line, self.count))] = 0
        if not parametrize.is_parametrized(self._place[0]):
            parametrize.register_parametrization(self._place[0], "weight", self)

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.keep


def _heads_of(name: str, module: nn.Module, model: nn.Module) -> Any:
    """The heads of an attention module, made once. Raises UserError for a module without known heads."""
    known = module._modules.get("ablated_heads")
    if known is not None:
        return known
    if isinstance(module, nn.MultiheadAttention):
        return _kept(module, WeightHeads(module))
    described = [module, getattr(module, "config", None)]
    count = next((n for one in described for key in _COUNT if isinstance(n := getattr(one, key, None), int)), 0)
    place = next((module._modules[key] for key in _OUTPUT if key in module._modules), None)
    of_itself = place is None and {"query", "q_lin", "q_proj"} & set(module._modules)
    if not count or not (of_itself or getattr(getattr(place, "weight", None), "ndim", 0) == 2):
        raise UserError(
            f"modules: {name} ({type(module).__name__}) has no heads that are known here: a number of heads "
            f"({', '.join(_COUNT)}) and an output projection ({', '.join(_OUTPUT)})."
        )
    return _kept(module, Heads(count, module if place is None else place, place is not None))


def _kept(module: nn.Module, heads: nn.Module) -> nn.Module:
    """Registered, so that it is copied, moved and saved with the network."""
    module.add_module("ablated_heads", heads)
    return heads


# --- Actions that change a module where it is


def _in_place(
    line: Line, name: str, module: nn.Module, model: nn.Module, first: tuple[str, nn.Module], initialise: Any
) -> None:
    if line.action == "freeze":
        module.requires_grad_(False)
    elif line.action == "reinitialise":
        _reinitialise(line, name, module, initialise)
    elif line.action == "tie":
        _tie(line, name, module, (line.argument, _named(model, line)) if line.argument else first)
    else:
        _shrink(line, name, module)


def _named(model: nn.Module, line: Line) -> nn.Module:
    return next(iter(select(model, line._replace(selector=line.argument)).values()))


def _reinitialise(line: Line, name: str, module: nn.Module, initialise: Any) -> None:
    """Draw the weights again. Raises UserError for weights that only the network's own code draws."""
    if initialise is not None:
        initialise(module)
        return
    for place, inner in module.named_modules():
        if hasattr(inner, "reset_parameters"):
            inner.reset_parameters()
        elif next(inner.parameters(recurse=False), None) is not None:
            where = f"{name}.{place}".rstrip(".")
            raise UserError(f'modules: "{line.text}": {where} has no reset_parameters, which draws its weights.')


def _tie(line: Line, name: str, module: nn.Module, to: tuple[str, nn.Module]) -> None:
    """Let a module use the parameters of another. Raises UserError if theirs have other names or shapes."""
    theirs, own = dict(to[1].named_parameters()), dict(module.named_parameters())
    if {n: p.shape for n, p in theirs.items()} != {n: p.shape for n, p in own.items()}:
        raise UserError(f'modules: "{line.text}": {name} and {to[0]} have no parameters of the same names and shapes.')
    for place, parameter in theirs.items():
        setattr(_owner(module, place), place.rpartition(".")[2], parameter)


def _shrink(line: Line, name: str, module: nn.Module) -> None:
    """Keep the first units between the two products of a feed-forward network, a share of them."""
    products = [m for m in module.modules() if getattr(getattr(m, "weight", None), "ndim", 0) == 2]
    products = [m for m in products if not isinstance(m, nn.Embedding)]
    try:
        factor = float(line.argument)
    except ValueError:
        factor = 0.0
    if not 0 < factor < 1:
        raise UserError(f'modules: "{line.text}": shrink needs a factor between 0 and 1, such as shrink 0.5.')
    width = _sizes(products[-1])[0] if products else 1
    if len(products) < 2 or any(_sizes(m)[1] % width for m in products[:-1]):
        raise UserError(
            f'modules: "{line.text}": {name} ({type(module).__name__}) is no feed-forward network known here: products '
            "into a width, and one out of it."
        )
    kept = torch.arange(max(1, round(width * factor)))
    for product in products[:-1]:
        blocks = torch.arange(0, _sizes(product)[1], width)
        _cut(product, (blocks[:, None] + kept).flatten(), out=True)  # a gated form may have its two side by side
    _cut(products[-1], kept, out=False)


def _sizes(product: Any) -> tuple[int, int]:
    """Inputs and outputs. Conv1D of Hugging Face stores its matrix the other way round."""
    rows, columns = product.weight.shape
    return (columns, rows) if isinstance(product, nn.Linear) else (rows, columns)


def _cut(product: Any, kept: Tensor, *, out: bool) -> None:
    linear, bias = isinstance(product, nn.Linear), getattr(product, "bias", None)
    weight, kept = product.weight, kept.to(product.weight.device)
    product.weight = nn.Parameter(weight.detach().index_select(0 if out == linear else 1, kept), weight.requires_grad)
    if out and bias is not None:
        product.bias = nn.Parameter(bias.detach()[kept], bias.requires_grad)
    for key in ("out_features", "nf") if out else ("in_features", "nx"):
        if hasattr(product, key):
            setattr(product, key, len(kept))
