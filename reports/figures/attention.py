"""Attention weights as a figure: one panel per head, pieces along both sides. Imports no torch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def draw_attention(found: Mapping[str, Any], kind: str, layer: int, heads: Sequence[int], path: Path) -> None:
    """Write the maps of some heads of one layer (numbers from 0) to `path`, PNG, PDF or SVG by its ending."""
    import matplotlib

    matplotlib.use("agg")  # no screen is needed
    from matplotlib import pyplot

    columns, rows = _axes(found, kind)
    across = min(4, len(heads))
    down = -(-len(heads) // across)
    side = max(2.5, 0.22 * max(len(columns), len(rows)))
    figure, panels = pyplot.subplots(down, across, figsize=(side * across, side * down), squeeze=False)
    for panel, head in zip(panels.flat, heads, strict=False):
        panel.imshow(found["maps"][kind][layer][head], vmin=0, vmax=1, cmap="viridis", aspect="auto")
        panel.set_title(f"layer {layer + 1}, head {head + 1}", fontsize=8)
        panel.set_xticks(range(len(columns)), columns, rotation=90, fontsize=6, parse_math=False)
        panel.set_yticks(range(len(rows)), rows, fontsize=6, parse_math=False)
    for panel in list(panels.flat)[len(heads) :]:
        panel.set_axis_off()
    figure.suptitle({"encoder": "encoder", "decoder": "decoder", "cross": "decoder over encoder"}[kind], fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _axes(found: Mapping[str, Any], kind: str) -> tuple[list[str], list[str]]:
    """Labels of what is attended to, and of what attends."""
    if kind == "encoder":
        return found["source"], found["source"]
    return (found["target"] if kind == "decoder" else found["source"]), found["target"]
