"""Rows that change a network: `layers.*.attn -> identity`. Needs torch alone; docs/network-rows.md has the language.

All selectors are resolved in the network as it was given, so the order of the lines does not matter.
"""

from __future__ import annotations

import ast
import difflib
import fnmatch
import functools
import importlib
import itertools
import re
import struct
from inspect import signature
from typing import Any, Callable, Collection, Iterable, Mapping, NamedTuple, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import FlopCounterMode

from .errors import UserError

FROM_BATCHES, IN_PLACE = ("mean", "resample"), ("tie", "freeze", "reinitialise", "shrink")
ACTIONS = ("identity", "zero", *FROM_BATCHES, "remove", *IN_PLACE, "package:Class(arguments)")
OF_HEADS = ("zero", *FROM_BATCHES)
BATCHES, BANK = 100, 1024  # most batches of a mean; outputs from which `resample` draws
LISTED = 40  # lines of a tree in a message


class Line(NamedTuple):
    """`head.2 of layers.*.attn -> mean`. heads: "2" or "1:"; "" for the module itself. argument: what tie … need."""

    text: str
    heads: str
    selector: str
    action: str
    argument: str

    @classmethod
    def parse(cls, text: str) -> Line:
        """Raises UserError for a line that is none."""
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
        """The error that names this line."""
        return UserError(f'modules: "{self.text}": {why}.')


Found = Mapping[Line, Mapping[str, nn.Module]]  # modules by name


def num_params(model: nn.Module) -> int:
    """Parameters; shared ones count once."""
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
    """Change a network in place. Returns facts: how many modules each line matched, parameters before and after.

    batches: inputs of the network (a tensor, a tuple or a dict) for `mean` and `resample`; with one, shapes are checked
    here, otherwise in the first forward pass. own: the class of a stand-in that a kind of module needs. initialise:
    draws the weights of a module; its `reset_parameters` if None. saved: the state_dict of a network with the same
    changes, in place of batches. count: counts the parameters of a module. packages: those whose classes may replace
    a module; None: all. planning: the network is only looked at, so that a module stays as it is where its replacement
    is of another package.

    Raises UserError: for a line that is none, or matches nothing; for two lines that reach the same; for an action that
    the module cannot have; for a class of another package.
    """
    before, given = count(model), list(itertools.islice(batches, BATCHES))
    found = {line: select(model, line) for line in map(Line.parse, lines)}
    targets = {line: _tied_to(model, line, modules) for line, modules in found.items() if line.action == "tie"}
    _refuse_overlap(found, targets)
    replacing = [line for line in found if line.action == ACTIONS[-1]]
    foreign = {line for line in replacing if planning and not _is_of(line.argument, packages)}
    makes = {line: _maker(line, packages) for line in replacing if line not in foreign}
    ordered = _in_order(model, found)
    seen = _from_batches(model, ordered, given, saved)
    for line, modules in ordered.items():
        if line.action in IN_PLACE and line.action != "tie":
            for name, module in modules.items():
                _in_place(line, name, module, initialise)
    _tie(ordered, targets)
    removed: list[str] = []
    for line, modules in ordered.items():
        stands: dict[int, nn.Module] = {}  # a module in several places has one
        if line in foreign or line.action in IN_PLACE:
            continue
        for name, module in modules.items():
            if line.heads:
                _change_heads(line, name, module, seen.get((name, line.action)))
            elif line.action == "remove" and own(module, "remove") is None:
                if not isinstance(_owner(model, name), (nn.ModuleList, nn.Sequential)):
                    raise line.refused(f"{name} is no entry of a list; take identity or zero")
                removed.append(name)
            else:
                if id(module) not in stands:
                    kind = own(module, line.action) or Stand
                    outputs = seen.get((name, line.action))
                    make = makes.get(line) or functools.partial(kind, line.action, seen=outputs)
                    stands[id(module)] = _stand(line, Check(name, module), module, model, make)
                setattr(_owner(model, name), _leaf(name), stands[id(module)])
    for name in sorted(removed, key=lambda name: -int(_leaf(name))):  # the last first: the others keep their places
        del _owner(model, name)[int(_leaf(name))]  # type: ignore[operator]
    if lines:
        _run(model, given[:1])
    matched = {line.text: len(modules) for line, modules in found.items()}
    return {"modules": matched, "params_before": before, "params_after": count(model)}


