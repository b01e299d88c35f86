"""Decide whether the runs that the queue lists as running are really running.

If the coordinator and its children are killed together, the end of the runs is not recorded, and the queue lists them
as running until the next coordinator starts. `observed` finds such runs. It reads the queue, the coordinator's lock and
the heartbeats, and changes nothing.

A run counts as interrupted only if this is certain:

 - No coordinator works on the store. A coordinator itself records the end of its children within a second.
 - The child has ended. On this machine, the process shows it. A child on another machine ends with its coordinator, so
   it has ended if its heartbeat stopped too. A child on a cluster may outlive its coordinator, so it never counts as
   interrupted here.
"""

import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from experiments.events.heartbeat import last_heartbeat
from experiments.jobs.queue.job import JobStatus, State
from experiments.jobs.queue.queue_connection import QueueConnection
from experiments.messages import duration
from experiments.processes.process_identity import is_alive
from experiments.store.layout import Store

# Seconds without a heartbeat after which a child may have ended. The heartbeat comes once a second, but a network disk
# may show it half a minute late.
SILENT_S = 60.0
LOCAL = "local"  # the engine whose children end with their coordinator; its references name no engine


def observed(store: Store, queue: QueueConnection, rows: Iterable[JobStatus]) -> list[JobStatus]:
    """Return the rows with the state "interrupted" for runs that were interrupted, and without their predictions.

    If a running run may or may not have been interrupted, `doing` says since when it has no heartbeat.
    """
    rows = list(rows)
    if all(row.state is not State.RUNNING for row in rows):
        return rows
    free = not store.coordinator()
    refs = queue.running_refs()
    # A coordinator that started meanwhile may have claimed the runs. Therefore the lock is read before and after them.
    free = free and not store.coordinator()
    return [_observed(store, row, refs.get((row.run_id, row.attempt)), free) for row in rows]


def _observed(store: Store, row: JobStatus, ref: Mapping[str, Any] | None, free: bool) -> JobStatus:
    """Return a row with its observed state.

    ref: the engine's reference to the child; {} if no child was recorded; None if the run is not running any more.
    free: whether no coordinator works on the store.
    """
    if row.state is not State.RUNNING or ref is None:
        return row
    here = ref.get("host") == socket.gethostname()
    last = last_heartbeat(store.attempt_folder(row.run_id, row.attempt))
    silent_s = time.time() - (last or row.started or 0.0)
    ended = not _lives(ref) if here else silent_s > SILENT_S or not (ref or last)
    if ended and free and ref.get("engine", LOCAL) == LOCAL:
        return replace(row, state=State.INTERRUPTED, doing="", left_s=None)
    if last and silent_s > SILENT_S:
        clock = "" if here else " by this machine's clock"
        doing = f"no heartbeat for {duration(silent_s)}{clock}, {row.doing}".rstrip(", ")
        return replace(row, doing=doing, left_s=None)
    return row


def _lives(ref: Mapping[str, Any]) -> bool:
    """Return whether a process of this machine is alive; True if the system cannot answer at the moment."""
    try:
        return is_alive(ref)
    except OSError:
        return True
