"""The coordinator's order to a child: spec.json in the attempt's folder."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from experiments.errors import Damaged
from experiments.store.checksummed import read_json, with_checksum

FILE = "spec.json"


@dataclass(frozen=True)
class EvaluationRequest:
    """One evaluation to make. `renew`: the attempt whose stored evaluation it replaces, or None.

    promised: as in EvaluationSpec (experiments/tasks/base.py).
    """

    eval_id: str
    set: str
    settings: Mapping[str, Any]
    inputs: Mapping[str, str]
    renew: int | None = None
    promised: Sequence[str] = ()


@dataclass(frozen=True)
class AttemptSpec:
    """One attempt at one run. Paths are absolute, except those of `earlier`."""

    store: str
    run_id: str
    attempt: int
    task: str
    config: Mapping[str, Any]  # complete and nested
    inputs: Mapping[str, str]  # digests of the training inputs
    device: Mapping[str, Any]  # {kind, threads, memory_gb, count, share}: experiments.device_spec.DeviceSpec
    train: bool = True  # False: the weights exist, only evaluations are made
    evaluations: tuple[EvaluationRequest, ...] = ()
    limit: int | None = None  # examples of each set that evaluations take; None: all
    folder: str = ""  # the study's folder, where a user's own task is found; "" for a built-in study
    python: str = ""  # the interpreter of a user's function, relative to that folder; "": this program's
    members: tuple[tuple[str, ...], ...] = ()  # (study, profile, corpus, row, group): the tables it appears in
    earlier: tuple[str, ...] = ()  # attempts whose checkpoints may be used, newest first, relative to the store
    pinned: Mapping[str, Any] = field(default_factory=dict)  # resolved by the first attempt, so that a resume is exact
    keeps: tuple[tuple[Any, ...], ...] = ()  # checkpoints that evaluations of other rows need (retention.py)
    named_by: Mapping[str, Any] | None = None  # the settings that name a run of a user's trainer (store/run_names.py)
    coordinator: Mapping[str, Any] | None = None  # the process that the child ends with; None: it outlives all

    def write(self, folder: Path) -> Path:
        """Write the spec into the attempt's folder; returns the file. Not durable: a power cut ends the attempt too."""
        (folder / FILE).write_text(json.dumps(with_checksum(asdict(self)), indent=1), encoding="utf-8")
        return folder / FILE

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read a spec. Raises Damaged for anything else."""
        found = read_json(file) or {}
        try:
            found["evaluations"] = tuple(EvaluationRequest(**item) for item in found.get("evaluations", ()))
            for name in ("members", "keeps"):
                found[name] = tuple(tuple(item) for item in found.get(name, ()))
            found["earlier"] = tuple(found.get("earlier", ()))
            return cls(**found)
        except TypeError as error:
            raise Damaged(f"{file} is not the spec of an attempt ({error}).") from None
