"""A softmax over some pieces of the vocabulary, other ones for each sentence of a batch.

Shapes: B sentences, K beams, D width, U pieces that any of the sentences may produce.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor


@dataclass(frozen=True)
class RestrictedLogits:
    """Scores of U pieces. A sentence's softmax does not depend on the others, which may bring pieces of their own."""

    product: Callable[[Tensor], Tensor]  # hidden states (…, D) → (…, U)
    bias_B1U: Tensor  # 0, or −inf for a piece that the sentence may not produce

    def __call__(self, hidden_BKD: Tensor) -> Tensor:
        logits_BKU = self.product(hidden_BKD.flatten(0, 1)).view(*hidden_BKD.shape[:2], -1)
        return logits_BKU.add_(self.bias_B1U)

    def keep(self, sentences: Tensor) -> "RestrictedLogits":
        """The same for the named sentences."""
        return replace(self, bias_B1U=self.bias_B1U.index_select(0, sentences))
