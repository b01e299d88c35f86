"""Types of settings that several groups of settings use."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field


def _split_at_commas(value: Any) -> Any:
    """Accept a list of names as one text with commas: `--set evaluation.sets=dev,test`."""
    if isinstance(value, str):
        return [name.strip() for name in value.split(",") if name.strip()]
    return value


Names = Annotated[tuple[str, ...], BeforeValidator(_split_at_commas), Field(strict=False)]
PrecisionChoice = Literal["auto", "fp32", "bf16"]
