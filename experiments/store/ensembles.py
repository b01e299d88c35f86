"""The members of an ensemble and the record of an ensemble. The members are finished runs whose models decode together.

An ensemble is a run with its own run_id (experiments/identity.py). Its record contains the sums of the parameters,
operations and times of its members. A fact in which the members differ is left out, or lists all distinct values. This
module does not import torch.
"""

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.errors import Damaged, UserError
from experiments.identity import digest
from experiments.store.checksummed import read_json
from experiments.store.layout import Store, config_of
from experiments.store.results import EnsembleMember, TrainingResult

# Facts about the hardware and software that trained the members. A fact is recorded if it is equal for all members. The
# facts of _DEVICE are recorded only if all of them are equal, because a training time has a meaning only together with
# all of them.
_DEVICE = ("device", "device_kind", "devices", "device_share", "threads")
_SHARED = ("step", "host", "platform", "revision", "tool")


class TrainedMember(NamedTuple):
    """A finished training: its run_id, its record, and the folder of the attempt that contains its weights."""

    run_id: str
    record: TrainingResult
    folder: Path

    @property
    def entry(self) -> EnsembleMember:
        """The entry for this member in the ensemble's record."""
        seed, weights = self.record.config.get("seed"), weights_digest(self.folder)
        return EnsembleMember(run_id=self.run_id, seed=seed, weights=weights)


def weights_digest(folder: Path) -> str:
    """Return a digest of the final weights in an attempt's folder; "" if they are missing.

    Raises Damaged if the file that describes the weights is damaged.
    """
    files = (read_json(folder / "final" / "meta.json") or {}).get("files")
    return digest(files) if files else ""


def members(store: Store, run_ids: Iterable[str]) -> list[TrainedMember]:
    """Return the members of an ensemble with these run_ids.

    Raises UserError if a run is not trained, or if its tokenizer differs from that of the first run.
    """
    found: list[TrainedMember] = []
    for run_id in run_ids:
        record, folder = store.result(run_id), store.weights_folder(run_id)
        if record is None or folder is None:
            raise UserError(
                f"{_named(store, run_id)} of this ensemble is not trained: it failed, was cancelled, or its folder was "
                "removed. `ablations status` shows why; `ablations run` trains it and then evaluates the ensemble."
            )
        if found and record.data.tokenizer.sha256 != found[0].record.data.tokenizer.sha256:
            raise UserError(
                f"{_named(store, run_id)} of this ensemble has another vocabulary than "
                f"{_named(store, found[0].run_id).lower()}: their tokenizers differ, so their pieces are "
                "not the same. Train them again on one prepared corpus."
            )
        found.append(TrainedMember(run_id, record, folder))
    return found


def _named(store: Store, run_id: str) -> str:
    seed = config_of(store, run_id).get("seed")
    return f"The member with seed {seed} (run {run_id})" if seed else f"The member {run_id}"


def changed(store: Store, record: TrainingResult) -> list[EnsembleMember]:
    """Return the members of a recorded ensemble whose weights have changed since then.

    Members whose weights cannot be read, or were not recorded, are not returned.
    """
    found = []
    for member in record.ensemble:
        with contextlib.suppress(Damaged):
            folder = store.weights_folder(member.run_id)
            now = weights_digest(folder) if folder else ""
            if now and member.weights and now != member.weights:
                found.append(member)
    return found


def together(found: Sequence[TrainedMember]) -> dict[str, Any]:
    """Return the fields of the ensemble's record."""
    records = [member.record for member in found]
    first = records[0]
    alike = [n for n in (*_DEVICE, *_SHARED) if all(getattr(each, n) == getattr(first, n) for each in records)]
    # the total time of a run that continued a shorter run is unknown
    train_s = _sum(None if record.continues else record.train_s for record in records)
    facts: dict[str, Any] = {
        "ensemble": [member.entry for member in found],
        "num_params": _sum(record.num_params for record in records),
        "flops": _sum(record.flops for record in records),
        "target_tokens": _sum(record.target_tokens for record in records),
        "train_s": None if train_s is None else round(train_s, 3),
        "precision": _each(record.precision for record in records),
        "code_digest": _each(record.code_digest for record in records),
        "versions": {
            name: _each(record.versions.get(name, "none") for record in records)
            for name in sorted({name for record in records for name in record.versions})
        },
        "data": first.data,
        **{name: getattr(first, name) for name in alike if name in _SHARED or {*_DEVICE} <= {*alike}},
    }
    return {name: value for name, value in facts.items() if value is not None}


def _sum(values: Iterable[Any]) -> Any:
    """Return the sum of the values; None if a value is unknown."""
    known = list(values)
    return None if None in known else sum(known)


def _each(values: Iterable[str | None]) -> str | None:
    """Return the distinct values as text, such as "fp32" or "bf16 and fp32"; None if a value is unknown."""
    known = list(dict.fromkeys(values))
    return None if None in known else " and ".join(map(str, known))
