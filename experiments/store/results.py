"""The fields of the records of a training and of an evaluation (result.json).

A child process writes the records, the coordinator adds the number of the attempt, and reports read them. This module
does not import torch.
"""

import functools
import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field

from experiments.run_spec import RunSpec, recorded_spec
from experiments.store.record_base import Amount, Attempt, Count, Facts, Record, Word, Words

RESULT_FILE = "result.json"


class Revision(Facts):
    """The state of the repository that contains the code. Only the revision of this program has a version."""

    repository: Word | None = None
    version: Word | None = None
    commit: Word | None = None
    dirty: bool | None = None


class Earlier(Facts):
    """An earlier attempt, which ended before the attempt that finished the training."""

    attempt: Attempt = 0
    seconds: Amount = 0.0
    ended: Word = ""  # a FailureClass, "stopped" or "killed"; version 0.1.0 also recorded "finished"


class Sides(Facts):
    """The language of each side of a corpus."""

    source: Word | None = None
    target: Word | None = None


class Sizes(Facts):
    """The vocabulary size of each side."""

    source: Count | None = None
    target: Count | None = None


class Side(Facts):
    """One side of the training set."""

    unknown_rate: Amount | None = None  # share of unknown word pieces


class Encoded(Facts):
    """The encoded training set. Counts are in sentence pairs."""

    kept: Count | None = None
    bytes: Count | None = None  # size of running text in bytes
    dropped_empty: Count = 0
    dropped_long: Count = 0
    source: Side = Field(default_factory=functools.cache(Side))
    target: Side = Field(default_factory=functools.cache(Side))


class Tokenizer(Facts):
    """The tokenizer that a training used."""

    sha256: Words = Field(default_factory=dict)  # file name → digest


class Data(Facts):
    """Facts about the data of a built-in training."""

    corpus: Sides = Field(default_factory=functools.cache(Sides))
    tokenizer: Tokenizer = Field(default_factory=functools.cache(Tokenizer))
    vocab_size: Sizes = Field(default_factory=functools.cache(Sizes))
    train: Encoded = Field(default_factory=functools.cache(Encoded))


class EnsembleMember(Facts):
    """A training that is a member of an ensemble."""

    run_id: Word = ""
    seed: Count | None = None
    weights: Word = ""  # digest of the weights; it shows whether the weights of this run_id have changed later


class ParentRunRecord(Facts):
    """The origin of a branch: its parent run, the step after which it begins, and a digest of the weights there."""

    run_id: Word = ""
    step: Count = 0
    weights: Word = ""


class Imported(Facts):
    """The origin of an imported run, and its description in the source. The program has not checked these facts."""

    kind: Word = ""  # "csv", "mlflow" or "wandb"
    source: Word = ""  # the file's name, or MLflow's address without a password
    sha256: Word | None = None  # digest of the file
    t: Amount | None = None  # Unix time of the import
    name: Word | None = None  # the run's name in the source
    id: Word | None = None  # the run's id in the source
    seed: Word | None = None  # the run's seed in the source
    settings: dict[Word, Any] = Field(default_factory=dict)  # settings in the source that the row does not set


class Output(Facts):
    """Position of the output of a user's command in the log of its attempt. The log also has lines of this program."""

    ranges: list[list[Count]] = Field(default_factory=list)  # [begin, end] in bytes; several if the log was shortened
    left_out: Count = 0  # number of bytes in the middle of the output that the log does not contain


def seed_value(text: str) -> int | str:
    """Return the whole number that a seed's text represents, for example 1 for "1", "01" and "1.0".

    Return any other text unchanged.
    """
    if text.isdecimal() and len(text) < 100:
        return int(text)
    try:
        found = float(text) if "_" not in text else math.nan  # only Python reads 1_000 as a number
    except ValueError:
        return text
    return int(found) if abs(found) < 1 << 53 and found.is_integer() else text


def _run_spec(value: object) -> object:
    return recorded_spec({"spec": value}) if isinstance(value, Mapping) else value


