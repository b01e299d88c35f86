"""The decoder's caches during a beam search.

Shapes: B sentences, S source, T time steps, K beams, H heads, N = B·H; keys and values end in their width n (d_k, d_v).

Beams are never reordered. A beam's past is a path through (time, beam) slots. Each query is compared with all slots of
its sentence; a bias blocks the slots that are not its ancestors. Keys and values of the source are stored once per
sentence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from model.parts.autocast import without_autocast
from model.parts.embedding import Embedding
from model.stepwise import check_ancestors

if TYPE_CHECKING:
    from model.fast.folded import FoldedAttention
    from model.fast.stepping import StepWeights


class LayerCache:
    """Keys and values of one decoder layer. Those of self-attention are (B, H, T, K, n), written in place by time."""

    def __init__(self, memory_keys: Tensor, memory_values: Tensor, self_keys: Tensor, self_values: Tensor) -> None:
        self.memory_keys, self.memory_values = memory_keys, memory_values  # (B, H, S, n)
        self.self_keys, self.self_values = self_keys, self_values
        self.folded: FoldedAttention | None = None  # replaces memory_keys and memory_values
        # Views that every step uses, created once.
        self.memory_NnS, self.memory_NSn = memory_keys.flatten(0, 1).mT, memory_values.flatten(0, 1)
        self._key_slots, self._value_slots = self_keys.unbind(2), self_values.unbind(2)
        self._keys_NMn, self._values_NMn = (x.flatten(2, 3).flatten(0, 1) for x in (self_keys, self_values))

    @classmethod
    def start(
        cls, memory_keys: Tensor, memory_values: Tensor, beam_size: int, max_steps: int, dtype: torch.dtype
    ) -> "LayerCache":
        """Empty caches for max_steps positions; all tensors in `dtype`."""

        def room(like: Tensor) -> Tensor:
            sentences, heads, _, width = like.shape
            return like.new_empty(sentences, heads, max_steps, beam_size, width)

        keys, values = memory_keys.to(dtype).contiguous(), memory_values.to(dtype).contiguous()
        return cls(keys, values, room(keys), room(values))

    def append(self, keys_BHKn: Tensor, values_BHKn: Tensor, time: int) -> tuple[Tensor, Tensor]:
        """Write the slots of `time`; return views of all slots so far: keys (N, n, M), values (N, M, n)."""
        self._key_slots[time].copy_(keys_BHKn)
        self._value_slots[time].copy_(values_BHKn)
        used = (time + 1) * keys_BHKn.shape[2]
        return self._keys_NMn.narrow(1, 0, used).mT, self._values_NMn.narrow(1, 0, used)

    def keep(self, count: int, places: Tensor, sentences: Tensor, steps: int) -> "LayerCache":
        """Move `sentences` to `places`, then keep the first `count`; `steps` positions are in use."""
        if len(places):
            used = self.self_keys[:, :, :steps], self.self_values[:, :, :steps]
            for slots in (self.memory_keys, self.memory_values, *used):
                slots.index_copy_(0, places, slots.index_select(0, sentences))
        return LayerCache(
            *(x[:count] for x in (self.memory_keys, self.memory_values, self.self_keys, self.self_values))
        )


@dataclass
class DecoderState:
    """The caches of all layers. `step` counts the positions written so far, so it is the next position's index."""

    weights: "StepWeights"
    layers: list[LayerCache]
    source_bias_B11S: Tensor | None
    positions_TD: Tensor  # position vectors, added to the embeddings at each step
    beam_size: int
    embedding: Embedding
    final_norm: nn.Module
    step: int = 0

    def __post_init__(self) -> None:
        self.num_sentences, self.num_heads = self.layers[0].memory_keys.shape[:2]

    @property
    def max_steps(self) -> int:
        """Number of steps for which the caches have room."""
        return self.positions_TD.shape[0]

    def keep(self, sentences: Sequence[int]) -> None:
        """Keep only the named sentences, in the order of the names.

        Only sentences whose place changes are copied, because keys and values are most of a search's memory. The freed
        memory is not returned.
        """
        moved = [place for place, sentence in enumerate(sentences) if place != sentence]
        device = self.positions_TD.device
        places, movers = (torch.tensor(rows, device=device) for rows in (moved, [sentences[place] for place in moved]))
        self.layers = [cache.keep(len(sentences), places, movers, self.step) for cache in self.layers]
        if self.source_bias_B11S is not None:
            self.source_bias_B11S = self.source_bias_B11S[torch.tensor(sentences, device=device)]
        self.__post_init__()

    def decode_step(self, tokens_BK: Tensor, visible_BKTK: Tensor | None) -> Tensor:
        """Hidden states (B, K, D) after one more piece per beam (Network.decode_step)."""
        bias = self.ancestor_bias(visible_BKTK)
        x_RD = self.embedding.at(tokens_BK.flatten(), self.positions_TD[self.step])
        with without_autocast(x_RD.device):
            hidden_RD: Tensor = self.final_norm(self.weights.step(x_RD, self, bias))
        self.step += 1
        return hidden_RD.view(*tokens_BK.shape, -1)

    def next_logits(self, hidden_BKD: Tensor) -> Tensor:
        """(B, K, D) → (B, K, W)."""
        with without_autocast(hidden_BKD.device):
            logits_RW = self.weights.output(hidden_BKD.flatten(0, 1))
        return logits_RW.view(*hidden_BKD.shape[:2], -1)

    def ancestor_bias(self, visible_BKTK: Tensor | None) -> Tensor | None:
        """(B, 1, K, (step + 1)·K) from the mask of ancestors, True = may attend; None for a single beam.

        Raises ValueError for a mask of another shape, and for a missing mask with several beams.
        """
        check_ancestors(visible_BKTK, self.num_sentences, self.beam_size, self.step)
        if visible_BKTK is None:
            return None
        return torch.where(visible_BKTK.flatten(2), self.weights.zero_bias, self.weights.blocked_bias).unsqueeze(1)
