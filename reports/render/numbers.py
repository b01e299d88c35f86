"""Numbers, gaps and groups as the cells of a table print them."""

import math
from collections import Counter
from collections.abc import Sequence

from reports.results.table import Measure


def group_name(group: str) -> str:
    """(A), as in the paper; longer names stand as they are."""
    return f"({group})" if 0 < len(group) <= 2 else group


def fixed(value: float, digits: int, signed: bool = False) -> str:
    """A number with `digits` after the point and a true minus; huge ones in powers of ten; no negative zero."""
    if abs(value) >= 1e6:
        text = f"{value:{'+' if signed else ''}.1e}"
    else:
        text = f"{value:{'+' if signed else ''}.{digits}f}"
        if float(text) == 0:
            text = text.lstrip("+-")
    return text.replace("-", "−")


def gap(measure: Measure) -> str:
    """A cell without a number: "–", "– (failed)", "– (2/3, 1 running)"."""
    reasons = Counter(reason for reason in measure.lacking if reason)
    if measure.requested == 1:
        return f"– ({next(iter(reasons))})" if reasons else "–"
    parts = [f"{len(measure.values)}/{measure.requested}", *(f"{n} {reason}" for reason, n in reasons.items())]
    return f"– ({', '.join(parts)})"


def signed(value: float | None, digits: int) -> str:
    """A change with its sign; "" for None."""
    return "" if value is None else fixed(value, digits, signed=True)


def plain(value: float | None, digits: int) -> str:
    """A number; "" for None."""
    return "" if value is None else fixed(value, digits)


def decimals(values: Sequence[float | None]) -> int:
    """Digits after the point that the most precise of the values was given with."""
    texts = [repr(float(value)) for value in values if value is not None]
    return max((len(text.rpartition(".")[2]) for text in texts if not text.endswith(".0")), default=0)


def power(value: float | None) -> str:
    """ "9.4e17"."""
    if value is None or not math.isfinite(value):
        return ""
    digits, _, exponent = f"{value:.1e}".partition("e")
    return f"{digits}e{int(exponent)}" if value else "0"
