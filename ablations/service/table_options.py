"""How a table is printed: the choices of [table] in a study file, as typed on a command line or given in Python."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from pydantic import ValidationError

from ablations.study.messages import plain
from ablations.study.table_choices import Choices
from experiments.errors import UserError


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """As typed; None means the study's choice, or the format's."""

    columns: str | None = None
    hide: str | None = None
    plain: bool | None = None
    paper: bool | None = None
    digits: str | None = None
    units: str | None = None
    caption: str | None = None
    notes: str | None = None
    label: str | None = None
    wide: bool | None = None
    siunitx: bool | None = None

    def choices(self) -> Choices:
        """The options parsed. Raises UserError."""
        given: dict[str, Any] = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}
        for name in ("columns", "hide"):
            if name in given:
                given[name] = tuple(part.strip() for part in given[name].split(",") if part.strip())
        for name in ("digits", "units"):
            if name in given:
                given[name] = dict(_pairs(name, given[name]))
        try:
            return Choices(**given)
        except ValidationError as error:
            first = error.errors()[0]
            raise UserError(f"--{first['loc'][0]} {getattr(self, str(first['loc'][0]))}: {plain(first)}.") from None

    def words(self) -> Sequence[str]:
        """The options as a command line gives them."""
        words: list[str] = []
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool):
                words.append(f"--{'' if value else 'no-'}{field.name}")
            elif value is not None:
                words += [f"--{field.name}", value]
        return words


def _pairs(name: str, text: str) -> Iterator[tuple[str, Any]]:
    """ "bleu=2,ppl=3" as pairs; a number alone, for digits, is for every metric."""
    for part in text.split(","):
        key, found, value = part.strip().partition("=")
        if name == "digits" and not found:
            key, value = "", key
        if not value or (found and not key) or (name == "digits" and not value.isdecimal()):
            example = "2, or bleu=2,ppl=3" if name == "digits" else "params=k,hours=min"
            raise UserError(f"--{name} {text}: write --{name} {example}.")
        yield key, int(value) if name == "digits" else value
