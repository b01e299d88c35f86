"""Options and cost of an end-to-end memory network, which replaces cross-attention. Imports no torch."""

from typing import ClassVar

from pydantic import Field

from model.layers.spec import Cost, Length, Spec
from model.settings import ModelSettings, Side


class MemoryNetworkSpec(Spec):
    """Options and cost of a memory network. Each position reads the encoder's output `hops` times."""

    computation: ClassVar[str] = "model.layers.memory.memory_network:MemoryNetwork"
    sides: ClassVar[tuple[Side, ...]] = ("decoder",)
    reads_memory: ClassVar[bool] = True

    hops: int = Field(3, ge=1)

    def cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
        """Return the cost.

        The multiplications per query are D² for B and hops·D² for H. Each memory position takes 2·D² for A and C. Each
        pair of a query and a memory position takes hops·2·D.
        """
        width = config.d_model
        of_queries = (1 + self.hops) * width**2
        products = length * of_queries + 2 * memory * width**2 + self.hops * 2 * width * length * memory
        kept = (self.hops * length + 2 * memory) * width + self.hops * length * memory
        return Cost(4 * width**2, 2 * products, kept)
