"""torch.compile for the layers of a Transformer: few padded shapes, one graph each, and no silent way back to eager.

Layers are compiled one by one: all of an encoder's, and all of a decoder's, share their graphs, which a whole model
of six would hold six times. torch's compiler is imported only where it is asked for: that takes seconds.
"""

import contextlib
from collections.abc import Iterator
from itertools import chain

import torch

from experiments.data.batches.shapes import MOST_SHAPES
from experiments.errors import UserError
from model.transformer import Transformer

GRAPHS = 2 * MOST_SHAPES  # of one kind of layer: micro-batches that no shape holds are cut, and strides may differ


def compile_layers(model: Transformer, backend: str = "inductor") -> None:
    """Compile every layer for the training pass. Weights and their names stay as they are."""
    import torch._dynamo.config as dynamo

    dynamo.recompile_limit = GRAPHS
    dynamo.fail_on_recompile_limit_hit = True
    for layer in chain(model.encoder.layers, model.decoder.layers):
        layer.compile(dynamic=False, fullgraph=True, backend=backend)


def eagerly(compiled: bool) -> contextlib.AbstractContextManager[None]:
    """Without compiled code: for sets whose sentences have any shape."""
    if not compiled:
        return contextlib.nullcontext()
    eager: contextlib.AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
    return eager


@contextlib.contextmanager
def naming_recompiles() -> Iterator[None]:
    """More shapes than were planned would be compiled again and again: a UserError, not a slow training."""
    try:
        yield
    except Exception as error:
        if type(error).__name__ != "FailOnRecompileLimitHit":
            raise
        raise UserError(
            f"training.compile is set, and one kind of layer met more than {GRAPHS} shapes of input, which would be "
            "compiled again and again. Set training.compile to false, or training.tokens_per_batch to another number. "
            "No checkpoint was changed."
        ) from error
