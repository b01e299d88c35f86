"""The tables that a run belongs to: from the queue, the events of its attempts, and the rows in its folder."""

import itertools

from experiments.events.event_log import Tail
from experiments.events.history import HEAD
from experiments.jobs.queue.job import JobStatus, Member
from experiments.jobs.queue.queue import Queue
from experiments.store.description import rows_of
from experiments.store.layout import Store


class Members:
    """Looks up the tables of runs; reads the queue once, and events where they are needed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        with Queue(store.queue_db, create=False) as queue:
            self.queued: dict[str, JobStatus] = {row.run_id: row for row in queue.status()}
            self._recorded = queue.members()
        self._found: dict[str, tuple[Member, ...]] = {}

    def of(self, run_id: str) -> tuple[Member, ...]:
        """Every table for which the run was queued."""
        if run_id not in self._found:
            self._found[run_id] = tuple(dict.fromkeys([*self._recorded.get(run_id, ()), *self._begun(run_id)]))
        return self._found[run_id]

    def _begun(self, run_id: str) -> list[Member]:
        found = []
        for number in self._store.attempts(run_id):
            events = itertools.islice(Tail(self._store.attempt_folder(run_id, number)).read(), HEAD)
            started = next((event for event in events if event["kind"] == "started"), {})
            found += [Member(*words) for words in started.get("members", ()) if 4 <= len(words) <= 5]
        return found + [Member(*row.member) for row in rows_of(self._store, run_id)]
