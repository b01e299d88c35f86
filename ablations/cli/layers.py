"""`ablations layers`: types of layers compared, as Table 1 of "Attention Is All You Need" does."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import typer

from ablations.cli import options
from ablations.cli.terminal import print_json
from ablations.service.layers import (
    LONGEST,
    LayerType,
    Sizes,
    Times,
    crossings,
    layer_types,
    measure,
)

HEAD = ("layer type", "complexity", "products", "counted", "sequential", "path", "formula", "exact", "in layers")


def layers(
    n: Annotated[int, typer.Option(metavar="N", help="Positions of the sequence.")] = 70,
    d: Annotated[int, typer.Option(metavar="D", help="Width of the representation.")] = 512,
    k: Annotated[int, typer.Option(metavar="K", help="Kernel of the convolutions.")] = 3,
    r: Annotated[int, typer.Option(metavar="R", help="Neighbourhood of restricted self-attention.")] = 16,
    measured: Annotated[bool, typer.Option("--measure", help="Time the sub-layers over n and d: a minute.")] = False,
    as_json: options.Json = False,
) -> None:
    """Compare types of layers: complexity, sequential operations, longest path (the paper's Table 1)."""
    sizes = Sizes(n, d, k, r)
    types = layer_types(sizes)
    times = measure(sizes) if measured else {}
    if as_json:
        print_json(_as_json(sizes, types, times))
        return
    typer.echo(f"n = {n}, d = {d}, k = {k}, r = {r}; n is the sequence, d the width, k the kernel, r the neighbourhood")
    for line in _columns([HEAD, *(_row(one, n) for one in types)]):
        typer.echo(line)
    typer.echo("products: the leading term. counted: all products of one sub-layer, projections and both matrices of a")
    typer.echo("recurrent cell included; restricted attention computes all scores. exact: propagated through causal")
    typer.echo("layers, of which each position of the last sees all positions before it; –: never.")
    if n > LONGEST:
        typer.echo(f"note: paths are propagated up to n = {LONGEST:,}.")
    for line in _times(times):
        typer.echo(line)


def _row(one: LayerType, n: int) -> tuple[str, ...]:
    sequential = f"{one.sequential} {one.operations:,}"
    exact = "–" if one.exact is None else f"{one.exact:,}"
    depth = f"{one.layers:,}" if one.layers else "–"
    return (
        one.name, one.complexity, f"{one.leading:,}", f"{one.counted:,}", sequential, one.path, f"{one.formula:.4g}",
        exact, depth,
    )  # fmt: skip


def _times(times: Times) -> list[str]:
    """One table per width, and where self-attention's and the recurrent sub-layers' times cross."""
    lines = []
    for width, attention in times.get("self_attention", {}).items():
        rows = [(f"d = {width}, ms a sequence", *(f"n={length}" for length in attention))]
        rows += [(name, *(f"{s * 1e3:.3g}" for s in of[width].values())) for name, of in times.items()]
        lines += ["", *_columns(rows)]
        for name in ("rnn", "lstm"):
            found = crossings(attention, times[name][width])
            parts = [f"{'faster' if faster else 'slower'} from n = {place:.0f}" for place, faster in found]
            lines.append(f"self-attention against {name}: {', '.join(parts)}")
    return lines


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]


def _as_json(sizes: Sizes, types: Sequence[LayerType], times: Times) -> dict[str, object]:
    found: dict[str, object] = {"sizes": asdict(sizes), "types": [asdict(one) for one in types]}
    if times:
        found["seconds"] = times
        found["crossings"] = {
            name: {
                width: crossings(attention, times[name][width]) for width, attention in times["self_attention"].items()
            }
            for name in ("rnn", "lstm")
        }
    return found
