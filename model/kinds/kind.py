"""What is known of a kind of sub-layer without torch: its options, the settings that it reads, its cost."""

from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeVar

from model.section import Section

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from model.config import ModelConfig

Length = TypeVar("Length", float, "NDArray[np.int64]")  # one length, or the lengths of many sentences
Side = Literal["encoder", "decoder"]


class Cost(NamedTuple):
    """What one sub-layer needs for one sequence, without its residual connection and norm."""

    params: int  # trained weights
    flops: Any  # of a forward pass; a multiplication and an addition are two, and only matrix products count
    kept: Any  # values that the forward pass keeps for the backward pass, besides the input
    active: int | None = None  # weights that take part in one token's computation; None: all


class Kind(Section):
    """Options of one sub-layer of a line. A kind is a subclass, and a line of architecture.KINDS and stack.SUBLAYERS.

    An option that has the name of a setting in `reads` replaces that setting for this sub-layer.
    """

    reads: ClassVar[tuple[str, ...]] = ()  # settings of ModelConfig that the sub-layer reads, besides d_model
    sides: ClassVar[tuple[Side, ...]] = ("encoder", "decoder")
    reads_memory: ClassVar[bool] = False  # whether it reads the encoder's output
    compiles: ClassVar[bool] = True  # whether torch's compiler makes one graph of it

    def reads_here(self, config: "ModelConfig") -> tuple[str, ...]:
        """Those of `reads` that matter with these settings: a clip of distances only if positions are relative."""
        return self.reads

    def check(self, config: "ModelConfig", side: Side) -> None:
        """Raises ValueError for settings with which the sub-layer cannot be built."""

    def cost(self, config: "ModelConfig", length: Length, memory: Length, side: Side) -> Cost:
        """For a sequence of `length` positions and `memory` positions of the encoder's output."""
        raise NotImplementedError

    def sequential(self, length: int) -> int:
        """Operations over `length` positions that must follow one another (Table 1); 0 if each is by itself."""
        return 0

    def operations(self, config: "ModelConfig", distances: "NDArray[np.int64]", side: Side) -> "NDArray[np.float64]":
        """Operations between an output and the input `distance` positions before it; inf where it does not read it.

        A decoder's sub-layer is not asked for the future. The default is that of position-wise sub-layers.
        """
        import numpy as np

        return np.where(distances == 0, 0.0, np.inf)

    def shared(self, config: "ModelConfig") -> dict[str, int]:
        """Weights that sub-layers of a stack have in common, by name; not in `cost`."""
        return {}

    def fused(self, config: "ModelConfig") -> bool:
        """Whether torch's fused attention computes it, which keeps no weights of attention."""
        return False
