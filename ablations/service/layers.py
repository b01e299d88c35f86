"""Compare types of layers as Table 1 of "Attention Is All You Need" does: in symbols, in numbers, by measurement."""

import itertools
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.errors import UserError
from experiments.jobs.engines.engine import import_path
from model.config import ModelConfig
from model.paths import path_length, sequential_operations

LONGEST = 1024  # maximum number of positions for which paths are propagated, which takes seconds
LARGEST = 1_000_000  # maximum value of each size


@dataclass(frozen=True)
class Sizes:
    """The sizes of section 4: n positions, width d, kernel k, and a neighbourhood of r positions."""

    n: int = 70
    d: int = 512
    k: int = 3
    r: int = 16

    def check(self) -> None:
        """Raise UserError for invalid sizes."""
        for name, value in vars(self).items():
            least = 2 if name == "k" else 1
            if not least <= value <= LARGEST:
                why = ": a kernel of 1 connects no positions" if name == "k" else ""
                raise UserError(f"--{name} {value}: write an integer from {least} to {LARGEST:,}{why}.")


@dataclass(frozen=True)
class LayerType:
    """A row of Table 1."""

    name: str
    sublayer: str  # written as in model.encoder
    complexity: str  # complexity per layer, such as O(n²·d)
    leading: int  # multiplications according to the complexity term
    counted: int  # all multiplications, including projections and the masked pairs that kernels compute
    sequential: str
    operations: int  # number of sequential operations
    path: str
    formula: float  # value of `path`
    layers: int  # minimum number of causal layers after which every output sees all its inputs; 0 if there is none
    exact: int | None  # length of the longest path through `layers` layers; None if `layers` is 0 or n > LONGEST


