"""The JSON columns of the queue. They determine results and identify processes, so they are sealed records."""

import json
from collections.abc import Mapping
from typing import Any

from experiments.errors import Damaged
from experiments.jobs.queue.job import Job, Member
from experiments.store.sealed import seal, unseal


def to_text(values: Mapping[str, Any]) -> str:
    """Serialise a record with its checksum."""
    return json.dumps(seal(values))


def from_text(text: Any, run_id: str) -> dict[str, Any]:
    """Read a record of `to_text`. Raises Damaged."""
    try:
        return unseal(json.loads(text))
    except (ValueError, TypeError, RecursionError) as error:
        raise damaged(run_id, str(error)) from None


def job_from(text: Any, run_id: str, members: tuple[Member, ...] = ()) -> Job:
    """Read the job of a run. Raises Damaged if the text is not its job."""
    values = from_text(text, run_id)
    if values.get("run_id") != run_id:
        raise damaged(run_id, "it belongs to another run")
    try:
        return Job.from_json(values, members)
    except (TypeError, KeyError) as error:  # a field is missing
        raise damaged(run_id, str(error)) from None


def damaged(run_id: str, why: str) -> Damaged:
    """The error for a damaged queue entry."""
    return Damaged(
        f"The queue's entry of run {run_id} is damaged ({why}). Nothing that was trained is lost: `ablations run` or "
        "`queue` writes the entry again."
    )
