"""Figures on the page: SVG in its width and colours, one drawing for a desk and one for a phone."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from reports.render.html_sections import escape
from reports.render.palette import VARIABLES

_VARIABLE = {on_white: f"var(--{name})" for name, (on_white, _) in VARIABLES.items()}
_COLOUR = re.compile(r"(?<=: )#[0-9a-f]{6}(?=[;\"])")
_METADATA = re.compile(r"<metadata>.*?</metadata>\s*", re.DOTALL)
_PLACES, _LONG = re.compile(r'\b(?:d|x|y)="[^"]*"'), re.compile(r"-?\d+\.\d{3,}")  # finer than a screen shows
_EMPTY = re.compile(r'\s*<g id="\w+"/>|(?<=>)\s+(?=<)')
_NUMBERED = re.compile(r'<g id="([a-z]\w*?)(?:\.\w+)?_\d+">')  # matplotlib numbers every group of every figure


@dataclass(frozen=True)
class Drawn:
    """A figure as SVG, for wide pages and for narrow ones."""

    title: str
    wide: bytes
    narrow: bytes


def figures_section(figures: Mapping[str, Drawn]) -> Iterator[str]:
    """Each figure below its title."""
    if figures:
        yield "<section><h2>Figures</h2>"
        yield '<p class="soft live-only">Point at a mark for its values. A click keeps them open.</p>'
        for name, drawn in figures.items():
            yield f'<figure id="figure-{escape(name)}"><figcaption>{escape(drawn.title)}</figcaption>'
            for of, svg in (("wide", drawn.wide), ("narrow", drawn.narrow)):
                yield f'<div class="{of}">{_in_page(svg.decode(), drawn.title)}</div>'
            yield "</figure>"
        yield "</section>"


def _shortened(found: re.Match[str]) -> str:
    return _LONG.sub(lambda number: f"{float(number[0]):.2f}", found[0]).replace("\n", " ").replace(' "', '"')


def _in_page(svg: str, title: str) -> str:
    """The drawing alone, in colours that the page's style sheet sets; its title as its label."""
    svg = _METADATA.sub("", svg[svg.index("<svg") :])
    svg = _NUMBERED.sub(r'<g class="\1">', svg)
    svg = _EMPTY.sub("", _PLACES.sub(_shortened, svg))
    svg = _COLOUR.sub(lambda found: _VARIABLE.get(found[0], found[0]), svg)
    return svg.replace("<svg ", f'<svg role="group" aria-label="{escape(title)}" ', 1)
