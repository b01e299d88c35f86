"""The base classes of records and of their parts.

Tasks record different facts, a later version may add fields, and a bundle from another person may contain anything.
So every field may be missing, and unknown fields are allowed. If a value has a wrong type, it is ignored. But if the
field is one of the `decisive` fields, the whole record counts as damaged.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from experiments.errors import Damaged
from experiments.store.checksummed import read_json, write_json

LARGEST = (1 << 63) - 1
MOST_ATTEMPTS = 10**9
Count = Annotated[int, Field(ge=0, le=LARGEST)]
Attempt = Annotated[int, Field(ge=0, lt=MOST_ATTEMPTS)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Word = Annotated[str, Field(max_length=10_000)]
Words = dict[Word, Word]


class Facts(BaseModel):
    """Base class of the parts of a record. Every field may be missing."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow", defer_build=True)


class Record(Facts):
    """Base class of the records of a store, with methods to read and write them."""

    decisive: ClassVar[frozenset[str]] = frozenset()  # fields on which the program bases decisions
    of_builtin: ClassVar[frozenset[str]] = frozenset()  # fields that a user's trainer may use for anything

    _content: dict[str, Any] | None = PrivateAttr(None)

    @classmethod
    def load(cls, file: Path, **names: str) -> Self | None:
        """Read a record; None if the file is missing. Raise Damaged if the record is damaged.

        names: expected values of run_id and eval_id. If the record has another value, it counts as damaged.
        """
        found = read_json(file)
        if found is None:
            return None
        record = cls.read(found, str(file))
        for key, name in names.items():
            recorded = record.identities.get(key, name)
            if recorded != name:
                raise Damaged(
                    f"{file} is the record of another {key}: {recorded}. Restore the right one, or rename it."
                )
        return record

    @classmethod
    def read(cls, content: Mapping[str, Any], place: str = "a record") -> Self:
        """Return the record with this content. Values of wrong types are left out.

        Raises Damaged, which names the place, if a `decisive` field has a value of a wrong type.
        """
        value: Any = content
        # after a wrong value is left out, another wrong value may be found; one round per field is enough
        for _ in range(len(cls.model_fields)):
            try:
                record = cls.model_validate(value)
            except ValidationError as error:
                found = error.errors(include_url=False, include_context=False, include_input=False)
                for wrong in found:
                    if wrong["loc"][0] in cls.decisive:
                        where = ".".join(map(str, wrong["loc"]))
                        raise Damaged(
                            f"{place} is damaged ({where}: {wrong['msg']}). Restore it from a backup, or rename it to "
                            "redo this part."
                        ) from None
                for wrong in reversed(found):  # last error first, so that indices into lists stay valid
                    value = _without(value, wrong["loc"])
            else:
                break
        else:
            record = cls()
        record._content = dict(content)
        return record

    @property
    def identities(self) -> Mapping[str, Any]:
        """Mapping with the record's identities under the keys "run_id" and "eval_id", if it has them."""
        return self.content

    @property
    def content(self) -> dict[str, Any]:
        """The whole content of the file, including unknown fields and values that were left out."""
        return self.model_dump(exclude_unset=True) if self._content is None else self._content

    def check(self, built_in: bool) -> None:
        """Raise ValueError if a value has a wrong type. built_in: whether to check facts of built-in tasks too."""
        free = frozenset() if built_in else self.of_builtin
        self.model_validate({name: value for name, value in self.content.items() if name not in free})

    def write(self, file: Path, **changes: Any) -> None:
        """Write the whole content, with the changed fields, durably and with its checksum."""
        write_json(file, {**self.content, **changes})


def _without(value: Any, place: Sequence[Any]) -> Any:
    """Return a copy of nested objects and lists without the value at a path.

    If a value on the path is not an object or list, this value is left out.
    """
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
