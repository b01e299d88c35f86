"""The interface of a network for training, search, scoring and export.

Shapes: B sentences, S source, T target, K beams, D width, W vocabulary. Masks: True = may attend.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from torch import Tensor, nn

from model.config import ModelConfig


class SearchState(Protocol):
    """State of a network between the steps of a search."""

    step: int  # index of the next position

    def keep(self, sentences: Sequence[int]) -> None:
        """Keep only the sentences with these indices, in this order."""

    def attention(self) -> Tensor:
        """Return the attention weights of each beam in the last step, (B, K, S).

        The weights are the mean over all heads of all sub-layers that attend to the source. The search must have been
        started with attends=True, and the decoder must have such a sub-layer.
        """


class Network(nn.Module, ABC):
    """The base class of networks. network.build_model builds a network.

    `forward` maps word pieces to hidden states. `logits` maps hidden states to scores of the next word piece.
    """

    config: ModelConfig
    vocab_size: int  # size of the target vocabulary, and of the source vocabulary if it is shared
    classes: Any  # a hierarchical softmax (parts/embedding.Classes; `logits` then returns log P), or None

    @property
    @abstractmethod
    def output_weight(self) -> Tensor:
        """The softmax's matrix (rows, D); rows beyond vocab_size are padding."""

    @property
    @abstractmethod
    def longest(self) -> int | None:
        """The length of the longest sequence that the network accepts; None if there is no limit."""

    @abstractmethod
    def layers(self) -> Iterator[nn.Module]:
        """Yield the layers. Each is compiled separately."""

    def forward(self, source_BS: Tensor, source_mask_BS: Tensor | None, target_BT: Tensor) -> Tensor:
        """Return hidden states (B, T, D) under teacher forcing: position t predicts piece t + 1.

        source_BS, target_BT: piece ids; source_mask_BS: see `encode`.
        """
        return self.decode(target_BT, self.encode(source_BS, source_mask_BS), source_mask_BS)

    @abstractmethod
    def encode(self, source_BS: Tensor, source_mask_BS: Tensor | None = None) -> Tensor:
        """Return the memory (B, S, D). The mask is False at padding; None means no padding and is faster."""

    @abstractmethod
    def decode(self, target_BT: Tensor, memory_BSD: Tensor, source_mask_BS: Tensor | None = None) -> Tensor:
        """Return hidden states (B, T, D) of target_BT, which starts with BOS.

        The causal mask hides padding at the end of target_BT from the real positions.
        """

    @abstractmethod
    def logits(self, hidden_D: Tensor) -> Tensor:
        """Map hidden states to logits: (…, D) → (…, W), W = vocab_size.

        In training, call it only for real target positions.
        """

    @abstractmethod
    def start_decoding(
        self, memory_BSD: Tensor, source_mask_BS: Tensor | None, beam_size: int, max_steps: int, attends: bool = False
    ) -> SearchState:
        """Return the state of a search of up to max_steps steps. Call it under torch.inference_mode(), in eval mode.

        attends: whether the state provides the attention of each step (SearchState.attention). This makes the search
        slower.

        Raises ValueError if the network accepts fewer than max_steps positions.
        """

    @abstractmethod
    def decode_step(self, tokens_BK: Tensor, state: SearchState, visible_BKTK: Tensor | None = None) -> Tensor:
        """Return hidden states (B, K, D) after one more piece per beam at time t = state.step. Increments state.step.

        visible_BKTK: bool (B, K, t + 1, K), True for the (time, beam) slots of each beam's past, including its present
        slot (t, k); optional for a single beam. Raises ValueError for another shape, and after max_steps steps.
        """

    @abstractmethod
    def next_logits(self, hidden_BKD: Tensor, state: SearchState) -> Tensor:
        """Return `logits` of the result of `decode_step`: (B, K, D) → (B, K, W)."""
