"""The tables that a run belongs to: from the queue, and from the events of its attempts where the queue is gone."""

import itertools

from ablations.service.queued_runs import all_rows
from experiments.events.event_log import Tail
from experiments.events.history import HEAD
from experiments.jobs.queue.job import JobStatus, Member
from experiments.store.layout import Store


class Members:
    """Looks up the tables of runs; reads the queue once, and events where they are needed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.queued: dict[str, JobStatus] = {row.run_id: row for row in all_rows(store)}
        self._found: dict[str, tuple[Member, ...]] = {}

    def of(self, run_id: str) -> tuple[Member, ...]:
        """Every table for which the run was queued."""
        if run_id not in self._found:
            queued = self.queued[run_id].members if run_id in self.queued else ()
            self._found[run_id] = tuple(dict.fromkeys([*queued, *self._begun(run_id)]))
        return self._found[run_id]

    def _begun(self, run_id: str) -> list[Member]:
        found = []
        for number in self._store.attempts(run_id):
            events = itertools.islice(Tail(self._store.attempt_folder(run_id, number)).read(), HEAD)
            started = next((event for event in events if event["kind"] == "started"), {})
            found += [Member(*words) for words in started.get("members", ()) if 4 <= len(words) <= 5]
        return found
