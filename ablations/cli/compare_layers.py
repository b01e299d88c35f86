"""Compare types of layers, as in Table 1 of "Attention Is All You Need": `ablations settings --layers`."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict

from ablations.cli.terminal import aligned, answer
from ablations.service.layers import LONGEST, LayerType, Rounds, Sizes, Times, crossing, layer_types, measure

HEAD = ("layer type", "complexity", "products", "counted", "sequential", "path", "formula", "exact", "in layers")


def print_layers(sizes: Sizes, measured: bool, as_json: bool) -> None:
    types = layer_types(sizes)
    times = measure(sizes) if measured else None
    n = sizes.n
    lines = [
        f"n = {n}, d = {sizes.d}, k = {sizes.k}, r = {sizes.r}; "
        "n is the sequence, d the width, k the kernel, r the neighbourhood",
        *aligned([HEAD, *map(_row, types)]),
        "products: the leading term. counted: all products of one sub-layer, with projections, both matrices of a",
        "recurrent cell, and for restricted attention the pairs of its blocks. exact: causal layers after which",
        "each position sees all positions before it; –: never.",
        *([f"note: paths are propagated up to n = {LONGEST:,}."] if n > LONGEST else []),
        *(_times(times) if times else ()),
    ]
    answer(as_json, _as_json(sizes, types, times), lines)


def _row(one: LayerType) -> tuple[str, ...]:
    sequential = f"{one.sequential} {one.operations:,}"
    exact = "–" if one.exact is None else f"{one.exact:,}"
    depth = f"{one.layers:,}" if one.layers else "–"
    return (
        one.name, one.complexity, f"{one.leading:,}", f"{one.counted:,}", sequential, one.path, f"{one.formula:.4g}",
        exact, depth,
    )  # fmt: skip


def _times(times: Times) -> list[str]:
    """Return the lines on the measured times.

    The lines contain one table per width, and the lengths at which self-attention and another sub-layer take equally
    long.
    """
    lines = []
    for width, first in times.rounds["self_attention"].items():
        rows = [(f"d = {width}, ms a sequence", *(f"n={length}" for length in first))]
        for name, of in times.rounds.items():
            rows.append((name, *(f"{statistics.median(rounds) * 1e3:.3g}" for rounds in of[width].values())))
        lines += ["", *aligned(rows)]
        for name in (name for name in times.rounds if name != "self_attention" and not times.loaded):
            lines.append(f"self-attention against {name}: {_verdict(first, times.rounds[name][width])}")
    lines.append("times: CPU time of one thread, the median of interleaved rounds")
    if times.loaded:
        busy = f"other programs use {times.load:.1f} of {times.processors} processors"
        lines.append(f"no conclusion: {busy}. Repeat --measure when they use at most half.")
    return lines


def _verdict(first: Rounds, second: Rounds) -> str:
    found = crossing(first, second)
    if found is None:
        return "no conclusion: the rounds disagree, or there is more than one crossing"
    now, then = ("faster", "slower") if found[0] else ("slower", "faster")
    return f"{now} at all lengths" if found[1] is None else f"{now} up to n = {found[1]:.0f}, {then} from there"


def _as_json(sizes: Sizes, types: Sequence[LayerType], times: Times | None) -> dict[str, object]:
    found: dict[str, object] = {"sizes": asdict(sizes), "types": [asdict(one) for one in types]}
    if times is not None:
        full = times.rounds["self_attention"]
        found["measured"] = asdict(times) | {"loaded": times.loaded}
        found["crossings"] = None if times.loaded else {
            name: {width: crossing(full[width], rounds) for width, rounds in of.items()}
            for name, of in times.rounds.items()
            if name != "self_attention"
        }  # fmt: skip
    return found
