"""Describe the modules of a network: their parameters, operations, and the shapes of one batch."""

from __future__ import annotations

import functools
from typing import Any, Callable

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from .ablate import num_params
from .selectors import Line, select


class Operations:
    """A counter of the operations of forward and backward passes in a `with` block.

    torch's counter counts them, but it counts 0 for fused recurrent layers. For these layers, this class adds two
    operations for each weight of a matrix and each position of the forward pass.
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
        """Number of operations so far. One multiplication and one addition count as two."""
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
            # `.data` also works for packed sequences.
            self._fused += 2 * matrices * (args[0].data.numel() // module.input_size)


class Inspected(BaseException):
    """Raised to end a trainer after its network has been inspected. rows: the modules (see `inspect`)."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        super().__init__()
        self.rows = rows


def inspect(model: nn.Module, selector: str = "", count: Callable[[nn.Module], int] = num_params) -> None:
    """Install hooks that make the next forward pass raise Inspected, with the description of each module.

    A description has the parameters and operations, including those of modules inside, and the shapes. selector:
    describe only modules that it matches. count: counts the parameters of a module. Raises UserError if nothing
    matches.
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