def _spec_of_0_1_0(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the field `spec` of a record of version 0.1.0; {} if a part of it is missing."""
    names = ("run_id", "config", "inputs")
    return {"spec": {name: content[name] for name in names}} if all(name in content for name in names) else {}


class TrainingResult(Record):
    """The record of a finished training or of an ensemble. ensembles.py explains the fields of an ensemble.

    Times are in seconds.
    """

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
    in_spec: ClassVar[frozenset[str]] = frozenset({"run_id", "task", "config", "inputs"})  # fields of version 0.1.0

    spec: Annotated[RunSpec, BeforeValidator(_run_spec)] | None = None  # the study's folder is not recorded
    imported: Imported | None = None  # origin of a run that was trained elsewhere
    attempt: Attempt = 0  # number of the attempt that finished the training; 0: not recorded
    pinned: dict[str, Any] = Field(default_factory=dict)  # settings that the first attempt fixed for all later attempts
    step: Count | None = None
    wall_s: Amount | None = None  # time of the last attempt
    train_s: Amount | None = None  # time of all attempts together
    earlier_attempts: list[Earlier] = Field(default_factory=list)
    continues: dict[str, Any] | None = None  # the shorter run that this run continued
    devices: Annotated[int, Field(ge=1, le=1_000_000)] | None = None  # number of devices that trained together
    device_share: Annotated[float, Field(gt=0, le=1)] | None = None  # share of each device that the run used
    device: Word | None = None
    device_kind: Word | None = None
    threads: Count | None = None
    host: Word | None = None
    platform: Word | None = None
    command: Word | None = None
    interpreter: Word | None = None  # interpreter of a user's trainer, as the study names it; None: this program's
    output: Output | None = None  # output of a user's command
    code_digest: Word | None = None
    # For a user's trainer: path → git's blob digest of each code file that the run used. The paths are relative to the
    # top of the repository, or to the study's folder if it is in no repository. None: not recorded.
    code_files: Words | None = None
    code_home: Word | None = None  # path of the study's folder, relative to the top of the repository
    # For a run whose row has a patch: the digests of the same paths in base's tree. {}: the code of the run is not
    # base's code with a patch. None: the digests in base's tree are equal to code_files.
    base_files: Words | None = None
    revision: Revision = Field(default_factory=functools.cache(Revision))
    tool: Revision = Field(default_factory=functools.cache(Revision))  # revision of this program
    versions: Words = Field(default_factory=dict)
    peak_memory_bytes: Count | None = None
    example_files: dict[Word, dict[str, Any]] = Field(default_factory=dict)  # file name → bytes, sha256

    data: Data = Field(default_factory=functools.cache(Data))
    precision: Word | None = None
    num_params: Count | None = None
    flops: Amount | None = None
    flops_per_token: Amount | None = None
    target_tokens: Count | None = None
    resumed_from: Count | None = None
    seconds: Amount | None = None  # time of the last attempt's steps and of the measurements between them
    steps_s: Amount | None = None  # time of these steps alone
    steps_cpu_s: Amount | None = None  # processor time of these steps alone, summed over all threads
    start: dict[Word, Amount | None] = Field(default_factory=dict)  # statistics measured before the first update
    end: dict[Word, Amount | None] = Field(default_factory=dict)  # statistics measured before the last update
    ensemble: list[EnsembleMember] = Field(default_factory=list)  # members of an ensemble; empty for a training
    # The origin of a branch. The times, tokens and operations in the record of a branch are those of its own steps,
    # without the steps of the parent run.
    parent_run: ParentRunRecord = Field(default_factory=functools.cache(ParentRunRecord))

    @property
    def identities(self) -> Mapping[str, Any]:
        """Mapping with the record's run_id, which is a field of `spec`."""
        return self.content if self.spec is None else {"run_id": self.spec.run_id}

    @classmethod
    def read(cls, content: Mapping[str, Any], place: str = "a record") -> Self:
        """Return the record with this content. Version 0.1.0 stored the fields of `spec` at the top level."""
        record = super().read(content if "spec" in content else {**content, **_spec_of_0_1_0(content)}, place)
        record._content = dict(content)
        return record

    @classmethod
    def reserved(cls, fact: str) -> bool:
        """Return whether the record itself uses this name, so that a user's trainer may not report a fact under it."""
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
    """One part of an evaluation: likelihood, decode or score."""

    id: Word = ""  # digest like an eval_id, but computed only from the settings that this part uses
    code_digest: Word | None = None
    wall_s: Amount = 0.0
    cpu_s: Amount | None = None  # processor time, summed over all threads of the process
    versions: Words = Field(default_factory=dict)
    facts: dict[str, Any] = Field(default_factory=dict)
    files: list[Word] = Field(default_factory=list)  # names of the files that this part wrote


class Seen(Facts):
    """Overlap of a set with the training set, as counts of exactly equal texts."""

    pair: Count | None = None  # number of pairs that also occur in the training set
    lines: Count | None = None  # for running text: number of long lines that also occur in the training set
    of: Count | None = None  # for running text: number of all long lines in the set


class SetFacts(Facts):
    """Facts about the data of the scored set."""

    seen_in_train: Seen = Field(default_factory=functools.cache(Seen))
    bytes: Count | None = None  # size of running text in bytes


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
    attempt: Attempt = 0  # attempt that made the evaluation; 0 until the coordinator publishes the evaluation
    weights_attempt: Attempt | None = None  # attempt that trained the weights
    renews: Attempt | None = None  # attempt whose evaluation this evaluation replaces
    metrics: dict[Word, Annotated[float, Field(allow_inf_nan=True)] | None] = Field(default_factory=dict)
    lacking: dict[Word, Word] = Field(default_factory=dict)  # metric that a user's trainer did not report → reason
    # metric → the pattern of the study that found its value in the output, and the pattern's `take`
    readings: dict[Word, list[str]] = Field(default_factory=dict)
    files: dict[Word, dict[str, Any]] = Field(default_factory=dict)  # name of a file of the folder → bytes, sha256
    parts: dict[Word, Part] = Field(default_factory=dict)
    wall_s: Amount | None = None
    signature: Words = Field(default_factory=dict)  # metric → signature, if the metric has one
    sentences: Count | None = None
    device: Word | None = None
    device_kind: Word | None = None
    precision: Word | None = None
    versions: Words = Field(default_factory=dict)
    set_facts: SetFacts = Field(default_factory=functools.cache(SetFacts))

    @property
    def code(self) -> dict[str, str]:
        """Mapping of each part of the evaluation to the digest of the code that made it."""
        return {name: part.code_digest for name, part in self.parts.items() if part.code_digest}
