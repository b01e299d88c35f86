"""torch.compile for the layers of a network: one graph for all shapes, and never a silent return to eager.

Layers are compiled one by one: equal layers share their graphs. A whole model of six layers would hold each graph six
times. torch's compiler is imported only if needed, because its import takes seconds. It keeps its code on disk
(TORCHINDUCTOR_CACHE_DIR, otherwise a folder of the user in the system's temporary folder), so equal layers are compiled
once on a machine, whichever runs have them.
"""

import contextlib
from collections.abc import Iterator

import torch

from experiments.errors import UserError
from model.protocol import Network
from model.settings import SIDES

# Graphs of one kind of layer. Lengths are variables of a graph. What splits it: a size of 1, which torch treats as a
# constant, and the lengths between which a layer chooses a kernel or a window; strides may differ as well.
GRAPHS = 16


def compile_layers(model: Network, backend: str = "inductor", threads: int = 1) -> None:
    """Compile every layer for training, on so many threads. Weights and their names stay the same."""
    import torch._dynamo.config as dynamo
    import torch._inductor.config as inductor
    import torch.fx.experimental._config as symbols

    inductor.compile_threads = threads  # its own choice is every core, for each of the runs beside it
    symbols.use_duck_shape = False  # two lengths that are equal in the first batch are still two variables
    # All layers run the code of one class, and torch counts the graphs of a piece of code, not of a kind of layer.
    kinds = {(side, layer) for side in SIDES for layer in model.config.layers(side)}
    limit = GRAPHS * len(kinds)
    dynamo.recompile_limit, dynamo.accumulated_recompile_limit = limit, max(limit, dynamo.accumulated_recompile_limit)
    dynamo.fail_on_recompile_limit_hit = True
    for layer in model.layers():
        layer.compile(dynamic=True, fullgraph=True, backend=backend)


def eagerly(compiled: bool) -> contextlib.AbstractContextManager[None]:
    """Run without compiled code: for sets with sentences of any shape."""
    if not compiled:
        return contextlib.nullcontext()
    eager: contextlib.AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
    return eager


@contextlib.contextmanager
def naming_recompiles() -> Iterator[None]:
    """Raise UserError if more graphs are needed than planned, instead of compiling again and again."""
    try:
        yield
    except Exception as error:
        if type(error).__name__ != "FailOnRecompileLimitHit":
            raise
        raise UserError(
            f"training.compile is set, but a kind of layer needs more than {GRAPHS} graphs, because something in it "
            "differs from batch to batch, and would be compiled again and again. Set training.compile to false. "
            "No checkpoint was changed."
        ) from error
