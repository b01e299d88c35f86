"""Figures of attention: maps with one panel per head, and a table with the measures of all heads. Imports no torch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def draw_attention(found: Mapping[str, Any], kind: str, layer: int, heads: Sequence[int], path: Path) -> None:
    """Draw the attention maps of some heads of one layer. The ending of `path` selects PNG, PDF or SVG.

    `layer` and `heads` count from 0.
    """
    from matplotlib.figure import Figure

    rows = found["source" if kind == "encoder" else "target"]  # pieces of the queries
    columns = found["target" if kind == "decoder" else "source"]  # pieces of the memory
    across = min(4, len(heads))
    down = -(-len(heads) // across)
    side = max(2.5, 0.22 * max(len(columns), len(rows)))
    figure = Figure(figsize=(side * across, side * down))
    panels = figure.subplots(down, across, squeeze=False)
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


def draw_heads(rows: Sequence[Mapping[str, Any]], measures: Sequence[str], path: Path) -> None:
    """Draw a table with one row per trained head and one column per measure.

    Measures between 0 and 1 are coloured. The last row is the mean of the heads with random weights.
    """
    import numpy as np
    from matplotlib.figure import Figure

    trained = [row for row in rows if row["weights"] == "trained"]
    names = [f"{row['kind']} {row['layer']}.{row['head']}" for row in trained]
    values = np.array([[row[name] for name in measures] for row in rows], dtype=float)
    values = np.vstack([values[: len(trained)], values[len(trained) :].mean(0)])
    unbounded = [measures.index(name) for name in ("offset", "entropy")]
    colours = values.copy()
    colours[:, unbounded] = 0
    figure = Figure(figsize=(1 + 0.75 * len(measures), 1 + 0.22 * len(values)))
    axis = figure.subplots()
    axis.imshow(colours, vmin=0, vmax=1.4, cmap="Blues", aspect="auto")
    axis.set_xticks(range(len(measures)), measures, fontsize=7)
    axis.set_yticks(range(len(values)), [*names, "random (mean)"], fontsize=6)
    for (place, column), value in np.ndenumerate(values):
        axis.text(column, place, "–" if np.isnan(value) else f"{value:.2f}", ha="center", va="center", fontsize=6)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
