"""What a decoder remembers between steps of a beam search.

Shapes: B sentences, S source, T time steps, K beams, H heads; keys and values end in their width n (d_k or d_v).

Nothing is ever reordered. A beam's past is a path through (time, beam) slots; every beam's query meets all slots of
its sentence, and a bias blocks those that are not its ancestors. Keys and values of the source are held once per
sentence.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from model.stepping import StepWeights


@dataclass
class LayerCache:
    """One decoder layer's keys and values. Self-attention's are (B, H, T, K, n), written in place at their time."""

    memory_keys: Tensor  # (B, H, S, d_k)
    memory_values: Tensor  # (B, H, S, d_v)
    self_keys: Tensor
    self_values: Tensor

    @classmethod
    def start(
        cls, memory_keys: Tensor, memory_values: Tensor, beam_size: int, max_steps: int, dtype: torch.dtype
    ) -> "LayerCache":
        """Room for max_steps positions; all in `dtype`."""

        def room(like: Tensor) -> Tensor:
            sentences, heads, _, width = like.shape
            return like.new_empty(sentences, heads, max_steps, beam_size, width, dtype=dtype)

        memory = (part.to(dtype).contiguous() for part in (memory_keys, memory_values))
        return cls(*memory, room(memory_keys), room(memory_values))

    def append(self, keys_BHKn: Tensor, values_BHKn: Tensor, time: int) -> tuple[Tensor, Tensor]:
        """Write the slots of `time`; return all slots so far, (B·H, (time + 1)·K, n), as views."""
        return _append(self.self_keys, keys_BHKn, time), _append(self.self_values, values_BHKn, time)

    def keep(self, sentences: Tensor, steps: int) -> None:
        """Only these sentences from here on; `steps` positions are in use."""
        self.memory_keys = self.memory_keys.index_select(0, sentences)
        self.memory_values = self.memory_values.index_select(0, sentences)
        self.self_keys = _select_used(self.self_keys, sentences, steps)
        self.self_values = _select_used(self.self_values, sentences, steps)


def _append(slots_BHTKn: Tensor, new_BHKn: Tensor, time: int) -> Tensor:
    slots_BHTKn.select(2, time).copy_(new_BHKn)
    B, H, T, K, n = slots_BHTKn.shape
    return slots_BHTKn.view(B * H, T * K, n).narrow(1, 0, (time + 1) * K)


def _select_used(slots: Tensor, sentences: Tensor, steps: int) -> Tensor:
    kept = slots.new_empty(len(sentences), *slots.shape[1:])
    kept[:, :, :steps] = slots[:, :, :steps].index_select(0, sentences)
    return kept


@dataclass
class DecoderState:
    """The caches of all layers. `step` counts the positions written: the next one's index, from 0."""

    weights: "StepWeights"
    layers: list[LayerCache]
    source_bias: Tensor | None  # (B·H, 1, S)
    beam_size: int
    max_steps: int
    step: int = 0

    @property
    def num_sentences(self) -> int:
        return len(self.layers[0].memory_keys)

    def keep(self, sentence_index: Tensor) -> None:
        """Drop every sentence that is not named in `sentence_index` (long, (B',)), and take the order it has."""
        sentences = self.num_sentences
        for cache in self.layers:
            cache.keep(sentence_index, self.step)
        if self.source_bias is not None:
            heads = len(self.source_bias) // sentences
            by_sentence = self.source_bias.unflatten(0, (sentences, heads))
            self.source_bias = by_sentence.index_select(0, sentence_index).flatten(0, 1)

    def ancestor_bias(self, visible_BKTK: Tensor | None) -> Tensor | None:
        """(B·H, K, (step + 1)·K) from the mask of ancestors, True = may attend; None: a single beam sees all.

        Raises ValueError for a mask of another shape, or none where there are several beams.
        """
        shape = (self.num_sentences, self.beam_size, self.step + 1, self.beam_size)
        if visible_BKTK is None:
            if self.beam_size > 1:
                raise ValueError(f"{self.beam_size} beams need a mask of ancestors, bool of shape {shape}")
            return None
        if visible_BKTK.shape != shape:
            raise ValueError(f"mask of ancestors has shape {tuple(visible_BKTK.shape)}, needs {shape}")
        bias_B1KM = torch.where(visible_BKTK.flatten(2).unsqueeze(1), self.weights.open, self.weights.blocked)
        return bias_B1KM.expand(-1, self.layers[0].self_keys.shape[1], -1, -1).flatten(0, 1)
