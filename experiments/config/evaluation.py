"""Settings of the evaluation: which weights are decoded and scored, and how. Imports no torch."""

from pydantic import Field

from experiments.config.field_types import Names, PrecisionChoice
from experiments.config.network_change import Changeable

CHECKPOINTS = "last|best|average:[1-9][0-9]*"  # a regular expression of the allowed values


class EvaluationConfig(Changeable):
    """Settings of decoding and scoring finished weights (section 6.1). Part of eval_id only."""

    sets: Names = Field(("dev",), description='"dev" and names of test sets; "test": all of them')
    checkpoint: str = Field("last", pattern=f"^({CHECKPOINTS})$", description="last, best (on dev) or average:K")
    beam_size: int = Field(4, ge=1, le=10_000, description="hypotheses kept at each step of the search (section 6.1)")
    length_penalty: float = Field(0.6, ge=0, description="alpha of ((5 + |Y|) / 6)^alpha")
    max_extra_length: int = Field(
        50, ge=0, le=1_000_000, description="maximum number of output pieces beyond the length of the input"
    )
    precision: PrecisionChoice = Field(
        "fp32",
        description="precision of scoring and decoding; fp32 makes rows comparable whatever their training precision",
    )
    coverage_penalty: float = Field(
        0.0, ge=0, description="beta of GNMT's score for attention to every source piece; 0 in the paper"
    )
    replace_unknown: bool = Field(
        False, description="an unknown piece of the output becomes the source piece with most attention (PosUnk)"
    )


UNNAMED_AT_DEFAULT = ("coverage_penalty", "replace_unknown")  # newer settings: at their default in no eval_id
OF_SEARCH = ("beam_size", "length_penalty", "max_extra_length", *UNNAMED_AT_DEFAULT)  # what decoding reads
