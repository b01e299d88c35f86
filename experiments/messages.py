"""Texts for messages: suggestions for misspelt names, pydantic's errors in plain English, counts and durations."""

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

# Messages for pydantic's types of errors. Text in braces is replaced by pydantic's context values.
_PLAIN = {
    "missing": "it is missing",
    "int_type": "expected an integer",
    "int_from_float": "expected an integer",
    "float_type": "expected a number",
    "finite_number": "expected a finite number",
    "string_type": 'expected text, in quotes: "…"',
    "bool_type": "expected true or false",
    "tuple_type": 'expected a list, such as ["dev"]',
    "list_type": "expected a list, in square brackets",
    "dict_type": "expected a table: a [heading] with entries under it, or entries in braces",
    "model_type": "expected a table: a [heading] with entries under it, or entries in braces",
    "literal_error": "it must be {expected}",
    "greater_than_equal": "it must be at least {ge}",
    "greater_than": "it must be more than {gt}",
    "less_than_equal": "it must be at most {le}",
    "less_than": "it must be less than {lt}",
    "string_pattern_mismatch": "it must match {pattern}",
    "string_too_short": "it must not be empty",
    "string_too_long": "it may have at most {max_length} characters",
    "too_short": "it must not be empty",
}


def plain(error: Mapping[str, Any]) -> str:
    """Return the message of a pydantic error in plain English, such as "it must be at least 1"."""
    context = error.get("ctx") or {}
    if error["type"] == "value_error":
        return str(context["error"])
    if error["type"] == "literal_error" and isinstance(error["input"], str):
        near = nearest(error["input"], re.findall(r"'([^']+)'", context["expected"]))
        return f"it must be {context['expected']}{f' (nearest: {near[0]})' if near else ''}"
    wording = _PLAIN.get(error["type"])
    return wording.format(**context) if wording else str(error["msg"])


def show(value: Any) -> str:
    """Return a value roughly as TOML writes it, so that a user can search for it, with at most 80 characters."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:77]}…"


def number(count: int, noun: str) -> str:
    """Return a count with its noun: "1 run", "2,000 runs"."""
    return f"{count:,} {plural(count, noun)}"


def plural(count: int, noun: str) -> str:
    """Return the noun in singular or plural form: "run" for a count of 1, otherwise "runs"."""
    return noun if count == 1 else f"{noun}s"


def either(options: Iterable[str]) -> str:
    """Join options with "or": "a", "a or b", "a, b or c"."""
    *others, last = options
    return f"{', '.join(others)} or {last}" if others else last


def nearest(name: str, options: Iterable[str]) -> list[str]:
    """Return at most three options that are similar to `name`, the best first.

    Options with the same last component come first ("d_k" finds "model.d_k"), then options with a similar spelling.
    """
    options = list(options)
    by_lower = {option.lower(): option for option in options}
    last = name.rpartition(".")[2].lower()
    found = [option for option in options if option.rpartition(".")[2].lower() == last]
    found += [by_lower[o] for o in difflib.get_close_matches(name.lower(), by_lower, 3, 0.6)]
    parts = {option.rpartition(".")[2].lower(): option for option in options}
    found += [parts[o] for o in difflib.get_close_matches(last, parts, 3, 0.75)]
    found += [option for option in options if len(last) > 2 and last in option.lower()]
    return list(dict.fromkeys(found))[:3]


def suggestion(name: str, options: Iterable[str], what: str) -> str:
    """Return "Nearest settings: a, b.", or "The settings are: …" if no option is similar. what: plural noun."""
    options = list(options)
    near = nearest(name, options)
    if near:
        return f"Nearest {what}: {', '.join(near)}."
    if not options:
        return f"There are no {what}."
    listed = ", ".join(options[:40]) + (", …" if len(options) > 40 else "")
    return f"The {what} are: {listed}."


def duration(seconds: float) -> str:
    """Return a duration as text: "42 s", "12 min", "3.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def some_names(names: Iterable[str], most: int = 6) -> str:
    """Return at most `most` names without repetition and the number of the others, as "a, b, c and 3 more"."""
    unique = list(dict.fromkeys(names))
    rest = len(unique) - most
    return ", ".join(unique[:most]) + (f" and {rest} more" if rest > 0 else "")
