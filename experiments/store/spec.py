"""The description of an attempt, which the coordinator writes for the child as spec.json in the attempt's folder."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from experiments.device_spec import DeviceSpec
from experiments.errors import Damaged
from experiments.run_spec import EvaluationSpec, RunSpec, recorded_spec
from experiments.store.checksummed import read_json, with_checksum

FILE = "spec.json"


@dataclass(frozen=True)
class AttemptSpec:
    """The description of one attempt at a run. Paths are absolute, except the paths in `earlier`."""

    spec: RunSpec
    store: str
    attempt: int
    device: DeviceSpec
    train: bool = True  # whether to train; if not, the weights exist, and the attempt only evaluates
    evaluations: tuple[EvaluationSpec, ...] = ()
    renew: Mapping[str, int] = field(default_factory=dict)  # eval_id → the attempt whose stored evaluation is replaced
    limit: int | None = None  # number of examples of each set to evaluate; None: all
    members: tuple[tuple[str, ...], ...] = ()  # table rows of the run, each as (study, profile, corpus, row, group)
    earlier: tuple[str, ...] = ()  # folders of attempts whose checkpoints may be used, in order of preference
    pinned: Mapping[str, Any] = field(default_factory=dict)  # settings that the first attempt fixed for later attempts
    keeps: tuple[tuple[Any, ...], ...] = ()  # checkpoints that evaluations of other rows need (retention.py)
    coordinator: Mapping[str, Any] | None = None  # identity of the process with which the child ends, if any

    def write(self, folder: Path) -> Path:
        """Write the spec into the attempt's folder and return the file.

        The file is not fsynced, because a power cut that destroys it ends the attempt too.
        """
        (folder / FILE).write_text(json.dumps(with_checksum(asdict(self)), indent=1), encoding="utf-8")
        return folder / FILE

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read a spec of this version or of version 0.1.0. Raise Damaged for any other content."""
        found = read_json(file) or {}
        try:
            evaluations, renewed = read_evaluations(found.get("evaluations", ()))
            read: dict[str, Any] = {
                "spec": recorded_spec(found),
                "device": DeviceSpec(**found["device"]),
                "evaluations": evaluations,
                "renew": {**renewed, **found.get("renew", {})},
                "earlier": tuple(found.get("earlier", ())),
                **{name: tuple(tuple(item) for item in found.get(name, ())) for name in ("members", "keeps")},
            }
            names = {one.name for one in fields(cls)}
            return cls(**{**{name: value for name, value in found.items() if name in names}, **read})
        except (TypeError, KeyError, ValueError) as error:
            raise Damaged(f"{file} is not the spec of an attempt ({error}).") from None


def read_evaluations(items: Iterable[Mapping[str, Any]]) -> tuple[tuple[EvaluationSpec, ...], dict[str, int]]:
    """Return the evaluations in a record, and a dict from eval_ids to the values of `renew`.

    Only version 0.1.0 recorded `renew` as a field of an evaluation.
    """
    specs, renewed = [], {}
    for item in items:
        renew = item.get("renew")
        specs.append(EvaluationSpec.from_json({name: value for name, value in item.items() if name != "renew"}))
        if renew is not None:
            renewed[specs[-1].eval_id] = int(renew)
    return tuple(specs), renewed
