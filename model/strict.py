"""The base class of validated records: settings, sections of a study file, descriptions of tasks."""

import json
from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict


class StrictModel(BaseModel):
    """A frozen record with strict types that rejects unknown names."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Validate a mapping by pydantic's strict rules for JSON.

        A list is accepted for a tuple and a string for a path, but "1" is not accepted for 1. pydantic applies these
        rules only to JSON text, so the mapping is converted to JSON first. Raises pydantic.ValidationError.
        """
        return cls.model_validate_json(json.dumps(dict(values), default=str))
