"""Read and write the JSON texts in the queue's tables.

The texts determine results and identify processes, so each of them contains a checksum.
"""

import json
from collections.abc import Mapping
from typing import Any

from experiments.errors import Damaged
from experiments.jobs.queue.job import Job, Member
from experiments.store.checksummed import with_checksum, without_checksum


def to_text(values: Mapping[str, Any]) -> str:
    """Return a record with its checksum as JSON text."""
    return json.dumps(with_checksum(values))


def from_text(text: Any, run_id: str) -> dict[str, Any]:
    """Return the record in a text that `to_text` wrote. Raise Damaged if the text does not match its checksum."""
    try:
        return without_checksum(json.loads(text))
    except (ValueError, TypeError, RecursionError) as error:
        raise damaged(run_id, str(error)) from None


def job_from(text: Any, run_id: str, members: tuple[Member, ...] = ()) -> Job:
    """Return the job in a text. Raise Damaged if the text is not the job of this run."""
    try:
        job = Job.from_json(from_text(text, run_id), members)
    except (TypeError, KeyError, ValueError) as error:  # a field is missing or has a wrong type
        raise damaged(run_id, str(error)) from None
    if job.run_id != run_id:
        raise damaged(run_id, "it belongs to another run")
    return job


def damaged(run_id: str, why: str) -> Damaged:
    """Return the error for a damaged queue entry."""
    return Damaged(
        f"The queue's entry of run {run_id} is damaged ({why}). Trained results are not lost. Write the entry again "
        "with `ablations run` or `ablations queue`."
    )
