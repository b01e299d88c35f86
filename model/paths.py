"""Sequential operations and path lengths of a stack: two columns of Table 1. Imports no torch.

The path length between two positions is the number of operations through which a signal passes from one to the other.
Position-wise sub-layers and residual connections do not count. The shortest paths are propagated through the actual
sub-layers of the stack, so the results are exact; Table 1 gives orders of growth.
"""

from typing import TYPE_CHECKING

from model.config import ModelConfig
from model.settings import Side

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def sequential_operations(config: ModelConfig, side: Side, length: int) -> int:
    """Return the number of sequential operations over `length` positions. A recurrent layer has one per position."""
    return sum(part.options.sequential(length) for layer in config.layers(side) for part in layer)


def path_length(config: ModelConfig, side: Side, length: int) -> int | None:
    """Return the longest of the shortest paths between two positions, or None if a pair has no path.

    In an encoder, the pairs are all pairs of positions. In a decoder, an output is paired with the inputs at the same
    and at earlier positions. The function takes O(layers · length³) time for sub-layers that read all positions, and
    less for other sub-layers.
    """
    import numpy as np

    paths = shortest_paths(config, side, length)
    longest = np.max(paths[np.tril_indices(length)] if side == "decoder" else paths)
    return int(longest) if np.isfinite(longest) else None


def shortest_paths(config: ModelConfig, side: Side, length: int) -> "NDArray[np.float64]":
    """Return the path lengths (length, length): [i, j] is the length from input j to output i, inf without a path."""
    import numpy as np

    distances = range(0 if side == "decoder" else 1 - length, length)  # i − j
    paths = np.where(np.eye(length, dtype=bool), 0.0, np.inf)
    for layer in config.layers(side):
        for part in layer:
            operations = {distance: part.options.operations(part.config, distance, side) for distance in distances}
            paths = _through(paths, operations, part.config.residual)
    return paths


def _through(paths: "NDArray[np.float64]", operations: dict[int, float], residual: bool) -> "NDArray[np.float64]":
    """Return the shortest paths after one more sub-layer.

    operations: number of operations by distance (output position minus input position).
    """
    import numpy as np

    length = len(paths)
    after = paths.copy() if residual else np.full_like(paths, np.inf)
    for distance, count in operations.items():
        if count == np.inf or (distance == 0 and count == 0 and residual):
            continue
        if distance < 0:
            reading, read = slice(0, length + distance), slice(-distance, length)
        else:
            reading, read = slice(distance, length), slice(0, length - distance)
        np.minimum(after[reading], paths[read] + count, out=after[reading])
    return after
