"""Change a network by lines such as `layers.*.attn -> identity`. Needs only Python 3.8 and torch.

In the process of a trainer, this package is `ablations_task.modules`, and `context.ablate` calls it. It imports torch
only if a row changes a network.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def change(context: Any, model: Any, batches: Iterable[Any], lines: Sequence[str] | None) -> None:
    """Apply the lines to a network in place, and record the facts. Raises UserError for lines that do not fit."""
    if not lines:
        return
    from .ablate import ablate

    facts = ablate(model, lines, batches)
    context.facts(num_params=facts["params_after"], **facts)
    print("modules:", json.dumps(facts), file=sys.stderr, flush=True)


def answer(trainer: Any, settings: Any, request: Mapping[str, Any], context: Any) -> dict[str, Any]:
    """Return the modules of a trainer's network for one batch, with the row's lines applied.

    Raises UserError as `inspected` does.
    """
    from .function import inspected

    return {"rows": inspected(trainer, settings, request["lines"], request["selector"], context)}
