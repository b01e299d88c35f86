"""Run a trainer until its network has computed one batch, and describe the modules of the network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..errors import UserError
from .ablate import ablate
from .inspection import Inspected, inspect

NEVER = (
    "The row changes modules, and no network that the trainer gave to `model = context.ablate(model)` has computed a "
    "batch. Add the line where the network is built, before its optimizer is."
)


def inspected(trainer: Any, settings: Any, lines: Sequence[str], selector: str, context: Any) -> list[dict[str, Any]]:
    """Return the modules of a trainer's network as `inspect` describes them, with the lines applied.

    Reports of the trainer are discarded. Classes of packages other than torch are neither imported nor called. Raises
    UserError for lines that do not fit, and for a trainer that passes no network to `context.ablate`.
    """

    def change(model: Any, batches: Iterable[Any] = ()) -> Any:
        if lines:
            ablate(model, lines, batches, packages=("torch",), planning=True)
        inspect(model, selector)
        return model

    def refuse(*_: Any, **__: Any) -> Any:
        raise UserError(NEVER)

    context.ablate, context.log, context.checkpoint = change, refuse, refuse
    context.progress = lambda *_, **__: None
    try:
        trainer.run(settings, context)
    except Inspected as found:
        return found.rows
    raise UserError(NEVER)
