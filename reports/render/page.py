"""The style sheet and the script of the HTML page, for screens, phones, dark mode and paper."""

import base64
import hashlib
from importlib.resources import files

# (colour on white, colour on a dark page)
INK, FAINT, LINE, PAGE = ("#000000", "#e8e8e8"), ("#b8b8b8", "#66707a"), ("#e0e0e0", "#2d343a"), ("#ffffff", "#14181c")
SERIES = (
    ("#0072b2", "#4fa8e8"), ("#d55e00", "#f28a3c"), ("#009e73", "#2fc594"), ("#b0558f", "#e39ac8"),
    ("#b07d00", "#f0c040"), ("#3f97cf", "#9fdcff"), ("#7a1f4e", "#c2587f"), ("#332288", "#9a8cf0"),
    ("#6b7a00", "#b8c53a"), ("#777777", "#a9a9a9"), ("#8c5a3c", "#c79a78"), ("#e0567a", "#ff8fae"),
)  # fmt: skip

# Name of a variable in the style sheet → colours that figures are drawn with
VARIABLES = {"fig-ink": INK, "fig-faint": FAINT, "fig-line": LINE, "page": PAGE} | {
    f"c{number}": pair for number, pair in enumerate(SERIES)
}


def variables(dark: bool) -> str:
    """Return the variables as declarations of a style sheet."""
    return " ".join(f"--{name}: {pair[dark]};" for name, pair in VARIABLES.items())


# The inline script places details, and sorts, hides and copies parts of the table. The page's Content-Security-Policy
# allows only this script, by its digest. The script loads and stores nothing, and makes elements only from text.
# Without the script, the page shows the same numbers.


CSS = f"""
:root {{ color-scheme: light dark; {variables(dark=False)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {variables(dark=True)} }} }}
@media print {{ :root {{ color-scheme: light; {variables(dark=False)} }} }}

""" + files(__package__).joinpath("page.css").read_text("utf-8")
SCRIPT = files(__package__).joinpath("page.js").read_text("utf-8")
DIGEST = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
