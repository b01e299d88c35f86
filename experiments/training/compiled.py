"""torch.compile for the layers of a Transformer: few padded shapes, one graph each, and no silent way back to eager.

Layers are compiled one by one: all of an encoder's, and all of a decoder's, share their graphs, which a whole model
of six would hold six times.
"""

import contextlib
from collections.abc import Iterator
from itertools import chain

import torch
import torch._dynamo.config as dynamo
from torch._dynamo.exc import FailOnRecompileLimitHit

from experiments.data.shapes import MOST_SHAPES
from experiments.errors import UserError
from model.transformer import Transformer

VARIANTS = 2  # graphs of one shape: the throwaway first pass may see other strides


def compile_layers(model: Transformer, backend: str = "inductor") -> None:
    """Compile every layer for the training pass. Weights and their names stay as they are."""
    dynamo.recompile_limit = VARIANTS * MOST_SHAPES
    dynamo.fail_on_recompile_limit_hit = True
    for layer in chain(model.encoder.layers, model.decoder.layers):
        layer.compile(dynamic=False, fullgraph=True, backend=backend)


def eagerly() -> contextlib.AbstractContextManager[None]:
    """Without compiled code: for sets whose sentences have any shape."""
    return torch.compiler.set_stance("force_eager")


@contextlib.contextmanager
def naming_recompiles() -> Iterator[None]:
    """More shapes than were planned would be compiled again and again: a UserError, not a slow training."""
    try:
        yield
    except FailOnRecompileLimitHit as error:
        raise UserError(
            f"training.compile is set, and more than {VARIANTS * MOST_SHAPES} graphs were needed for one layer: "
            "its inputs have other shapes than training planned. Set training.compile to false."
        ) from error
