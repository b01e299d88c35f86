"""The encoder and decoder stacks: layers of sub-layers, each with a residual connection (section 3.1, figure 1).

Shapes: B sentences, T positions, R rows of a search (sentence by beam), D d_model.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from torch import Tensor, nn

from model.config import LayerSpec, ModelConfig
from model.layers.contract import CacheShape, Inputs, State, StepContext, Sublayer
from model.parts.distances import share
from model.parts.dropout import Dropout, drawn
from model.parts.norms import make_norm
from model.parts.positions import POSITIONAL
from model.parts.residual import RESIDUAL, deepnorm
from model.settings import Side


class Layer(nn.Module):
    """A sequence of sub-layers. Each module is named after its kind; the second one of a kind is named KIND_2."""

    def __init__(self, sublayers: LayerSpec, side: Side) -> None:
        super().__init__()
        seen: Counter[str] = Counter()
        self.names: list[str] = []
        for part in sublayers:
            seen[part.kind] += 1
            self.names.append(part.kind if seen[part.kind] == 1 else f"{part.kind}_{seen[part.kind]}")
        for name, part in zip(self.names, sublayers, strict=True):
            self.add_module(name, part.options.build(part.config))
        for name, part in zip(self.names, sublayers, strict=True):
            self.add_module(f"{name}_residual", RESIDUAL[part.config.norm](part.config, side))

    def forward(self, x_BTD: Tensor, inputs: Inputs) -> Tensor:
        """Apply the sub-layers in sequence: (B, T, D) → (B, T, D)."""
        for name in self.names:
            x_BTD = getattr(self, f"{name}_residual")(x_BTD, getattr(self, name), inputs)
        return x_BTD

    def start(self, inputs: Inputs, shape: CacheShape) -> list[State]:
        """Return the states of the sub-layers for a search (contract.Sublayer.start)."""
        return [self._sublayer(name).start(inputs, shape) for name in self.names]

    def step(self, x_RD: Tensor, states: Sequence[State], now: StepContext) -> Tensor:
        """Compute one more position of every beam: (R, D) → (R, D)."""
        for name, state in zip(self.names, states, strict=True):
            sublayer = self._sublayer(name)
            x_RD = getattr(self, f"{name}_residual").step(x_RD, sublayer, state, now)
        return x_RD

    def _sublayer(self, name: str) -> Sublayer:
        sublayer = getattr(self, name)
        assert isinstance(sublayer, Sublayer)
        return sublayer


class Stack(nn.Module):
    """A stack of layers. Before the first layer, positions are added to the input, and dropout is applied.

    If `norm` is "pre" or "sandwich", a norm follows the last layer.
    """

    def __init__(self, config: ModelConfig, side: Side) -> None:
        super().__init__()
        self.positions: nn.Module = POSITIONAL[config.positions](config)
        self.dropout = Dropout(config.dropout)
        # Layers of a group share one set of weights: ALBERT (Lan 2019, arXiv 1909.11942, section 3.1) has one group.
        self.order = config.groups(side)
        own = dict(zip(self.order, config.layers(side), strict=True))
        self.layers = nn.ModuleList(Layer(layer, side) for layer in own.values())
        share(self.layers)
        self.layer_drop = config.layer_drop
        self.embedding_norm: nn.Module = make_norm(config) if config.embedding_norm else nn.Identity()
        self.final_norm: nn.Module = make_norm(config) if config.norm in ("pre", "sandwich") else nn.Identity()
        # With memory_embeddings, the decoder reads output + input (Gehring 2017, arXiv 1705.03122, equation 2).
        self.adds_input = side == "encoder" and config.memory_embeddings
        self.beta = deepnorm(config, side)[1] if config.residual_scale == "deepnorm" else 1.0

    def __iter__(self) -> Iterator[Layer]:
        """Yield the layers in the order of computation. A module that several layers share is yielded several times."""
        for place in self.order:
            yield self.layers[place]  # type: ignore[misc]  # an extra may have replaced the layer

    def forward(self, x_BTD: Tensor, inputs: Inputs) -> Tensor:
        """Map embedded pieces (B, T, D) to the memory of an encoder or the hidden states of a decoder, (B, T, D)."""
        x_BTD = input_BTD = self.dropout(self.embedding_norm(self.positions(x_BTD)))
        for layer in self:
            # LayerDrop (Fan 2019, arXiv 1909.11556): a training step skips whole layers at random.
            if not (self.training and self.layer_drop and drawn(self.layer_drop)):
                x_BTD = layer(x_BTD, inputs)
        output_BTD: Tensor = self.final_norm(x_BTD)
        return output_BTD + input_BTD if self.adds_input else output_BTD

    def shrink(self) -> None:
        """Multiply the initial weights by DeepNorm's β."""
        for module in self.modules() if self.beta != 1 else ():
            if isinstance(module, Sublayer):
                module.shrink(self.beta)
