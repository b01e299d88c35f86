"""The caches of the decoder in a quick beam search.

The caches of beams are never reordered. A beam's past is a path through (time, beam) slots. Each query is compared with
all slots of its sentence, and a bias blocks the slots that are not its ancestors. Keys and values of the source are
stored once per sentence.

Shapes: B sentences, S source, T time steps, K beams, H heads, N = B·H, M = T·K slots, n width of a key or a value.
"""

import torch
from torch import Tensor


class LayerCache:
    """Keys and values of one decoder layer.

    Each step writes the keys and values of self-attention, (B, H, T, K, n), in place.
    """

    def __init__(self, memory_keys: Tensor, memory_values: Tensor, self_keys: Tensor, self_values: Tensor) -> None:
        self.memory_keys, self.memory_values = memory_keys, memory_values  # (B, H, S, n)
        self.self_keys, self.self_values = self_keys, self_values
        # Views that every step uses, created once.
        self.memory_NnS, self.memory_NSn = memory_keys.flatten(0, 1).mT, memory_values.flatten(0, 1)
        self._key_slots, self._value_slots = self_keys.unbind(2), self_values.unbind(2)
        self._keys_NMn, self._values_NMn = (x.flatten(2, 3).flatten(0, 1) for x in (self_keys, self_values))

    @classmethod
    def start(
        cls, memory_keys: Tensor, memory_values: Tensor, beam_size: int, max_steps: int, dtype: torch.dtype
    ) -> "LayerCache":
        """Return empty caches for max_steps positions. All tensors have the type `dtype`."""

        def slots(like: Tensor) -> Tensor:
            sentences, heads, _, width = like.shape
            return like.new_empty(sentences, heads, max_steps, beam_size, width)

        keys, values = memory_keys.to(dtype).contiguous(), memory_values.to(dtype).contiguous()
        return cls(keys, values, slots(keys), slots(values))

    def append(self, keys_BHKn: Tensor, values_BHKn: Tensor, time: int) -> tuple[Tensor, Tensor]:
        """Write the slots of `time`. Return views of all slots written so far: keys (N, n, M), values (N, M, n)."""
        self._key_slots[time].copy_(keys_BHKn)
        self._value_slots[time].copy_(values_BHKn)
        used = (time + 1) * keys_BHKn.shape[2]
        return self._keys_NMn.narrow(1, 0, used).mT, self._values_NMn.narrow(1, 0, used)

    def keep(self, count: int, places: Tensor, sentences: Tensor, steps: int) -> "LayerCache":
        """Move `sentences` to `places` and return a cache of the first `count` sentences.

        steps: number of positions written so far; only these are copied.
        """
        if len(places):
            used = self.self_keys[:, :, :steps], self.self_values[:, :, :steps]
            for slots in (self.memory_keys, self.memory_values, *used):
                slots.index_copy_(0, places, slots.index_select(0, sentences))
        return LayerCache(
            *(x[:count] for x in (self.memory_keys, self.memory_values, self.self_keys, self.self_values))
        )
