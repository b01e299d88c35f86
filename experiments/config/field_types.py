"""Types of fields that several groups of settings use."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field


def _split_at_commas(value: Any) -> Any:
    """Split a text at its commas, as in `--set evaluation.sets=dev,test`. Other values are returned unchanged."""
    if isinstance(value, str):
        return [name.strip() for name in value.split(",") if name.strip()]
    return value


Names = Annotated[tuple[str, ...], BeforeValidator(_split_at_commas), Field(strict=False)]
PrecisionChoice = Literal["auto", "fp32", "bf16"]
