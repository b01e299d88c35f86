"""Compile the layers of a network with torch.compile, without a silent fallback to eager mode.

Lengths are variables of a graph, so one graph serves many shapes. Each layer is compiled separately, so that equal
layers share their graphs. If a model of six layers were compiled as a whole, its graph would contain the code of a
layer six times. torch's compiler is imported only if needed, because the import takes seconds. The compiler caches code
on disk (in TORCHINDUCTOR_CACHE_DIR, by default the user's folder in the system's temporary folder), so equal layers of
different runs are compiled only once per machine.
"""

import contextlib
from collections.abc import Iterator

import torch

from experiments.errors import UserError
from model.protocol import Network
from model.settings import SIDES

# Maximum number of graphs for one kind of layer. Lengths are variables of a graph. torch compiles a further graph in
# three cases: a size is 1 (torch treats it as a constant), a layer chooses another kernel or window, or the strides
# differ.
GRAPHS = 16


def compile_layers(model: Network, backend: str = "inductor", threads: int = 1) -> None:
    """Compile every layer for training, with `threads` compiler threads. Weights and their names stay the same."""
    import torch._dynamo.config as dynamo
    import torch._inductor.config as inductor
    import torch.fx.experimental._config as symbols

    inductor.compile_threads = threads  # the default is up to 32 threads, even if several runs share the machine
    symbols.use_duck_shape = False  # treat two lengths as two variables even if they are equal in the first batch
    # torch limits the graphs per code object. All kinds of layers share the code of one class.
    kinds = {(side, layer) for side in SIDES for layer in model.config.layers(side)}
    limit = GRAPHS * len(kinds)
    dynamo.recompile_limit, dynamo.accumulated_recompile_limit = limit, max(limit, dynamo.accumulated_recompile_limit)
    dynamo.fail_on_recompile_limit_hit = True
    for layer in model.layers():
        layer.compile(dynamic=True, fullgraph=True, backend=backend)


def eagerly(compiled: bool) -> contextlib.AbstractContextManager[None]:
    """Return a context without compiled code, for sets whose sentences have arbitrary shapes."""
    if not compiled:
        return contextlib.nullcontext()
    eager: contextlib.AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
    return eager


@contextlib.contextmanager
def naming_recompiles() -> Iterator[None]:
    """Return a context that raises UserError if a layer needs more than GRAPHS graphs."""
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
