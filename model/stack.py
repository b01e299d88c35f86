"""The encoder and the decoder: layers of sub-layers, each in its residual connection (section 3.1, figure 1).

`Stepwise` is the state of a search through any such decoder.

Shapes: B sentences, T positions, R rows of a search (sentence by beam), D d_model.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from model.config import LayerSpec, ModelConfig
from model.layers.contract import CacheShape, Inputs, State, StepContext, Sublayer, blocking_bias
from model.parts.distances import share
from model.parts.dropout import Dropout, drawn
from model.parts.norms import make_norm
from model.parts.positions import POSITIONAL
from model.parts.residual import RESIDUAL, deepnorm
from model.settings import Side


class Layer(nn.Module):
    """Sub-layers in sequence, registered and saved by the names of their kinds; a second one of a kind is name_2."""

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
        """(B, T, D) → (B, T, D)."""
        for name in self.names:
            x_BTD = getattr(self, f"{name}_residual")(x_BTD, getattr(self, name), inputs)
        return x_BTD

    def start(self, inputs: Inputs, shape: CacheShape) -> list[State]:
        """The states of the sub-layers for a search (contract.Sublayer.start)."""
        return [self._sublayer(name).start(inputs, shape) for name in self.names]

    def step(self, x_RD: Tensor, states: Sequence[State], now: StepContext) -> Tensor:
        """One more position of every beam: (R, D) → (R, D)."""
        for name, state in zip(self.names, states, strict=True):
            sublayer = self._sublayer(name)
            x_RD = getattr(self, f"{name}_residual").step(x_RD, sublayer, state, now)
        return x_RD

    def _sublayer(self, name: str) -> Sublayer:
        sublayer = getattr(self, name)
        assert isinstance(sublayer, Sublayer)
        return sublayer


class Stack(nn.Module):
    """Positions and dropout, then the layers, then a norm where layers do not end in one."""

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
        # The input takes part in what the decoder reads (Gehring 2017, arXiv 1705.03122, equation 2).
        self.adds_input = side == "encoder" and config.memory_embeddings
        self.beta = deepnorm(config, side)[1] if config.residual_scale == "deepnorm" else 1.0

    def __iter__(self) -> Iterator[Layer]:
        """The layers in the order in which they compute; those of a group are one."""
        for place in self.order:
            yield self.layers[place]  # type: ignore[misc]  # or its stand-in (experiments/training/network_rows.py)

    def forward(self, x_BTD: Tensor, inputs: Inputs) -> Tensor:
        """Embedded pieces (B, T, D) → (B, T, D): the memory of an encoder, the hidden states of a decoder."""
        x_BTD = input_BTD = self.dropout(self.embedding_norm(self.positions(x_BTD)))
        for layer in self:
            # LayerDrop (Fan 2019, arXiv 1909.11556): whole layers are left out of a training step.
            if not (self.training and self.layer_drop and drawn(self.layer_drop)):
                x_BTD = layer(x_BTD, inputs)
        output_BTD: Tensor = self.final_norm(x_BTD)
        return output_BTD + input_BTD if self.adds_input else output_BTD

    def shrink(self) -> None:
        """Multiply first weights by DeepNorm's β."""
        for module in self.modules() if self.beta != 1 else ():
            if isinstance(module, Sublayer):
                module.shrink(self.beta)


# --- The state of a search, one position at a time, for any architecture (model/fast.py has a quicker one for some)
# Shapes: B sentences, T time steps, K beams, R = B·K rows, D d_model, W vocabulary. Masks: True = may attend.


class Ends(NamedTuple):
    """What a network does before and after its decoder."""

    embed: Callable[[Tensor], Tensor]  # pieces (R,) → (R, D)
    finish: Callable[[Tensor], Tensor]  # the decoder's output (…, D) → hidden states
    logits: Callable[[Tensor], Tensor]  # hidden states → (…, W)
    like: Tensor  # (…, D), for the type and the device


class Stepwise:
    """What all sub-layers of a decoder keep between steps. `step` is the next position's index."""

    def __init__(self, decoder: Stack, ends: Ends, inputs: Inputs, shape: CacheShape, attends: bool = False) -> None:
        self.decoder, self.ends = decoder, ends
        self.num_sentences, self.beam_size, self.max_steps = shape
        self.layers: list[list[State]] = [layer.start(inputs, shape) for layer in decoder]
        self.positions_TD = decoder.positions(ends.like.new_zeros(1, shape.max_steps, ends.like.shape[-1]))[0]
        self.inputs = inputs._replace(memory_BMD=None)  # states hold what they need of it
        self.weights_LBKM: list[Tensor] | None = [] if attends else None  # of each attention to the source, last step
        self.step = 0

    def keep(self, sentences: Sequence[int]) -> None:
        """Keep only the named sentences, in the order of the names."""
        index = torch.tensor(sentences, device=self.positions_TD.device)
        for state in (state for states in self.layers for state in states):
            state.keep(index)
        self.inputs = Inputs(self.inputs.causal, *(None if x is None else x[index] for x in self.inputs[1:]))
        self.num_sentences = len(sentences)

    def attention(self) -> Tensor:
        """(B, K, S) of the last step (SearchState.attention)."""
        assert self.weights_LBKM is not None
        return torch.stack(self.weights_LBKM).mean(0)

    def decode_step(self, tokens_BK: Tensor, visible_BKTK: Tensor | None) -> Tensor:
        """Hidden states (B, K, D) after reading one more piece per beam (Network.decode_step)."""
        bias, parents_R = self._past(visible_BKTK)
        if self.weights_LBKM is not None:
            self.weights_LBKM = []
        now = StepContext(self.step, self.beam_size, parents_R, bias, self.inputs, self.weights_LBKM)
        x_RD = self.decoder.embedding_norm(self.ends.embed(tokens_BK.flatten()) + self.positions_TD[self.step])
        for layer, states in zip(self.decoder, self.layers, strict=True):
            x_RD = layer.step(x_RD, states, now)
        self.step += 1
        hidden_RD = self.ends.finish(self.decoder.final_norm(x_RD))
        return hidden_RD.view(*tokens_BK.shape, -1)

    def next_logits(self, hidden_BKD: Tensor) -> Tensor:
        """(B, K, D) → (B, K, W), contiguous: without the columns of padding, which lie between the rows."""
        return self.ends.logits(hidden_BKD).contiguous()

    def _past(self, visible_BKTK: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """The bias over slots and the parents, from the mask of ancestors. Raises ValueError for another shape."""
        check_ancestors(visible_BKTK, self.num_sentences, self.beam_size, self.step)
        if visible_BKTK is None:
            return None, None
        bias = blocking_bias(visible_BKTK.flatten(2), self.positions_TD.dtype).unsqueeze(1)
        if not self.step:
            return bias, None
        parents_BK = visible_BKTK[:, :, self.step - 1].to(torch.uint8).argmax(-1)
        first_B1 = torch.arange(0, parents_BK.numel(), self.beam_size, device=parents_BK.device).unsqueeze(1)
        return bias, (parents_BK + first_B1).flatten()


def check_ancestors(visible_BKTK: Tensor | None, sentences: int, beam_size: int, step: int) -> None:
    """Raises ValueError for a mask of ancestors of another shape, or a missing one with several beams."""
    shape = (sentences, beam_size, step + 1, beam_size)
    if visible_BKTK is None:
        if beam_size > 1:
            raise ValueError(f"{beam_size} beams need a mask of ancestors, bool of shape {shape}")
    elif visible_BKTK.shape != shape:
        raise ValueError(f"mask of ancestors has shape {tuple(visible_BKTK.shape)}, needs {shape}")
