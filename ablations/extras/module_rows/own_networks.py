"""Apply lines to the networks of this program: to their layers, sub-layers and heads.

Shapes: B sentences, S source, R rows of a search, D d_model.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ablations.extras.module_rows.client.modules.ablate import ablate
from ablations.extras.module_rows.client.modules.stands import Stand
from experiments.data.collate import Batch
from experiments.data.encoding.tokenizer import PAD_ID
from experiments.errors import UserError
from model.layers.contract import CacheShape, Inputs, State, Sublayer
from model.network import EncoderDecoder, initialise, num_params
from model.parts.embedding import Embedding
from model.stack import Layer, Stack

PACKAGES = ("torch", "model")  # packages whose classes may replace a module


class Stepping(Stand, Sublayer):
    """The replacement of a module that a search calls step by step: a sub-layer or a residual connection."""

    def start(self, inputs: Inputs, shape: CacheShape) -> Any:
        return State()

    def step(self, x_RD: Tensor, *_: Any) -> Tensor:
        self.check.original.clear()  # passes over whole sequences have already checked the shape
        output_RD: Tensor = self.forward(x_RD)
        return output_RD


class OfLayer(Stepping):
    """The replacement of a layer. In a search, the state of a layer is a list."""

    def start(self, inputs: Inputs, shape: CacheShape) -> Any:
        return []


def change_network(
    model: nn.Module,
    lines: Sequence[str],
    batches: Iterable[Batch[Tensor]] = (),
    saved: Mapping[str, Tensor] | None = None,
    seed: int | None = None,
) -> dict[str, Any]:
    """Change a network in place and return facts for the record.

    Searches then use the general path instead of the fast one (model/search/quick.py). saved: the weights of a network
    with the same changes; they contain the fixed outputs of `mean` and `resample`. seed: seed of `reinitialise` in a
    trained network; with None, torch's current random state is used. Raises UserError as `ablate` does.
    """
    if not lines:
        return {}
    assert isinstance(model, EncoderDecoder)
    model.quick = False

    def own(module: nn.Module, action: str) -> type[Stand] | None:
        if isinstance(module, Stack | Embedding) or (":" in action and isinstance(module, Sublayer)):
            raise UserError(
                f'modules: "{action}" cannot stand for a {type(module).__name__} of this program\'s networks, which a '
                "search calls in several ways: change a module inside it, or write another line of model.decoder."
            )
        return OfLayer if isinstance(module, Layer) else Stepping if hasattr(module, "step") else None

    with torch.random.fork_rng([], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        pairs = ((b.source, _mask(b.source), b.target_input) for b in batches)
        return ablate(
            model,
            lines,
            pairs,
            own=own,
            initialise=initialise,  # type: ignore[arg-type]
            saved=saved,
            count=num_params,
            packages=PACKAGES,
        )


def _mask(source_BS: Tensor) -> Tensor | None:
    return source_BS != PAD_ID if source_BS.numel() else None
