"""Colours of the page and of figures: each with what stands for it on a dark page.

The first six are Okabe and Ito's, which colour-blind readers can tell apart, as dark as they must be to be seen on
white; six more follow, so that the lines of a panel never share one. A test measures distances and contrasts.
"""

# (on white, on a dark page)
INK, FAINT, LINE, PAGE = ("#000000", "#e8e8e8"), ("#b8b8b8", "#66707a"), ("#e0e0e0", "#2d343a"), ("#ffffff", "#14181c")
SERIES = (
    ("#0072b2", "#4fa8e8"), ("#d55e00", "#f28a3c"), ("#009e73", "#2fc594"), ("#b0558f", "#e39ac8"),
    ("#b07d00", "#f0c040"), ("#3f97cf", "#9fdcff"), ("#7a1f4e", "#c2587f"), ("#332288", "#9a8cf0"),
    ("#6b7a00", "#b8c53a"), ("#777777", "#a9a9a9"), ("#8c5a3c", "#c79a78"), ("#e0567a", "#ff8fae"),
)  # fmt: skip

# names of the style sheet's variables, and the colours that figures are drawn with
VARIABLES = {"fig-ink": INK, "fig-faint": FAINT, "fig-line": LINE, "page": PAGE} | {
    f"c{number}": pair for number, pair in enumerate(SERIES)
}


def variables(dark: bool) -> str:
    """The variables as declarations of a style sheet."""
    return " ".join(f"--{name}: {pair[dark]};" for name, pair in VARIABLES.items())
