"""Numbers as text: the same digits and the same signs in tables, comparisons, explanations and claims."""

import math
from collections.abc import Sequence
from decimal import Decimal

FULL = 1e15  # smaller numbers are printed with all digits before the decimal point
MOST = 20  # largest number of digits after the decimal point that `decimals` finds


def fixed(value: float | None, digits: int, signed: bool = False) -> str:
    """Return a number with `digits` digits after the decimal point and a true minus sign; "" for None.

    Numbers from FULL on have an exponent and all their digits. Zero has no sign.
    """
    if value is None:
        return ""
    if FULL <= abs(value) < math.inf:
        return _all_digits(value, signed)
    text = f"{value:{'+' if signed else ''}.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("+-")
    return text.replace("-", "−")


def significant(value: float, digits: int, signed: bool = False) -> str:
    """Return a number with `digits` significant digits, and with all digits before the decimal point if it has more.

    Numbers from FULL on have an exponent and all their digits. The minus sign is a true one.
    """
    if FULL <= abs(value) < math.inf:
        return _all_digits(value, signed)
    form = ".0f" if 10**digits - 0.5 <= abs(value) < math.inf else f".{digits}g"
    text = f"{value:{'+' if signed else ''}{form}}"
    return f"−{text[1:]}" if text.startswith("-") else text


def _all_digits(value: float, signed: bool) -> str:
    """Return a number with an exponent and as many digits as distinguish it from its neighbours."""
    digits = len(Decimal(repr(value)).normalize().as_tuple().digits)
    return f"{value:{'+' if signed else ''}.{digits - 1}e}".replace("-", "−")


def decimals(values: Sequence[float | None]) -> int:
    """Return the largest number of digits after the decimal point in the values."""
    written = [Decimal(repr(float(value))) for value in values if value is not None and math.isfinite(value)]
    return max((min(-int(value.normalize().as_tuple().exponent), MOST) for value in written if value % 1), default=0)


def power(value: float | None) -> str:
    """Return a number with an exponent, such as "9.4e17"; "" for None and for a number that is not finite."""
    if value is None or not math.isfinite(value):
        return ""
    digits, _, exponent = f"{value:.1e}".partition("e")
    return f"{digits}e{int(exponent)}" if value else "0"
