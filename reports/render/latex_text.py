"""Text in LaTeX: escapes for characters that LaTeX reads as commands, ligatures or options."""

import unicodedata

from reports.render.cells import plain

_SIGNS = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "%": r"\%",
    "&": r"\&",
    "#": r"\#",
    "$": r"\$",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}\allowbreak{}",  # the only place where a line break in a signature is possible
    '"': "''{}",
    "`": r"\`{}",
    "[": "{[}",  # after \\ it would start an option
    "]": "{]}",
    "*": "{*}",  # after \\ it would belong to the command
    "–": "--{}",
    "—": "---{}",
    "‘": "`{}",
    "’": "'{}",
    "“": "``{}",
    "”": "''{}",
    "…": r"\ldots{}",
    "\u00a0": "~",
    "±": r"$\pm$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "−": "$-$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "≈": r"$\approx$",
    "→": r"$\rightarrow$",
    "∞": r"$\infty$",
    "√": r"$\surd$",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "Δ": r"$\Delta$",
    "δ": r"$\delta$",
    "ε": r"$\epsilon$",
    "λ": r"$\lambda$",
    "µ": r"$\mu$",
    "μ": r"$\mu$",
    "σ": r"$\sigma$",
    "τ": r"$\tau$",
    "†": r"\dag{}",
    "‡": r"\ddag{}",
    "§": r"\S{}",
    "²": "$^2$",
    "³": "$^3$",
    "⁶": "$^6$",
}
# Character → characters that must not follow it directly, because the two would be printed as one sign.
_LIGATURES = {"-": "-–—", "'": "'’”\"", ",": ",", "?": "‘“", "!": "‘“"}
# Letters of the default font encoding (OT1), and the marks with which OT1 composes other letters.
_LETTERS = frozenset("ßÆæØøŒœŁłı")
_MARKS = frozenset("\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c\u0327")


def escape(text: str) -> str:
    """Return one line of LaTeX that prints `text`. Characters that the default fonts lack stay (see `unprintable`)."""
    text = unicodedata.normalize("NFC", plain(text))
    following = f"{text} "[1:]
    return "".join(_sign(sign, after) for sign, after in zip(text, following, strict=True))


def unprintable(text: str) -> str:
    """Return the characters of `text` that pdfLaTeX cannot print with its default fonts."""
    text = unicodedata.normalize("NFC", plain(text))
    return "".join(sign for sign in text if not (sign.isascii() or sign in _SIGNS or _composed(sign)))


def _sign(sign: str, after: str) -> str:
    if after in _LIGATURES.get(sign, ""):
        return sign + "{}"
    return _SIGNS.get(sign, sign)


def _composed(sign: str) -> bool:
    parts = unicodedata.normalize("NFD", sign)
    accented = ord(sign) < 0x180 and len(parts) == 2 and parts[0].isascii() and parts[1] in _MARKS
    return accented or sign in _LETTERS
