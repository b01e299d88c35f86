"""The state of a search with any decoder, one position at a time. quick.py has a faster search for some decoders.

Shapes: B sentences, T time steps, K beams, R = B·K rows, S source, M = S, L layers, D d_model,
W vocabulary. Masks: True = may attend.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from model.layers.contract import CacheShape, Inputs, State, StepContext
from model.layers.masks import blocking_bias
from model.stack import Stack


class Ends(NamedTuple):
    """The computations of a network before and after its decoder."""

    embed: Callable[[Tensor], Tensor]  # pieces (R,) → (R, D)
    finish: Callable[[Tensor], Tensor]  # the decoder's output (…, D) → hidden states
    logits: Callable[[Tensor], Tensor]  # hidden states → (…, W)
    like: Tensor  # any tensor (…, D) with the type and the device of the embedded pieces


class Stepwise:
    """State of all sub-layers of a decoder between steps. `step` is the index of the next position."""

    def __init__(self, decoder: Stack, ends: Ends, inputs: Inputs, shape: CacheShape, attends: bool = False) -> None:
        self.decoder, self.ends = decoder, ends
        self.num_sentences, self.beam_size, self.max_steps = shape
        self.layers: list[list[State]] = [layer.start(inputs, shape) for layer in decoder]
        self.positions_TD = decoder.positions(ends.like.new_zeros(1, shape.max_steps, ends.like.shape[-1]))[0]
        self.inputs = inputs._replace(memory_BMD=None)  # the sub-layers' states store what they need of the memory
        # Attention weights of the last step, one tensor per sub-layer that attends to the source.
        self.weights_LBKM: list[Tensor] | None = [] if attends else None
        self.step = 0

    def keep(self, sentences: Sequence[int]) -> None:
        """Keep only the sentences with these indices, in this order."""
        index = torch.tensor(sentences, device=self.positions_TD.device)
        for state in (state for states in self.layers for state in states):
            state.keep(index)
        self.inputs = Inputs(self.inputs.causal, *(None if x is None else x[index] for x in self.inputs[1:]))
        self.num_sentences = len(sentences)

    def attention(self) -> Tensor:
        """Return the attention of the last step, (B, K, S) (SearchState.attention)."""
        assert self.weights_LBKM is not None
        return torch.stack(self.weights_LBKM).mean(0)

    def decode_step(self, tokens_BK: Tensor, visible_BKTK: Tensor | None) -> Tensor:
        """Return hidden states (B, K, D) after one more piece per beam (Network.decode_step)."""
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
        """Return the logits (B, K, W) of hidden states (B, K, D), contiguous, without the columns of padding rows."""
        return self.ends.logits(hidden_BKD).contiguous()

    def _past(self, visible_BKTK: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Derive the bias over slots and the parent row of each beam from the mask of ancestors."""
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
    """Raise ValueError if the mask of ancestors has the wrong shape, or if there are several beams and no mask."""
    shape = (sentences, beam_size, step + 1, beam_size)
    if visible_BKTK is None:
        if beam_size > 1:
            raise ValueError(f"{beam_size} beams need a mask of ancestors, bool of shape {shape}")
    elif visible_BKTK.shape != shape:
        raise ValueError(f"mask of ancestors has shape {tuple(visible_BKTK.shape)}, needs {shape}")