def layer_types(sizes: Sizes) -> list[LayerType]:
    """Return the types of layers that section 4 compares. Raises UserError for invalid sizes."""
    sizes.check()
    n, d, k, r = sizes.n, sizes.d, sizes.k, sizes.r
    convolution, dilated = f"convolution(kernel={k})", _power(n, k)
    contiguous, separable = max(1, math.ceil((n - 1) / (k - 1))), f"convolution(kernel={k}, separable=true)"
    restricted = max(1, math.ceil((n - 1) / (r // 2))) if r > 1 else 0
    spread = ", ".join(f"convolution(kernel={k}, dilation={k**i})" for i in range(dilated))
    far, logarithm = ("O(n/k)", n / k), ("O(log_k(n))", math.log(n, k))
    return [
        _type(sizes, "self-attention", "self_attention", ("O(n²·d)", n * n * d), ("O(1)", 1), 1),
        _type(sizes, "recurrent", "rnn", ("O(n·d²)", n * d * d), ("O(n)", n), 1),
        _type(sizes, "convolutional, contiguous", convolution, ("O(k·n·d²)", k * n * d * d), far, contiguous),
        _type(sizes, "convolutional, dilated", spread, ("O(k·n·d²)", k * n * d * d), logarithm, dilated, convolution),
        _type(sizes, "convolutional, separable", separable, ("O(k·n·d + n·d²)", (k + d) * n * d), far, contiguous),
        _type(sizes, "self-attention, restricted", "self_attention", ("O(r·n·d)", r * n * d), ("O(n/r)", n / r),
              restricted, window=r),
    ]  # fmt: skip


def _power(n: int, k: int) -> int:
    """Return the smallest exponent, at least 1, with k^exponent ≥ n."""
    exponent = 1
    while k**exponent < n:
        exponent += 1
    return exponent


def _type(
    sizes: Sizes,
    name: str,
    sublayer: str,
    complexity: tuple[str, int],
    path: tuple[str, float],
    layers: int,
    one: str | None = None,
    window: int | None = None,
) -> LayerType:
    """Return one row of the table.

    sublayer: one layer, or the whole stack if `one` is a single layer of the stack. layers: the number of layers that
    connect every position with all earlier positions; 0 if no number does.
    """
    single = _language_model(sizes, one or sublayer, window)
    (part,) = single.layers("decoder")[0]
    flops = part.options.cost(part.config, sizes.n, 0, "decoder").flops
    operations = sequential_operations(single, "decoder", sizes.n)
    stack = sublayer if one else f"{layers} * {sublayer}"
    exact = None
    if layers and sizes.n <= LONGEST:
        exact = path_length(_language_model(sizes, stack, window), "decoder", sizes.n)
    return LayerType(
        name, one or sublayer, *complexity, int(flops) // 2, "O(n)" if operations > 1 else "O(1)", operations, *path,
        layers, exact,
    )  # fmt: skip


def _language_model(sizes: Sizes, line: str, window: int | None) -> ModelConfig:
    """Return a network of the sub-layers in `line`, with one head as wide as the model.

    The paper's terms do not depend on the number of heads.
    """
    width = {"d_model": sizes.d, "d_k": sizes.d, "d_v": sizes.d, "num_heads": 1}
    return ModelConfig(encoder="", decoder=line, positions="none", window=window, **width)  # type: ignore[arg-type]


LENGTHS, WIDTHS, ROUNDS = (16, 64, 256, 1024, 4096), (64, 256), 7
Rounds = Mapping[int, Sequence[float]]  # length → the seconds of each round


@dataclass(frozen=True)
class Times:
    """Measured times of sub-layers.

    rounds: the seconds of each round, by sub-layer and width. load: the number of processors that other programs kept
    busy.
    """

    rounds: Mapping[str, Mapping[int, Rounds]]
    load: float
    processors: int

    @property
    def loaded(self) -> bool:
        """Whether other programs kept more than half of the processors busy, which makes the times unreliable."""
        return self.load > self.processors / 2


def measure(sizes: Sizes) -> Times:
    """Time the sub-layers in a child process, which imports torch. Raises UserError if that process fails."""
    convolution = f"convolution(kernel={sizes.k}"
    lines = ["self_attention", f"self_attention(window={sizes.r})", "rnn", "lstm", f"{convolution})",
             f"{convolution}, separable=true)"]  # fmt: skip
    request = json.dumps({"sublayers": lines, "lengths": LENGTHS, "widths": WIDTHS, "rounds": ROUNDS})
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(import_path())}
    before = os.getloadavg()[0]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "model.timing", request], env=environment, capture_output=True, text=True
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(
            f"--measure: the process that measures the sub-layers ended with exit code {done.returncode}: {last}."
        )
    found: dict[str, dict[int, dict[int, Sequence[float]]]] = {}
    for line, width, length, seconds in json.loads(done.stdout):
        found.setdefault(line, {}).setdefault(width, {})[length] = seconds
    load = max(before, os.getloadavg()[0] - 1)  # minus the load of the child process
    return Times(found, load, os.cpu_count() or 1)


def crossing(first: Rounds, second: Rounds) -> tuple[bool, float | None] | None:
    """Return whether `first` is faster than `second` at short lengths, and the length at which the order changes.

    The length is interpolated between two measured lengths on logarithmic scales. It is None if the order is the same
    at all lengths. A measured length counts only if three quarters of its rounds agree. The function returns None (no
    conclusion) if no length counts, or if the order changes more than once.
    """
    clear = []
    for length in sorted(first):
        ratios = [math.log(a / b) for a, b in zip(first[length], second[length], strict=True)]
        low, middle, high = statistics.quantiles(ratios, method="inclusive")
        if low > 0 or high < 0:
            clear.append((length, middle))
    changes = [pair for pair in itertools.pairwise(clear) if (pair[0][1] < 0) != (pair[1][1] < 0)]
    if not clear or len(changes) > 1:
        return None
    place = None
    for (left, before), (right, after) in changes:
        place = left * (right / left) ** (before / (before - after))
    return clear[0][1] < 0, place
