"""Settings of the evaluation: which weights and which sets are evaluated, and the search. Imports no torch."""

from pydantic import Field

from experiments.config.field_types import Names, PrecisionChoice
from experiments.config.network_change import Changeable

CHECKPOINTS = "last|best|average:[1-9][0-9]*"  # regular expression for the values of evaluation.checkpoint


class EvaluationConfig(Changeable):
    """Settings of decoding and scoring (section 6.1). These settings are part of eval_id, but not of run_id."""

    sets: Names = Field(("dev",), description='"dev" and names of test sets; "test" means all test sets')
    checkpoint: str = Field("last", pattern=f"^({CHECKPOINTS})$", description="last, best (on dev) or average:K")
    beam_size: int = Field(4, ge=1, le=10_000, description="hypotheses kept at each step of the search (section 6.1)")
    length_penalty: float = Field(0.6, ge=0, description="alpha of ((5 + |Y|) / 6)^alpha")
    max_extra_length: int = Field(
        50, ge=0, le=1_000_000, description="maximum number of output pieces beyond the length of the input"
    )
    precision: PrecisionChoice = Field(
        "fp32",
        description="precision of scoring and decoding; fp32 makes rows of any training precision comparable",
    )
    coverage_penalty: float = Field(
        0.0, ge=0, description="beta of GNMT's score for attention to every source piece; 0 in the paper"
    )
    replace_unknown: bool = Field(
        False, description="an unknown piece of the output becomes the source piece with most attention (PosUnk)"
    )


# These settings were added later. An eval_id includes them only if they differ from their defaults.
UNNAMED_AT_DEFAULT = ("coverage_penalty", "replace_unknown")
OF_SEARCH = ("beam_size", "length_penalty", "max_extra_length", *UNNAMED_AT_DEFAULT)  # settings that decoding reads
