"""Change a network by lines such as `layers.*.attn -> identity`. Needs Python 3.8 and torch alone.

In the process of a trainer this package is `ablations_task.modules`, which `context.ablate` calls. torch is imported
where a row changes a network.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def change(context: Any, model: Any, batches: Iterable[Any], lines: Sequence[str] | None) -> None:
    """Change a network in place as the lines say, and record how. Raises UserError for lines that do not fit."""
    if not lines:
        return
    from .ablate import ablate

    facts = ablate(model, lines, batches)
    context.facts(num_params=facts["params_after"], **facts)
    print("modules:", json.dumps(facts), file=sys.stderr, flush=True)


def answer(trainer: Any, settings: Any, request: Mapping[str, Any], context: Any) -> dict[str, Any]:
    """The modules of a trainer's network in one batch, with the row's lines applied. Raises UserError."""
    from .function import inspected

    return {"rows": inspected(trainer, settings, request["lines"], request["selector"], context)}