def _in_order(model: nn.Module, found: Found) -> Found:
    """The lines by the place of the first module that they match, whatever the order in which they are written."""
    places = {name: place for place, (name, _) in enumerate(model.named_modules(remove_duplicate=False))}
    return dict(sorted(found.items(), key=lambda item: (places[next(iter(item[1]))], item[0])))


def _leaf(name: str) -> str:
    return name.rpartition(".")[2]


def _owner(model: nn.Module, name: str) -> nn.Module:
    return model.get_submodule(name.rpartition(".")[0])


# --- Selectors: a dotted path with wildcards and slices, or `type:Name`


def select(model: nn.Module, line: Line) -> dict[str, nn.Module]:
    """The modules of a line by name. Raises UserError if there are none, with the nearest names and the tree."""
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
    return dict(_picked([(p, m) for p, m in every if not any(p.startswith(f"{other}.") for other, _ in every)], index))


def _by_path(model: nn.Module, line: Line) -> dict[str, nn.Module]:
    level = {"": model}
    for part in re.findall(r"(?:[^.\[\]]|\[[^\]]*\])+", line.selector):
        pattern, index = _indexed(part)
        below: dict[str, nn.Module] = {}
        for prefix, module in level.items():
            for name in [pattern] if pattern in module._modules else fnmatch.filter(module._modules, pattern):
                one: dict[str, Any] = {f"{prefix}.{name}".lstrip("."): module._modules[name]}
                items = [(f"{p}.{n}", m) for p, child in one.items() for n, m in child._modules.items()]
                below.update(dict(_picked(items, index)) if index else one)
        level = below
    return level


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
    kinds: dict[str, int] = {}
    for name, module in model.named_modules():
        line = f"  {re.sub('[0-9]+', '*', name)}: {type(module).__name__}"
        kinds[line] = kinds.get(line, 0) + bool(name)
    lines = [f"{line} ({count})" for line, count in kinds.items() if count]
    return [*lines[:LISTED], *["  …"][: len(lines) - LISTED]] if len(lines) > LISTED else lines


def _refuse_overlap(found: Found, targets: Mapping[Line, nn.Module]) -> None:
    """Raises UserError where two lines reach the same module, a part of it, or a tensor that is shared.

    targets: of `tie`, the module that has the weights. Another line may not replace or shrink it.
    """
    taken: dict[int, tuple[Line, str]] = {}  # by module and tensor
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


# --- What a network computes on one batch


