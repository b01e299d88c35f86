"""The JSON columns of a queue's entries. They decide numbers and name processes, so they are sealed records."""

import json
from collections.abc import Mapping
from typing import Any

from experiments.errors import Damaged
from experiments.jobs.queue.job import Job, Member
from experiments.store.sealed import seal, unseal


def to_text(values: Mapping[str, Any]) -> str:
    return json.dumps(seal(values))


def from_text(text: Any, run_id: str) -> dict[str, Any]:
    """Raises Damaged unless it is what `to_text` gave; text of earlier versions is not sealed."""
    try:
        return unseal(json.loads(text))
    except (ValueError, TypeError, RecursionError) as error:
        raise damaged(run_id, str(error)) from None


def job_from(text: Any, run_id: str, members: tuple[Member, ...] = ()) -> Job:
    """Raises Damaged unless it is the job of that run."""
    values = from_text(text, run_id)
    if values.get("run_id") != run_id:
        raise damaged(run_id, "it is of another run")
    try:
        return Job.from_json(values, members)
    except TypeError as error:  # a setting is lacking
        raise damaged(run_id, str(error)) from None


def damaged(run_id: str, why: str) -> Damaged:
    return Damaged(
        f"The queue's entry of run {run_id} is damaged ({why}). Nothing that was trained is lost: `ablations run` or "
        "`queue` writes the entry anew."
    )
