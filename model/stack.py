"""The encoder and the decoder: layers of sub-layers, each in its residual connection (section 3.1, figure 1).

Shapes: B sentences, T positions, R rows of a search (sentence by beam), D d_model.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from model import architecture
from model.config import ModelConfig
from model.kinds.kind import Side
from model.parts.distances import share
from model.parts.dropout import Dropout, drawn
from model.parts.norms import make_norm
from model.parts.positions import POSITIONAL
from model.parts.residual import RESIDUAL
from model.sublayers.attention import CrossAttention, SelfAttention
from model.sublayers.attentional_lstm import AttentionalLSTM
from model.sublayers.average import Average
from model.sublayers.contract import Given, Now, Room, State, Sublayer
from model.sublayers.convolution import Convolution
from model.sublayers.experts import Experts
from model.sublayers.feed_forward import FeedForward
from model.sublayers.memory import LastState, SamePosition
from model.sublayers.recurrent import Recurrent

SUBLAYERS: dict[str, Callable[[ModelConfig, Any], Sublayer]] = {  # built with the settings and the options of the kind
    "self_attention": SelfAttention,
    "cross_attention": CrossAttention,
    "feed_forward": FeedForward,
    "rnn": Recurrent,
    "gru": Recurrent,
    "lstm": Recurrent,
    "convolution": Convolution,
    "average": Average,
    "experts": Experts,
    "last_state": LastState,
    "same_position": SamePosition,
    "attentional_lstm": AttentionalLSTM,
}


class Layer(nn.Module):
    """Sub-layers in sequence, registered and saved by the names of their kinds; a second one of a kind is name_2."""

    def __init__(self, sublayers: Sequence[architecture.Sublayer], side: Side) -> None:
        super().__init__()
        seen: Counter[str] = Counter()
        self.names: list[str] = []
        for part in sublayers:
            seen[part.kind] += 1
            self.names.append(part.kind if seen[part.kind] == 1 else f"{part.kind}_{seen[part.kind]}")
        for name, part in zip(self.names, sublayers, strict=True):
            self.add_module(name, SUBLAYERS[part.kind](part.config, part.options))
        for name, part in zip(self.names, sublayers, strict=True):
            self.add_module(f"{name}_residual", RESIDUAL[part.config.norm](part.config, side))

    def forward(self, x_BTD: Tensor, given: Given) -> Tensor:
        """(B, T, D) → (B, T, D)."""
        for name in self.names:
            x_BTD = getattr(self, f"{name}_residual")(x_BTD, getattr(self, name), given)
        return x_BTD

    def start(self, given: Given, room: Room) -> list[State]:
        """The states of the sub-layers for a search (contract.Sublayer.start)."""
        return [self._sublayer(name).start(given, room) for name in self.names]

    def step(self, x_RD: Tensor, states: Sequence[State], now: Now) -> Tensor:
        """One more position of every beam: (R, D) → (R, D)."""
        for name, state in zip(self.names, states, strict=True):
            sublayer = self._sublayer(name)
            x_RD = getattr(self, f"{name}_residual").step(x_RD, sublayer, state, now)
        return x_RD

    def _sublayer(self, name: str) -> Sublayer:
        found = getattr(self, name)
        assert isinstance(found, Sublayer)
        return found


class Stack(nn.Module):
    """Positions and dropout, then the layers, then a norm where layers do not end in one."""

    def __init__(self, config: ModelConfig, side: Side) -> None:
        super().__init__()
        self.positions: nn.Module = POSITIONAL[config.positions](config)
        self.dropout = Dropout(config.dropout)
        # Layers of a group share one set of weights: ALBERT (Lan 2019, arXiv 1909.11942, section 3.1) has one group.
        self.order = architecture.groups(config, side)
        own = dict(zip(self.order, architecture.layers(config, side), strict=True))
        self.layers = nn.ModuleList(Layer(layer, side) for layer in own.values())
        share(self.layers)
        self.layer_drop = config.layer_drop
        self.embedding_norm: nn.Module = make_norm(config) if config.embedding_norm else nn.Identity()
        self.final_norm: nn.Module = make_norm(config) if config.norm in ("pre", "sandwich") else nn.Identity()
        # The input takes part in what the decoder reads (Gehring 2017, arXiv 1705.03122, equation 2).
        self.adds_input = side == "encoder" and config.memory_embeddings
        self.beta = architecture.deepnorm(config, side)[1] if config.residual_scale == "deepnorm" else 1.0

    def __iter__(self) -> Iterator[Layer]:
        """The layers in the order in which they compute; those of a group are one."""
        for place in self.order:
            layer = self.layers[place]
            assert isinstance(layer, Layer)
            yield layer

    def forward(self, x_BTD: Tensor, given: Given) -> Tensor:
        """Embedded pieces (B, T, D) → (B, T, D): the memory of an encoder, the hidden states of a decoder."""
        x_BTD = input_BTD = self.dropout(self.embedding_norm(self.positions(x_BTD)))
        for layer in self:
            # LayerDrop (Fan 2019, arXiv 1909.11556): whole layers are left out of a training step.
            if not (self.training and self.layer_drop and drawn(self.layer_drop)):
                x_BTD = layer(x_BTD, given)
        output_BTD: Tensor = self.final_norm(x_BTD)
        return output_BTD + input_BTD if self.adds_input else output_BTD

    def shrink(self) -> None:
        """Multiply first weights by DeepNorm's β."""
        for module in self.modules() if self.beta != 1 else ():
            if isinstance(module, Sublayer):
                module.shrink(self.beta)
