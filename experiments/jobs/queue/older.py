"""Convert the entries of a queue of version 0.1.0. In that version, jobs contained the fields of a RunSpec directly.

An entry keeps its state and its attempts. If this user signed the old entry, the converted entry is signed too. A
damaged entry is not changed, and its run fails when the entry is read later.
"""

import sqlite3
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from experiments.errors import Damaged
from experiments.jobs.queue import trust
from experiments.jobs.queue.job import Job
from experiments.jobs.queue.job_json import from_text, to_text
from experiments.run_spec import recorded_spec
from experiments.store.retention import Keep, union
from experiments.store.run_names import named_by_of, recorded_name
from experiments.store.spec import read_evaluations

VERSION_0_1_0 = 9  # the queue version of version 0.1.0 of this program
_SAME = (
    "train", "prepared_key", "memory_gb", "gpu_memory_gb", "devices", "priority", "turn", "rerun_after", "keeps",
    "continues", "limit", "read_at",
)  # fmt: skip


def convert(connection: sqlite3.Connection) -> None:
    """Rewrite all entries inside a transaction of the caller."""
    for run_id, text, signature in connection.execute("SELECT run_id, spec, signature FROM jobs").fetchall():
        try:
            spec = to_text(_converted(from_text(text, run_id)))
        except (Damaged, KeyError, TypeError, ValueError):
            continue
        signature = trust.sign(spec) if trust.signed(text, signature) else ""
        connection.execute("UPDATE jobs SET spec=?, signature=? WHERE run_id=?", (spec, signature, run_id))


def _converted(values: Mapping[str, Any]) -> dict[str, Any]:
    evaluations, renewed = read_evaluations(values["evaluations"])
    read_by, _ = read_evaluations(values["read_by"])
    same = {name: values[name] for name in _SAME}
    keeps = union(Keep(*keep) for keep in values["keeps"])
    same |= {"keeps": keeps, "continues": tuple(values["continues"]), "read_at": tuple(values["read_at"])}
    spec = recorded_spec(values)
    if spec.named_by is None and (name := recorded_name(spec.run_id, values, values["config"], spec.inputs)):
        spec = replace(spec, named_by=named_by_of(name))  # only runs of users' trainers have this record
    return Job(spec, evaluations=evaluations, renew=renewed, read_by=read_by, **same).to_json()
