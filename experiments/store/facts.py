"""A record of a store, and parts of records: typed fields, any of which may be missing; their reader and writer.

Tasks record different things, a later version may add to them, and a bundle of somebody else's may hold anything. So
every field may be missing, others may be there, and a value of another type than expected is left out, or is damage if
something is decided by it (`decisive`). Imports no torch.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from experiments.errors import Damaged
from experiments.store.sealed import read_named, write_json

LARGEST = (1 << 63) - 1
MOST_ATTEMPTS = 10**9
Count = Annotated[int, Field(ge=0, le=LARGEST)]
Attempt = Annotated[int, Field(ge=0, lt=MOST_ATTEMPTS)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Word = Annotated[str, Field(max_length=10_000)]
Words = dict[Word, Word]


class Facts(BaseModel):
    """A part of a record; every field may be missing."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow", defer_build=True)


class Record(Facts):
    """A whole record."""

    decisive: ClassVar[frozenset[str]] = frozenset()  # fields by which the program decides
    of_builtin: ClassVar[frozenset[str]] = frozenset()  # fields that a user's trainer may use for anything

    _content: dict[str, Any] | None = PrivateAttr(None)

    @classmethod
    def load(cls, file: Path, **names: str) -> Self | None:
        """Read a record; None if the file is missing. `names`: as in `read_named`. Raises Damaged."""
        found = read_named(file, **names)
        return None if found is None else cls.read(found, str(file))

    @classmethod
    def read(cls, content: Mapping[str, Any], place: str = "a record") -> Self:
        """The record with this content. Raises Damaged, naming the place, for a wrong type that cannot be left out."""
        value: Any = content
        for _ in range(len(cls.model_fields)):  # what is left out may lay bare another finding, never many
            try:
                record = cls.model_validate(value)
            except ValidationError as error:
                found = error.errors(include_url=False, include_context=False, include_input=False)
                for wrong in found:
                    if wrong["loc"][0] in cls.decisive:
                        where = ".".join(map(str, wrong["loc"]))
                        raise Damaged(
                            f"{place} is damaged ({where}: {wrong['msg']}). Restore it from a backup, or delete it to "
                            "redo this part."
                        ) from None
                for wrong in reversed(found):  # from behind: places in lists stay true
                    value = _without(value, wrong["loc"])
            else:
                break
        else:
            record = cls()
        record._content = dict(content)
        return record

    @property
    def content(self) -> dict[str, Any]:
        """All that the file holds, or will hold: also fields without a name here, and those left out."""
        return self.model_dump(exclude_unset=True) if self._content is None else self._content

    def check(self, built_in: bool) -> None:
        """Raises ValueError (pydantic's) for any value of a wrong type; `built_in`: also of facts of built-in tasks."""
        free = frozenset() if built_in else self.of_builtin
        self.model_validate({name: value for name, value in self.content.items() if name not in free})

    def write(self, file: Path, **changes: Any) -> None:
        """Write the whole content durably and sealed, with changed fields."""
        write_json(file, {**self.content, **changes})


def _without(value: Any, place: Sequence[Any]) -> Any:
    """A copy of nested objects and lists without what lies at a place, or at the innermost part of it that is there."""
    first, rest = place[0], place[1:]
    if isinstance(value, Mapping):
        inner = value.get(first)
        if rest and isinstance(inner, Mapping | list):
            return {**value, first: _without(inner, rest)}
        return {name: item for name, item in value.items() if name != first}
    if isinstance(value, list) and isinstance(first, int):
        inner = [_without(value[first], rest)] if rest and isinstance(value[first], Mapping | list) else []
        return [*value[:first], *inner, *value[first + 1 :]]
    return value
