"""The records of a training and of an evaluation (result.json): every field, once.

A child writes them, the coordinator adds the attempt's number, reports read them. Imports no torch.
"""

import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError

from experiments.errors import Damaged
from experiments.run_spec import RunSpec, recorded_spec
from experiments.store.checksummed import read_json, write_json

# --- A record of a store, and parts of records: typed fields, any of which may be missing; their reader and writer
# Tasks record different things, a later version may add to them, and a bundle of somebody else's may hold anything. So
# every field may be missing, others may be there, and a value of another type than expected is left out, or is damage
# if something is decided by it (`decisive`).


LARGEST = (1 << 63) - 1
MOST_ATTEMPTS = 10**9
Count = Annotated[int, Field(ge=0, le=LARGEST)]
Attempt = Annotated[int, Field(ge=0, lt=MOST_ATTEMPTS)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Word = Annotated[str, Field(max_length=10_000)]
Words = dict[Word, Word]


class Facts(BaseModel):
    """A part of a record; every field may be missing."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow", defer_build=True)


class Record(Facts):
    """A whole record."""

    decisive: ClassVar[frozenset[str]] = frozenset()  # fields by which the program decides
    of_builtin: ClassVar[frozenset[str]] = frozenset()  # fields that a user's trainer may use for anything

    _content: dict[str, Any] | None = PrivateAttr(None)

    @classmethod
    def load(cls, file: Path, **names: str) -> Self | None:
        """Read a record; None if the file is missing. Raises Damaged.

        names: the identities that the record must have, run_id and eval_id, if it records them.
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
        """The record with this content. Raises Damaged, naming the place, for a wrong type that cannot be left out."""
        value: Any = content
        for _ in range(len(cls.model_fields)):  # what is left out may lay bare another finding, never many
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
                for wrong in reversed(found):  # from behind: places in lists stay true
                    value = _without(value, wrong["loc"])
            else:
                break
        else:
            record = cls()
        record._content = dict(content)
        return record

    @property
    def identities(self) -> Mapping[str, Any]:
        """The identities that the record names, by "run_id" and "eval_id"."""
        return self.content

    @property
    def content(self) -> dict[str, Any]:
        """All that the file holds, or will hold: also fields without a name here, and those left out."""
        return self.model_dump(exclude_unset=True) if self._content is None else self._content

    def check(self, built_in: bool) -> None:
        """Raises ValueError (pydantic's) for any value of a wrong type; `built_in`: also of facts of built-in tasks."""
        free = frozenset() if built_in else self.of_builtin
        self.model_validate({name: value for name, value in self.content.items() if name not in free})

    def write(self, file: Path, **changes: Any) -> None:
        """Write the whole content durably with its checksum, and with changed fields."""
        write_json(file, {**self.content, **changes})


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


# --- The fields


RESULT_FILE = "result.json"


class Revision(Facts):
    """A commit of the repository that the code lies in; of this program, with its version."""

    repository: Word | None = None
    version: Word | None = None
    commit: Word | None = None
    dirty: bool | None = None


class Earlier(Facts):
    """An attempt that ended before the one that finished."""

    attempt: Attempt = 0
    seconds: Amount = 0.0
    ended: Word = ""  # a FailureClass, "stopped" or "killed"; in records of version 0.1.0 also "finished"


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
    bytes: Count | None = None  # of running text
    dropped_empty: Count = 0
    dropped_long: Count = 0
    source: Side = Field(default_factory=functools.cache(Side))
    target: Side = Field(default_factory=functools.cache(Side))


class Tokenizer(Facts):
    """The tokenizer that a training used."""

    sha256: Words = Field(default_factory=dict)  # of its files


class Data(Facts):
    """Data of a built-in training."""

    corpus: Sides = Field(default_factory=functools.cache(Sides))
    tokenizer: Tokenizer = Field(default_factory=functools.cache(Tokenizer))
    vocab_size: Sizes = Field(default_factory=functools.cache(Sizes))
    train: Encoded = Field(default_factory=functools.cache(Encoded))


class EnsembleMember(Facts):
    """A training whose weights decode together with others."""

    run_id: Word = ""
    seed: Count | None = None
    weights: Word = ""  # digest of its weights, so that other weights under the same name are noticed


class ParentRunRecord(Facts):
    """Origin of a branch: the parent run, the step whose state it took, and a digest of the weights there."""

    run_id: Word = ""
    step: Count = 0
    weights: Word = ""


class Imported(Facts):
    """Origin of an imported run and its description there. None of it was checked."""

    kind: Word = ""  # "csv", "mlflow" or "wandb"
    source: Word = ""  # the file's name, or MLflow's address without a password
    sha256: Word | None = None  # of the file
    t: Amount | None = None  # Unix time of the import
    name: Word | None = None  # of the run there
    id: Word | None = None
    seed: Word | None = None  # as it is called there
    settings: dict[Word, Any] = Field(default_factory=dict)  # those that the row does not set


class Output(Facts):
    """Position of a user's command's output in its attempt's log, which also has lines of this program."""

    ranges: list[list[Count]] = Field(default_factory=list)  # begin and end in bytes; several where the log was cut
    left_out: Count = 0  # bytes of its middle that were not kept


def seed_value(text: str) -> int | str:
    """A seed as a value: 1, 01 and 1.0 are the same whole number; anything else is text."""
    if text.isdecimal() and len(text) < 100:
        return int(text)
    try:
        found = float(text) if "_" not in text else math.nan  # Python reads 1_000 as a number, no other program does
    except ValueError:
        return text
    return int(found) if abs(found) < 1 << 53 and found.is_integer() else text


def _run_spec(value: object) -> object:
    return recorded_spec({"spec": value}) if isinstance(value, Mapping) else value


def _spec_of_0_1_0(content: Mapping[str, Any]) -> dict[str, Any]:
    """The field `spec` of a record of version 0.1.0; {} where it lacks a part."""
    names = ("run_id", "config", "inputs")
    return {"spec": {name: content[name] for name in names}} if all(name in content for name in names) else {}


class TrainingResult(Record):
    """The record of a finished training, or of an ensemble: sums over its members (ensembles.py). Times in seconds."""

    decisive: ClassVar[frozenset[str]] = frozenset(
        {
            "spec",
            "attempt",
            "code_digest",
            "code_files",
            "base_files",
            "code_home",
            "imported",
        }
    )
    of_builtin: ClassVar[frozenset[str]] = frozenset(
        {
            "data", "precision", "num_params", "flops", "flops_per_token", "target_tokens", "resumed_from", "seconds",
            "steps_s", "steps_cpu_s", "start", "end", "pinned", "peak_memory_bytes", "example_files", "ensemble",
            "parent_run",
        }
    )  # fmt: skip
    in_spec: ClassVar[frozenset[str]] = frozenset({"run_id", "task", "config", "inputs"})  # fields until version 0.1.0

    spec: Annotated[RunSpec, BeforeValidator(_run_spec)] | None = None  # without the study's folder
    imported: Imported | None = None  # of a run that was trained elsewhere
    attempt: Attempt = 0  # 0: it says none
    pinned: dict[str, Any] = Field(default_factory=dict)  # resolved by the first attempt, so that a resume is exact
    step: Count | None = None
    wall_s: Amount | None = None  # of the last attempt
    train_s: Amount | None = None  # of all attempts together
    earlier_attempts: list[Earlier] = Field(default_factory=list)
    continues: dict[str, Any] | None = None  # the shorter run that this one went on from
    devices: Annotated[int, Field(ge=1, le=1_000_000)] | None = None  # that trained together
    device_share: Annotated[float, Field(gt=0, le=1)] | None = None  # of each device
    device: Word | None = None
    device_kind: Word | None = None
    threads: Count | None = None
    host: Word | None = None
    platform: Word | None = None
    command: Word | None = None
    interpreter: Word | None = None  # of a user's trainer, as the study names it; unset: this program's
    output: Output | None = None  # of a user's command
    code_digest: Word | None = None
    # Of a user's trainer: git's blob digest of every file of its code that the run used, by path from the top of the
    # repository (or the study's folder). None: not recorded.
    code_files: Words | None = None
    code_home: Word | None = None  # the study's folder from the same top; "." for the top itself
    # The same paths in base's tree, for a run whose row has a patch; {} where its code is not base's with a patch.
    # None: equal to code_files.
    base_files: Words | None = None
    revision: Revision = Field(default_factory=functools.cache(Revision))
    tool: Revision = Field(default_factory=functools.cache(Revision))  # this program
    versions: Words = Field(default_factory=dict)
    peak_memory_bytes: Count | None = None
    example_files: dict[Word, dict[str, Any]] = Field(default_factory=dict)  # by name: bytes, sha256

    data: Data = Field(default_factory=functools.cache(Data))
    precision: Word | None = None
    num_params: Count | None = None
    flops: Amount | None = None
    flops_per_token: Amount | None = None
    target_tokens: Count | None = None
    resumed_from: Count | None = None
    seconds: Amount | None = None  # of the last attempt's steps and the measurements between them
    steps_s: Amount | None = None  # of these steps alone
    steps_cpu_s: Amount | None = None  # of the processor (all threads) in these steps alone
    start: dict[Word, Amount | None] = Field(default_factory=dict)  # before the first update
    end: dict[Word, Amount | None] = Field(default_factory=dict)  # before the last
    ensemble: list[EnsembleMember] = Field(default_factory=list)  # not in the record of a training
    # Of a branch. Its times, tokens and operations are those of its own steps, after the parent run's.
    parent_run: ParentRunRecord = Field(default_factory=functools.cache(ParentRunRecord))

    @property
    def identities(self) -> Mapping[str, Any]:
        """The run_id, from the description of the run."""
        return self.content if self.spec is None else {"run_id": self.spec.run_id}

    @classmethod
    def read(cls, content: Mapping[str, Any], place: str = "a record") -> Self:
        """The record with this content, also of version 0.1.0, which had the fields of `spec` at the top."""
        record = super().read(content if "spec" in content else {**content, **_spec_of_0_1_0(content)}, place)
        record._content = dict(content)
        return record

    @classmethod
    def reserved(cls, fact: str) -> bool:
        """Return whether a fact of a user's trainer may not have this name, because the record uses it."""
        return fact in cls.in_spec or (fact in cls.model_fields and fact not in cls.of_builtin)

    @property
    def config(self) -> Mapping[str, Any]:
        """The settings of the run, nested; {} if they are not recorded."""
        return self.spec.config if self.spec else {}

    @property
    def task(self) -> str:
        """The task of the run; "" if it is not recorded."""
        return self.spec.task if self.spec else ""


class Part(Facts):
    """One part of an evaluation (likelihood, decode, score)."""

    id: Word = ""  # an eval_id over the settings that this part reads
    code_digest: Word | None = None
    wall_s: Amount = 0.0
    cpu_s: Amount | None = None  # of all threads of the process
    versions: Words = Field(default_factory=dict)
    facts: dict[str, Any] = Field(default_factory=dict)
    files: list[Word] = Field(default_factory=list)  # names of those that it wrote


class Seen(Facts):
    """Overlap of a set with the training set: counts of exactly equal texts."""

    pair: Count | None = None
    lines: Count | None = None  # of running text, among `of` long ones
    of: Count | None = None


class SetFacts(Facts):
    """Facts about the scored set's data."""

    seen_in_train: Seen = Field(default_factory=functools.cache(Seen))
    bytes: Count | None = None  # of running text


class EvaluationResult(Record):
    """The record of an evaluation."""

    decisive: ClassVar[frozenset[str]] = frozenset(
        {
            "run_id", "eval_id", "set", "settings", "inputs", "metrics", "files", "parts", "attempt", "weights_attempt",
            "renews",
        }
    )  # fmt: skip
    of_builtin: ClassVar[frozenset[str]] = frozenset({"set_facts"})

    run_id: Word = ""
    eval_id: Word = ""
    set: Word | None = None
    settings: dict[str, Any] | None = None
    inputs: Words | None = None
    attempt: Attempt = 0  # that made it; 0 until it is moved into place
    weights_attempt: Attempt | None = None  # that trained the weights
    renews: Attempt | None = None  # the attempt whose evaluation it replaces
    metrics: dict[Word, Annotated[float, Field(allow_inf_nan=True)] | None] = Field(default_factory=dict)
    lacking: dict[Word, Word] = Field(default_factory=dict)  # metrics that a user's trainer did not report → why
    readings: dict[Word, list[str]] = Field(
        default_factory=dict
    )  # metric → pattern of a study that read it, and `take`
    files: dict[Word, dict[str, Any]] = Field(default_factory=dict)  # beside the record, by name: bytes, sha256
    parts: dict[Word, Part] = Field(default_factory=dict)
    wall_s: Amount | None = None
    signature: Words = Field(default_factory=dict)  # by metric, of those that have one
    sentences: Count | None = None
    device: Word | None = None
    device_kind: Word | None = None
    precision: Word | None = None
    versions: Words = Field(default_factory=dict)
    set_facts: SetFacts = Field(default_factory=functools.cache(SetFacts))

    @property
    def code(self) -> dict[str, str]:
        """Digests of the code that made it, by part."""
        return {name: part.code_digest for name, part in self.parts.items() if part.code_digest}