class Operations:
    """Counts the operations of a network's passes in a `with` block, by torch's counter.

    It counts 0 for fused recurrent layers: theirs are two for each weight of a matrix and each position.
    """

    def __init__(self, model: nn.Module) -> None:
        self._counter, self._fused = FlopCounterMode(display=False), 0
        self._started: dict[nn.Module, int] = {}
        self._hooks: list[Any] = []
        for module in model.modules():
            if isinstance(module, (nn.RNNBase, nn.RNNCellBase)):
                self._hooks.append(module.register_forward_pre_hook(self._before))
                self._hooks.append(module.register_forward_hook(self._after))

    @property
    def total(self) -> int:
        """Operations so far; one multiplication and one addition are two."""
        return self._counter.get_total_flops() + self._fused

    def __enter__(self) -> Operations:
        self._counter.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        self._counter.__exit__(*error)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()

    def _before(self, module: nn.Module, _: Any) -> None:
        self._started[module] = self.total

    def _after(self, module: Any, args: Any, _: Any) -> None:
        if self.total == self._started[module]:
            matrices = sum(weight.numel() for weight in module.parameters() if weight.dim() == 2)
            self._fused += 2 * matrices * (args[0].data.numel() // module.input_size)  # .data: also of packed sequences


class Inspected(BaseException):
    """Ends a trainer whose network is only looked at. rows: see `inspect`."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        super().__init__()
        self.rows = rows


def inspect(model: nn.Module, selector: str = "", count: Callable[[nn.Module], int] = num_params) -> None:
    """Let the next forward pass raise Inspected: parameters, operations and shapes of modules with those inside them.

    selector: of what it matches alone. count: counts the parameters of a module. Raises UserError if nothing matches.

    """
    counter = Operations(model)
    shown = select(model, Line.parse(f"{selector} -> zero")) if selector else dict(model.named_modules())
    rows = {
        name: {"name": name, "type": type(module).__name__, "params": count(module), "flops": 0}
        for name, module in model.named_modules()
    }
    started: dict[str, int] = {}

    def before(name: str, *_: Any) -> None:
        if not name:
            counter.__enter__()
        started[name] = counter.total

    def after(name: str, module: nn.Module, args: Any, named: Any, output: Any) -> None:
        rows[name]["flops"] += counter.total - started[name]
        for key, value in (("input", (args, named)), ("output", output)):
            shapes = [list(leaf.shape) for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
            rows[name].setdefault(key, next(iter(shapes), None))
        if not name:
            counter.__exit__(None, None, None)
            raise Inspected([row for name, row in rows.items() if name in shown])

    for name, module in model.named_modules():
        module.register_forward_pre_hook(functools.partial(before, name))
        module.register_forward_hook(functools.partial(after, name), with_kwargs=True)


# --- Actions that put a stand-in in a module's place


class Stand(nn.Module):
    """Stands in a module's place and gives its input, zeros, or what the module gave in training batches."""

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
            generator = _generator(x, self.training) if self.action == "resample" else None
            output = drawn(self.value, x.shape[:-1], self.action, generator).to(x.dtype)
        self.check.compare(output)
        return (output, *[None] * (self.check.items - 1)) if self.check.items else output


def _generator(x: Tensor, training: bool) -> torch.Generator | None:
    """What `resample` draws from. In training it is torch's default generator (None), which every step seeds.

    A trained network draws the same for the same input, in whatever thread and order.
    """
    if training:
        return None
    total = 0.0 if x.is_meta else x.detach().float().sum().item()
    return torch.Generator().manual_seed(int.from_bytes(struct.pack("<d", total), "little") >> 1)


def drawn(value: Tensor, places: Sequence[int], action: str, generator: torch.Generator | None) -> Tensor:
    """The mean (1, D), or for each place one of the outputs (N, D) of training batches."""
    if action == "mean":
        return value[0].expand(*places, -1)
    return value[torch.randint(len(value), tuple(places), generator=generator).to(value.device)]


class Check:
    """The shape that a module has: computed once, in the first pass. Then the module is no part of the network."""

    def __init__(self, name: str, original: nn.Module) -> None:
        self.name, self.original, self.compared = name, [original], False
        self.shape, self.items = (), 0  # type: tuple[int, ...], int  # of the output; of the tuple that it is in

    def look(self, args: Any, named: Mapping[str, Any]) -> None:
        """Raises UserError for a module whose output is not one tensor."""
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
        """Raises UserError for a stand-in with another shape."""
        shape = tuple(getattr(output[0] if isinstance(output, tuple) else output, "shape", ()))
        if self.shape and not self.compared and shape != self.shape:
            raise UserError(
                f"modules: {self.name} gives {self.shape}, and what the row puts in its place gives {shape}: the "
                "shapes must be equal. Take another action, or a class that keeps the shape."
            )
        self.compared = True


def _stand(line: Line, check: Check, module: nn.Module, model: nn.Module, make: Callable[..., nn.Module]) -> nn.Module:
    """What stands in a module's place. make: of a class of the user without arguments, else with check=."""
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


def _is_of(name: str, packages: Collection[str] | None) -> bool:
    """Whether a dotted name is of one of these packages; None: of any."""
    return packages is None or re.split("[.:]", name)[0] in packages


def _maker(line: Line, packages: Collection[str] | None) -> Callable[..., nn.Module]:
    """Makes the module of `package:Class(arguments)`. Only a subclass of torch.nn.Module can be called.

    Raises UserError if the name is no such class, or of another package, or if an argument is no literal.
    """
    name, _, arguments = line.argument.partition("(")
    package, _, path = name.partition(":")
    refusal = f"a replacement is a class of {' or '.join(sorted(packages or ()))} here"
    if not _is_of(package, packages):
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
    if not _is_of(found.__module__, packages):  # imported there from another package
        raise line.refused(f"{name} is of {found.__module__}, and {refusal}")
    return functools.partial(found, *values, **named)


# --- What modules and heads give in training batches


class _Sum:
    """The sum of outputs over all places, for their mean."""

    def __init__(self, _: torch.Generator) -> None:
        self.sum: Any = 0
        self.places = 0

    def add(self, rows: Tensor) -> None:
        """Rows (N, D) of one batch."""
        self.sum = self.sum + rows.double().sum(0)
        self.places += len(rows)

    def result(self) -> Tensor:
        """(1, D)."""
        mean: Tensor = (self.sum / max(1, self.places)).float().unsqueeze(0)
        return mean


class _Bank:
    """BANK outputs, each drawn evenly from all places of all batches, with replacement."""

    def __init__(self, draws: torch.Generator) -> None:
        self.draws, self.places = draws, 0
        self.rows: Any = None

    def add(self, rows: Tensor) -> None:
        """Rows (N, D) of one batch: each entry becomes one of them with probability N / (places so far)."""
        if not len(rows):
            return
        self.places += len(rows)
        new = rows[torch.randint(len(rows), (BANK,), generator=self.draws).to(rows.device)]
        taken = torch.rand(BANK, 1, generator=self.draws, dtype=torch.float64) < len(rows) / self.places
        self.rows = new if self.rows is None else torch.where(taken.to(rows.device), new, self.rows)

    def result(self) -> Tensor:
        """(BANK, D)."""
        bank: Tensor = self.rows
        return bank


def _from_batches(
    model: nn.Module, found: Found, batches: Sequence[Any], saved: Mapping[str, Tensor] | None
) -> dict[tuple[str, str], Tensor]:
    """The mean (1, D) of the last dimension, or BANK outputs (N, D), by name and action; each place counts once.

    Raises UserError without batches.
    """
    draws, hooks = torch.Generator().manual_seed(0), []
    kept: dict[tuple[str, str], Any] = {}

    def take(key: tuple[str, str], output: Any) -> None:
        rows = (output[0] if isinstance(output, tuple) else output).detach()
        if key in images and rows.dim() > 3:
            raise images[key].refused(f"{key[0]} gives images, and a mean is one of the last dimension")
        kept[key].add(rows.flatten(0, -2))

    images: dict[tuple[str, str], Line] = {}
    for line in [line for line in found if line.action in FROM_BATCHES]:
        for name, module in found[line].items():
            key = (name, line.action)
            if saved is None and not batches:
                raise line.refused("it needs batches of the training: context.ablate(model, batches)")
            if isinstance(module, nn.modules.conv._ConvNd):
                raise line.refused(f"{name} is a convolution, and a mean is one of the last dimension")
            if any(isinstance(inner, (nn.modules.conv._ConvNd, nn.BatchNorm2d)) for inner in module.modules()):
                images[key] = line
            place = _projection(line, name, module)[0] if line.heads else module
            if key in kept:  # of other heads
                continue
            kept[key] = (_Sum if line.action == "mean" else _Bank)(draws)
            if line.heads:
                hooks.append(place.register_forward_pre_hook(lambda _, args, key=key: take(key, args[0])))
            else:
                hooks.append(place.register_forward_hook(lambda _, __, output, key=key: take(key, output)))
    if hooks and saved is None:
        _run(model, batches)
    for hook in hooks:
        hook.remove()
    if saved is not None:
        places = {(name, action): (f"{name}.value", f"{name}.{HEADS}.{action}") for name, action in kept}
        return {key: saved[place if place in saved else of_heads] for key, (place, of_heads) in places.items()}
    return {key: one.result() for key, one in kept.items()}


def _run(model: nn.Module, batches: Iterable[Any]) -> None:
    """Forward passes without gradients or dropout."""
    training, like = model.training, next(model.parameters(), torch.empty(0))
    with torch.no_grad(), torch.random.fork_rng([like.device] if like.is_cuda else []):
        model.eval()
        for batch in batches:
            moved = tree_map_only(Tensor, lambda tensor: tensor.to(like.device), batch)
            named = moved if isinstance(moved, Mapping) else {}
            model(*(moved if isinstance(moved, (tuple, list)) else () if named else (moved,)), **named)
        model.train(training)


# --- Heads of attention: what each gives to the output projection


HEADS = "ablated_heads"
_OUTPUT = ("output", "out_proj", "o_proj", "c_proj", "proj", "out_lin", "dense", "wo", "o", "out")
_COUNT = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads")


def _projection(line: Line, name: str, module: nn.Module) -> tuple[nn.Module, int]:
    """The output projection and the number of heads. Raises UserError for a module without known heads."""
    described = [one for inner in module.modules() for one in (inner, getattr(inner, "config", None))]
    counts = [n for one in described for key in _COUNT for n in [getattr(one, key, None)] if isinstance(n, int)]
    names, places = [], []
    for place, inner in module.named_modules():
        if _leaf(place) in _OUTPUT and _is_product(inner):
            names.append(f"{name}.{place}")
            places.append(inner)
    if not counts or not places:
        raise line.refused(
            f"{name} ({type(module).__name__}) has no heads that are known here: a number of heads "
            f"({', '.join(_COUNT)}) and an output projection ({', '.join(_OUTPUT)})"
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
    """Changes heads in the input (…, count · n) of an output projection; of torch's own attention, in its matrix."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.rules: dict[int, str] = {}

    def before(self, _: nn.Module, args: Any) -> Any:
        return (self(args[0]), *args[1:])

    def forward(self, x: Tensor) -> Tensor:
        heads = torch.unflatten(x, -1, (self.count, -1)).clone()
        generator = _generator(x, self.training) if "resample" in self.rules.values() else None
        for head, action in self.rules.items():
            if action == "zero":
                heads[..., head, :] = 0
            else:
                value = torch.unflatten(getattr(self, action), -1, (self.count, -1))[:, head]
                heads[..., head, :] = drawn(value, heads.shape[:-2], action, generator).to(x.dtype)
        return heads.flatten(-2)


def _change_heads(line: Line, name: str, module: nn.Module, seen: Tensor | None) -> None:
    """Raises UserError for a head that is not there, or that another line changes."""
    place, count = _projection(line, name, module)
    if HEADS not in module._modules:
        module.add_module(HEADS, heads := Heads(count))  # so that it is copied, moved and saved with the network
        if isinstance(module, nn.MultiheadAttention):  # it calls no projection
            parametrize.register_parametrization(place, "weight", heads)
        else:
            place.register_forward_pre_hook(heads.before)
    rules: Any = module._modules[HEADS]
    picked = _picked(range(count), line.heads)
    if not picked or set(picked) & set(rules.rules):
        raise line.refused("another line changes this head" if picked else f"heads are from 0 to {count - 1}")
    rules.rules.update(dict.fromkeys(picked, line.action))
    if seen is not None:
        rules.register_buffer(line.action, seen)


# --- Actions that change a module where it is


def _in_place(line: Line, name: str, module: nn.Module, initialise: Any) -> None:
    """`freeze`, `shrink` and `reinitialise`."""
    if line.action == "freeze":
        module.requires_grad_(False)
    elif line.action == "shrink":
        _shrink(line, name, module)
    elif initialise is not None:
        initialise(module)
    else:
        for place, inner in module.named_modules():
            if hasattr(inner, "reset_parameters"):
                inner.reset_parameters()
            elif next(inner.parameters(recurse=False), None) is not None:
                raise line.refused(f"{name}.{place} has no reset_parameters, which draws its weights")


def _tied_to(model: nn.Module, line: Line, modules: Mapping[str, nn.Module]) -> nn.Module:
    """The module whose parameters the others use. Raises UserError if several are named."""
    if not line.argument:
        return next(iter(modules.values()))
    found = select(model, line._replace(selector=line.argument))
    if len(found) > 1:
        raise line.refused(f"tie needs one module, and {line.argument} matches {len(found)}: {', '.join(found)}")
    return next(iter(found.values()))


def _tie(found: Found, targets: Mapping[Line, nn.Module]) -> None:
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
                    setattr(_owner(module, place), _leaf(place), parameter)
                    changed = True
        if not changed:
            return
    raise ties[0][0].refused("the ties of the row go in a circle")


def _is_product(module: Any) -> bool:
    return getattr(getattr(module, "weight", None), "ndim", 0) == 2 and not isinstance(module, nn.Embedding)


def _sizes(product: Any) -> tuple[int, int]:
    """Inputs and outputs. Conv1D of Hugging Face stores its matrix the other way round."""
    rows, columns = product.weight.shape
    return (columns, rows) if isinstance(product, nn.Linear) else (rows, columns)


def _shrink(line: Line, name: str, module: nn.Module) -> None:
    """Keep a share of the units between the products of a feed-forward network, the first ones."""
    products: list[Any] = [inner for inner in module.modules() if _is_product(inner)]
    if not re.fullmatch(r"0?\.\d+", line.argument):
        raise line.refused("shrink needs a factor between 0 and 1, such as shrink 0.5")
    attends = any(hasattr(inner, key) for inner in module.modules() for key in _COUNT)
    outer = None if attends else _outer(module, products)
    if outer is None:
        raise line.refused(
            f"{name} ({type(module).__name__}) is no feed-forward network known here: products into a width, and a "
            "last one out of it"
        )
    width = _sizes(outer)[0]
    kept = torch.arange(max(1, round(width * float(line.argument))))
    for product in products:  # a gated form may have its two side by side
        if product is not outer:
            blocks = torch.arange(0, _sizes(product)[1], width)
            _cut(product, (blocks[:, None] + kept).flatten(), ("out_features", "nf"))
    _cut(outer, kept, ("in_features", "nx"))


def _outer(module: nn.Module, products: Sequence[Any]) -> Any:
    """The product out of the inner width: the last one that is computed, in whatever order they are registered.

    Where the module cannot be computed alone, the only one that the shapes allow. None if there is none.
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
    """The products in the order in which one position of zeros goes through them; [] where it cannot."""
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
    except Exception:  # whatever a module raises for other inputs than its own
        return []
    finally:
        module.train(training)
        for hook in hooks:
            hook.remove()
    return called


def _cut(product: Any, kept: Tensor, sizes: tuple[str, str]) -> None:
    """Keep these outputs or inputs, whose number the product has under one of the names."""
    out, kept = sizes[0] == "out_features", kept.to(product.weight.device)
    for key, dimension in (("weight", int(out != isinstance(product, nn.Linear))), ("bias", 0)):
        old = getattr(product, key, None)
        if old is not None and (out or key == "weight"):
            setattr(product, key, nn.Parameter(old.detach().index_select(dimension, kept), old.requires_grad))
    for size in sizes:
        if hasattr(product, size):
            setattr(product, size, len(kept))
