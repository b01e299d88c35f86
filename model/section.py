"""The base of every group of settings. Imports no torch."""

import json
from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A group of settings: frozen, typed strictly, unknown names refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """The checked section, by the rules of JSON: a list may stand for a tuple, text for a path, but no "1" for 1.

        pydantic has these rules for text alone. Raises pydantic.ValidationError.
        """
        return cls.model_validate_json(json.dumps(dict(values), default=str))
