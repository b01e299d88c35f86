"""torch.compile for the layers of a network: few padded shapes, one graph each, and never a silent return to eager.

Layers are compiled one by one: equal layers share their graphs. A whole model of six layers would hold each graph six
times. torch's compiler is imported only if needed, because it takes seconds.
"""

import contextlib
from collections.abc import Iterator

import torch

from experiments.data.batches.shapes import MOST_SHAPES
from experiments.errors import UserError
from model import architecture
from model.protocol import Network

GRAPHS = 2 * MOST_SHAPES  # graphs of one kind of layer: too large micro-batches are cut, and strides may differ


def compile_layers(model: Network, backend: str = "inductor") -> None:
    """Compile every layer for training. Weights and their names stay the same."""
    import torch._dynamo.config as dynamo

    # All layers run the code of one class, and torch counts the graphs of a piece of code, not of a kind of layer.
    kinds = {(side, layer) for side in architecture.SIDES for layer in architecture.layers(model.config, side)}
    limit = GRAPHS * len(kinds)
    dynamo.recompile_limit, dynamo.accumulated_recompile_limit = limit, max(limit, dynamo.accumulated_recompile_limit)
    dynamo.fail_on_recompile_limit_hit = True
    for layer in model.layers():
        layer.compile(dynamic=False, fullgraph=True, backend=backend)


def eagerly(compiled: bool) -> contextlib.AbstractContextManager[None]:
    """Run without compiled code: for sets with sentences of any shape."""
    if not compiled:
        return contextlib.nullcontext()
    eager: contextlib.AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
    return eager


@contextlib.contextmanager
def naming_recompiles() -> Iterator[None]:
    """Raise UserError if more shapes occur than planned, instead of compiling again and again."""
    try:
        yield
    except Exception as error:
        if type(error).__name__ != "FailOnRecompileLimitHit":
            raise
        raise UserError(
            f"training.compile is set, but a kind of layer got more than {GRAPHS} input shapes, which would be "
            "compiled again and again. Set training.compile to false, or change training.tokens_per_batch. "
            "No checkpoint was changed."
        ) from error
