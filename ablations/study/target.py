"""A number that rows have to reach by the study's rule, written down before they are trained."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, FiniteFloat

from ablations.study.parts import Key, Text
from model.section import Section

ALPHA = 0.01  # of the records of modded-nanogpt


class Target(Section):
    """What a row's mean over its seeds has to be better than: `target = 3.28`, or a table with these entries."""

    value: FiniteFloat
    metric: str = Field("", description="as the task names it; its first column on the set if unset")
    set: Key = Field("dev", description="the data set that it is measured on")
    alpha: float = Field(ALPHA, gt=0, lt=1, description="the rule holds where p is below this")
    source: Text = Field("", description="where the number comes from, for the note under the table")


def _number(given: Any) -> Any:
    if isinstance(given, int | float) and not isinstance(given, bool):
        return {"value": given}
    if isinstance(given, dict | Target):
        return given
    raise ValueError("expected a number, or a table with value and perhaps metric, set, alpha and source")


TargetOrNumber = Annotated[Target, BeforeValidator(_number)]
