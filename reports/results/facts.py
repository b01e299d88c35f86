"""What the records of a training and of an evaluation hold, as far as a report reads it: types, and their one reader.

Stores outlive versions, other tasks record less, and a bundle of somebody else's may hold anything: `read` leaves out
what has another type than expected, and the check of a bundle refuses it. Fields that are not named here may be there.
The file is long because it is one list: every field of a record, once.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

LARGEST = (1 << 63) - 1
Count = Annotated[int, Field(ge=0, le=LARGEST)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Word = Annotated[str, Field(max_length=10_000)]
Words = dict[Word, Word]


class Facts(BaseModel):
    """A part of a record; every field may be missing."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Self:
        """The facts of a record, without those of another type than expected."""
        value: Any = dict(record)
        for _ in range(len(cls.model_fields)):  # what is left out may lay bare another finding, never many
            try:
                return cls.model_validate(value)
            except ValidationError as error:
                found = error.errors(include_url=False, include_context=False, include_input=False)
                for place in reversed([each["loc"] for each in found]):  # from behind: places in lists stay true
                    value = _without(value, place)
        return cls()


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


class Revision(Facts):
    """A commit of the repository that the code lies in; of this program, with its version."""

    repository: Word | None = None
    version: Word | None = None
    commit: Word | None = None
    dirty: bool | None = None


class Earlier(Facts):
    """An attempt that ended before the one that finished."""

    seconds: Amount = 0.0


class Sides(Facts):
    """A word for each side of a corpus: its languages."""

    source: Word | None = None
    target: Word | None = None


class Sizes(Facts):
    """The pieces of each side's vocabulary, as trained."""

    source: Count | None = None
    target: Count | None = None


class Side(Facts):
    """One side of the training set."""

    unknown_rate: Amount | None = None  # of its pieces


class Encoded(Facts):
    """The training set as encoded, in pairs."""

    kept: Count | None = None
    dropped_empty: Count = 0
    dropped_long: Count = 0
    source: Side = Side()
    target: Side = Side()


class Tokenizer(Facts):
    """The tokenizer that a training used."""

    sha256: Words = {}  # of its files


class Data(Facts):
    """What a built-in training was trained on."""

    corpus: Sides = Sides()
    tokenizer: Tokenizer = Tokenizer()
    vocab_size: Sizes = Sizes()
    train: Encoded = Encoded()


class Trained(Facts):
    """The result of a finished training, of any task. Times in seconds."""

    attempt: Annotated[int, Field(ge=1, le=999_999)] | None = None
    step: Count | None = None
    wall_s: Amount | None = None  # of the last attempt
    train_s: Amount | None = None  # of all attempts together; not in older stores
    earlier_attempts: list[Earlier] = []
    continues: dict[str, Any] | None = None  # the shorter run that this one went on from
    devices: Annotated[int, Field(ge=1, le=1_000_000)] | None = None  # that trained together; older stores: one
    device_share: Annotated[float, Field(gt=0, le=1)] | None = None  # of each device; older stores: all of it
    device: Word | None = None
    device_kind: Word | None = None
    threads: Count | None = None
    host: Word | None = None
    platform: Word | None = None
    command: Word | None = None
    code_digest: Word | None = None
    revision: Revision = Revision()
    tool: Revision | None = None  # this program's, where the code is a user's; not in older stores
    versions: Words = {}


class BuiltinTrained(Trained):
    """The same of a built-in task. A trainer of the user's may record anything under these names."""

    data: Data = Data()
    precision: Word | None = None
    num_params: Count | None = None
    flops: Amount | None = None
    flops_per_token: Amount | None = None  # with target_tokens: older stores, which have no `flops`
    target_tokens: Count | None = None
    resumed_from: Count | None = None


class Part(Facts):
    """One part of an evaluation (likelihood, decode, score)."""

    code_digest: Word | None = None


class Seen(Facts):
    """Exact pairs of a set that the training set holds too."""

    pair: Count | None = None


class SetFacts(Facts):
    """What is known of the scored set as data."""

    seen_in_train: Seen = Seen()


class Evaluated(Facts):
    """The result of an evaluation, of any task."""

    metrics: dict[Word, Annotated[float, Field(allow_inf_nan=True)] | None] = {}
    signature: Words = {}  # by metric, of those that have one
    sentences: Count | None = None
    code_digest: Word | None = None  # of evaluations that were one part
    parts: dict[Word, Part] = {}
    device: Word | None = None
    device_kind: Word | None = None
    precision: Word | None = None
    versions: Words = {}

    @property
    def code(self) -> dict[str, str]:
        """Digests of the code that made it, by part; "" for an evaluation of older stores, which was one."""
        digests = {"": self.code_digest, **{name: part.code_digest for name, part in self.parts.items()}}
        return {name: digest for name, digest in digests.items() if digest}


class BuiltinEvaluated(Evaluated):
    """The same of a built-in task."""

    set_facts: SetFacts = SetFacts()


# What a finished run's record says of itself: the columns of a frame, and of `ablations explain`.
RUN_FACTS = (
    "steps", "wall_s", "train_s", "device", "device_kind", "devices", "device_share", "threads", "precision", "torch",
    "repository", "commit", "dirty", "code_digest", "tool", "tool_commit", "host",
)  # fmt: skip


def run_facts(trained: BuiltinTrained | None) -> dict[str, Any]:
    """RUN_FACTS of a run; None for what it did not record, and for a run that is not trained."""
    if trained is None:
        return dict.fromkeys(RUN_FACTS)
    tool = trained.tool or Revision()
    found = {name: getattr(trained, name) for name in RUN_FACTS if name in type(trained).model_fields}
    found |= {"steps": trained.step, "torch": trained.versions.get("torch"), "tool": tool.version}
    found |= {name: getattr(trained.revision, name) for name in ("repository", "commit", "dirty")}
    found |= {"tool_commit": tool.commit}
    return {name: found[name] for name in RUN_FACTS}
