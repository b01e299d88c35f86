"""Options and cost of an end-to-end memory network, which replaces cross-attention. No torch."""

from typing import ClassVar

from pydantic import Field

from model.layers.spec import Cost, Length, Spec
from model.settings import ModelSettings, Side


class MemoryNetworkSpec(Spec):
    """A memory that each position reads `hops` times."""

    computation: ClassVar[str] = "model.layers.memory.memory_network:MemoryNetwork"
    sides: ClassVar[tuple[Side, ...]] = ("decoder",)
    reads_memory: ClassVar[bool] = True

    hops: int = Field(3, ge=1)

    def cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
        """Return the cost.

        The multiplications are D² for B and hops·D² for H per query, 2·D² per memory, and hops·2·D per pair.
        """
        width = config.d_model
        of_queries = (1 + self.hops) * width**2
        products = length * of_queries + 2 * memory * width**2 + self.hops * 2 * width * length * memory
        kept = (self.hops * length + 2 * memory) * width + self.hops * length * memory
        return Cost(4 * width**2, 2 * products, kept)
