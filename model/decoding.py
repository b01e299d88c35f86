"""What a decoder remembers between steps of a beam search.

Shapes: B sentences, S source, T time steps, K beams, H heads; keys and values end in their width n (d_k or d_v).

Nothing is ever reordered. A beam's past is a path through (time, beam) slots; every beam's query meets all slots of
its sentence, and a bias blocks those that are not its ancestors. Keys and values of the source are held once per
sentence.
"""

from dataclasses import dataclass

from torch import Tensor

from model.masks import blocking_bias


@dataclass
class LayerCache:
    """One decoder layer's keys and values. Self-attention's are (B, H, T, K, n), written in place at their time."""

    memory_keys: Tensor  # (B, H, S, d_k)
    memory_values: Tensor  # (B, H, S, d_v)
    self_keys: Tensor
    self_values: Tensor

    @classmethod
    def start(cls, memory_keys: Tensor, memory_values: Tensor, beam_size: int, max_steps: int) -> "LayerCache":
        """Room for max_steps positions, in the type that the projections come in (autocast may narrow it)."""

        def room(like: Tensor) -> Tensor:
            sentences, heads, _, width = like.shape
            return like.new_empty(sentences, heads, max_steps, beam_size, width)

        return cls(memory_keys, memory_values, room(memory_keys), room(memory_values))

    def append(self, keys_BHKn: Tensor, values_BHKn: Tensor, time: int) -> tuple[Tensor, Tensor]:
        """Write the slots of `time`; return all slots so far, (B, H, (time + 1)·K, n), as views."""
        self.self_keys[:, :, time] = keys_BHKn
        self.self_values[:, :, time] = values_BHKn
        return self.self_keys[:, :, : time + 1].flatten(2, 3), self.self_values[:, :, : time + 1].flatten(2, 3)

    def keep(self, sentences: Tensor, steps: int) -> None:
        """Only these sentences from here on; `steps` positions are in use."""
        self.memory_keys = self.memory_keys.index_select(0, sentences)
        self.memory_values = self.memory_values.index_select(0, sentences)
        self.self_keys = _select_used(self.self_keys, sentences, steps)
        self.self_values = _select_used(self.self_values, sentences, steps)


def _select_used(slots: Tensor, sentences: Tensor, steps: int) -> Tensor:
    kept = slots.new_empty(len(sentences), *slots.shape[1:])
    kept[:, :, :steps] = slots[:, :, :steps].index_select(0, sentences)
    return kept


@dataclass
class DecoderState:
    """The caches of all layers. `step` counts the positions written: the next one's index, from 0."""

    layers: list[LayerCache]
    source_bias: Tensor | None  # (B, 1, 1, S)
    beam_size: int
    max_steps: int
    step: int = 0

    @property
    def num_sentences(self) -> int:
        return len(self.layers[0].memory_keys)

    def keep(self, sentence_index: Tensor) -> None:
        """Drop every sentence that is not named in `sentence_index` (long, (B',)), and take the order it has."""
        for cache in self.layers:
            cache.keep(sentence_index, self.step)
        if self.source_bias is not None:
            self.source_bias = self.source_bias.index_select(0, sentence_index)

    def ancestor_bias(self, visible_BKTK: Tensor | None) -> Tensor | None:
        """(B, 1, K, (step + 1)·K) from the mask of ancestors, True = may attend; None: a single beam sees all.

        Raises ValueError for a mask of another shape, or none where there are several beams.
        """
        shape = (self.num_sentences, self.beam_size, self.step + 1, self.beam_size)
        if visible_BKTK is None:
            if self.beam_size > 1:
                raise ValueError(f"{self.beam_size} beams need a mask of ancestors, bool of shape {shape}")
            return None
        if visible_BKTK.shape != shape:
            raise ValueError(f"mask of ancestors has shape {tuple(visible_BKTK.shape)}, needs {shape}")
        return blocking_bias(visible_BKTK.flatten(2).unsqueeze(1), self.layers[0].self_keys.dtype)
