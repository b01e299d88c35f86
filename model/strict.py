"""The base class of all declared records: settings, sections of a study file, descriptions of tasks."""

import json
from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict


class StrictModel(BaseModel):
    """A frozen record with strict types that refuses unknown names."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Validate a mapping by the rules of JSON: a list may stand for a tuple and text for a path, but not "1" for 1.

        pydantic applies these rules only to JSON text, so the mapping is written as JSON first. Raises
        pydantic.ValidationError.
        """
        return cls.model_validate_json(json.dumps(dict(values), default=str))
