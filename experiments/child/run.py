"""The child process. The child makes one attempt at one run: it trains, evaluates, and reports its progress as events.

    python -m experiments.child.run [--alone] SPEC

SPEC is the file that the coordinator wrote into the attempt's folder (experiments/store/spec.py). With `--alone`, the
child does not need a coordinator. This option is for debugging with a copy of an old SPEC (docs/architecture.md).

If a run trains on several devices, each device has one process. The child is rank 0, and starts the other ranks with
`python -m experiments.child.run SPEC RANK PORT`.

Exit codes (experiments/records.py: ChildExit): 0 finished, 1 failed, 3 preempted, 4 the disk is full. After a failure,
the last event contains the reason.
"""

import contextlib
import faulthandler
import logging
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from experiments.attempt_context import AttemptContext
from experiments.child.evaluations import Evaluations, versions_of
from experiments.child.rank_processes import RankProcesses
from experiments.child.stopping import StopRequest
from experiments.config.task_config import TaskConfig
from experiments.device_spec import DeviceSpec
from experiments.errors import Damaged, Diverged, Preempted, TrainerFailed, UserError, failure_class
from experiments.events.accounting import training_time
from experiments.events.event_log import EventWriter
from experiments.events.heartbeat import start_heartbeat
from experiments.identity import PROBE_ID, eval_identity, run_identity
from experiments.processes.meter import Meter
from experiments.processes.process_identity import age_s
from experiments.records import ChildExit, FailureClass
from experiments.store import ensembles, provenance, trees
from experiments.store.checksummed import write_json
from experiments.store.layout import Store
from experiments.store.results import RESULT_FILE, Revision, TrainingResult
from experiments.store.run_names import name_given_by
from experiments.store.spec import AttemptSpec
from experiments.tasks.base import Task
from experiments.tasks.load import task_of, trains_apart, validated
from experiments.tasks.own.function import OwnTask
from experiments.tasks.own.run_code import code_top, watched
from experiments.training.warm_start import checkpoint_of

log = logging.getLogger("experiments.child.run")


def main(spec_path: Path, rank: int = 0, port: int = 0, *, alone: bool = False) -> int:
    """Run one attempt and return the exit code. If the attempt fails, its last event describes the failure.

    If a signal killed a user's trainer, this process ends by the same signal.

    rank, port: rank of this process, and port of rank 0, if several devices train the run.
    alone: whether to continue when the coordinator that the spec names has ended.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True)
    faulthandler.enable()  # write the stack to the log when native code crashes
    folder = spec_path.parent
    try:
        meter = None if rank else Meter()
        events = EventWriter(folder / "ranks" / str(rank) if rank else folder, meter.used if meter else None)
    except OSError as error:
        log.exception("no event can be written")
        return ChildExit.DISK_FULL if failure_class(error) == FailureClass.DISK_FULL else ChildExit.FAILED
    limit_gb: float | None = None
    try:
        attempt = AttemptSpec.read(spec_path)
        device = attempt.device
        limit_gb = device.memory_gb
        stop = StopRequest(None if rank or alone else attempt.coordinator)
        cap_memory(device)
        if not rank:
            start_heartbeat(folder)
        if meter is not None:
            meter.lease(device.kind, device.share, device.count)
        run = attempt.spec
        with _watched(attempt, folder):
            task = task_of(run)
            if rank:
                _other_rank(attempt, task, folder, rank, port)
            else:
                # Compute the digest now, because a user may edit the modules of the trainer while it runs.
                config = validated(task, run)
                code = task.training_code(Path(attempt.store))
                _announce(events, attempt, task, code)
                _attempt(attempt, task, config, folder, events, stop, code)
        events.emit("finished")
    except Preempted as outcome:
        events.emit("preempted", step=outcome.step)
        return ChildExit.PREEMPTED
    except Exception as error:
        # The log already contains the traceback of TrainerFailed. Diverged needs no traceback, because its message is
        # sufficient.
        if isinstance(error, TrainerFailed | Diverged):
            log.error("failed: %s", error)
        else:
            log.exception("failed")
        # If a signal killed the trainer, the child ends by the same signal. The coordinator then resumes the run.
        if isinstance(error, TrainerFailed) and error.signal:
            with contextlib.suppress(OSError):  # the handler of SIGKILL cannot be changed
                signal.signal(error.signal, signal.SIG_DFL)
            os.kill(os.getpid(), error.signal)
        return _say_failed(error, events, folder, limit_gb)
    return ChildExit.FINISHED


def _watched(attempt: AttemptSpec, folder: Path) -> AbstractContextManager[None]:
    """Return a context in which the imports of a user's trainer are recorded.

    The context does nothing for built-in tasks. The context also does nothing for a row that changes code, because the
    task of such a row records the imports itself (experiments/tasks/own/run_code.py: own_code).
    """
    run = attempt.spec
    if not trains_apart(run.task) or run.trainer.tree:
        return contextlib.nullcontext()
    home = Path(run.folder) if run.folder else Path.cwd()
    return watched(folder, code_top(home), [Path(attempt.store)])


def cap_memory(device: DeviceSpec) -> None:
    """Limit the memory of a run on a processor to `device.memory_gb`.

    Allocations beyond the limit fail, and the coordinator then resumes the run with smaller micro-batches. The limit
    applies to private writable memory (RLIMIT_DATA). For a run on a GPU, this function does nothing, because torch
    limits the memory of the GPU (experiments/device.py).
    """
    if device.kind != "cpu" or device.memory_gb is None:
        return
    share, (_, hard) = int(device.memory_gb * 1e9 / device.count), resource.getrlimit(resource.RLIMIT_DATA)
    if hard == resource.RLIM_INFINITY or share <= hard:
        resource.setrlimit(resource.RLIMIT_DATA, (share, hard))


def _say_failed(error: Exception, events: EventWriter, folder: Path, limit_gb: float | None) -> int:
    if not folder.is_dir():  # the store was moved or removed during the run, so the run itself did not fail
        log.warning("%s is gone: the store was moved or removed", folder)
        events.emit("preempted", step=None)
        return ChildExit.PREEMPTED
    cls, message = failure_class(error), str(error)
    if cls == FailureClass.OUT_OF_MEMORY and limit_gb is not None:
        reason = f"{message.rstrip('.')}. " if message else ""
        message = f"{reason}The run may use {limit_gb:g} GB (--devices)."
    try:
        source = error.__cause__ if isinstance(error.__cause__, TrainerFailed) else error
        stack = source.traceback if isinstance(source, TrainerFailed) else traceback.format_exc()
        events.emit("failed", cls=cls, message=message, traceback=stack)
    except OSError:  # the event cannot be written, so only the exit code reports the failure
        log.exception("the failure could not be reported")
        return ChildExit.DISK_FULL
    return ChildExit.DISK_FULL if cls == FailureClass.DISK_FULL else ChildExit.FAILED


def _announce(events: EventWriter, attempt: AttemptSpec, task: Task, code: str) -> None:
    events.emit(
        "started",
        attempt=attempt.attempt,
        after_s=round(age_s(), 3),
        pid=os.getpid(),
        members=attempt.members,
        device=asdict(attempt.device),
        code_digest=code,
        revision=_revision(attempt, task).facts(),
        tool=provenance.tool(),
        versions=task.versions(),
        **provenance.host(),
    )


def _revision(attempt: AttemptSpec, task: Task) -> provenance.RepositoryState:
    """Return the repository, commit and uncommitted diff of the code that this attempt runs.

    For a row that changes code, this code is the tree that was fixed when the run was planned.
    """
    if tree := attempt.spec.trainer.tree:
        return trees.revision_of(Path(attempt.store), tree)
    if not isinstance(task, OwnTask):
        return provenance.tool_revision()
    return provenance.revision_of(task.code_paths(), task.script, task.folder)


def _other_rank(attempt: AttemptSpec, task: Task, folder: Path, rank: int, port: int) -> None:
    """Train as one of the ranks 1, 2, …. Rank 0 emits the run's events and decides when to stop.

    This process ends when the process of rank 0 has ended.
    """
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    store = Store.open(attempt.store, create=False)
    config = validated(task, attempt.spec)
    code = task.training_code(store.root)
    context = _context(attempt, store, folder, code, lambda kind, **fields: None, lambda: False)
    task.train(config, replace(context, rank=rank, port=port))


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(ChildExit.FAILED)


def _context(
    attempt: AttemptSpec,
    store: Store,
    folder: Path,
    code: str,
    emit: Callable[..., None],
    should_stop: Callable[[], bool],
) -> AttemptContext:
    return AttemptContext(
        attempt,
        folder,
        emit,
        should_stop,
        code_digest=code,
        start=checkpoint_of(store, attempt.spec.parent_run, code) if attempt.spec.parent_run else None,
    )


def _attempt(
    attempt: AttemptSpec, task: Task, config: Any, folder: Path, events: EventWriter, stop: StopRequest, code: str
) -> None:
    """Train the run and write its result, or find its trained weights. Then make the evaluations.

    code: the digest of the training code when the attempt began.
    """
    store = Store.open(attempt.store, create=False)
    run_id = attempt.spec.run_id
    _check_identities(attempt, config)
    pinned = dict(attempt.pinned)

    def emit(kind: str, **fields: Any) -> None:
        pinned.update(fields if kind == "pinned" else {})
        events.emit(kind, **fields)

    members = open_members(attempt, store)
    context = _context(attempt, store, folder, code, emit, stop)
    context = replace(
        context,
        members=[member.folder for member in members],
        start_ranks=lambda port: RankProcesses(folder, context.device.count, port, emit),
    )
    weights = folder
    if attempt.train and members:
        record = _record(attempt, command=provenance.host()["command"], **ensembles.together(members))
        write_json(folder / RESULT_FILE, record.content)
        events.emit("trained", step=record.step)
    elif attempt.train:
        began = time.monotonic()
        facts = task.train(config, context)
        _write_result(attempt, task, context, store, {"pinned": pinned, **facts}, time.monotonic() - began)
        events.emit("trained", step=facts.get("step"))
    else:
        trained = store.weights_folder(run_id)
        if trained is None:
            raise RuntimeError(f"run {run_id} has no weights to evaluate")
        weights = trained
    Evaluations(config, task, weights, context, events, task.code).make(attempt.evaluations, attempt.renew)


def _check_identities(attempt: AttemptSpec, config: TaskConfig) -> None:
    """Raise Damaged if the settings of the run or of an evaluation do not give the run_id or eval_id in the spec."""
    run = attempt.spec
    if run.run_id == PROBE_ID:
        return
    if run.named_by is None:
        named = {run.run_id: run_identity(config, run.inputs)}
    else:
        named = {run.run_id: name_given_by(run.named_by, run.config, run.inputs, run.trainer.command)}
    for item in attempt.evaluations:
        named[item.eval_id] = eval_identity(run.run_id, item.settings, item.inputs)
    for identity, made in named.items():
        if identity != made:
            other = f"the identity {made}" if made else "another identity"
            raise Damaged(
                f"The settings of {identity} have {other}: they are not the settings of this name. The queue was "
                "damaged, or the trainer's settings have changed since this was queued. `ablations run` queues the "
                "study's runs again."
            )


def _record(attempt: AttemptSpec, **facts: Any) -> TrainingResult:
    """Return the result of an attempt that trained the run, or that found the members of an ensemble."""
    return TrainingResult(
        spec=attempt.spec.portable,
        attempt=attempt.attempt,
        **facts,
    )


def _write_result(
    attempt: AttemptSpec, task: Task, context: AttemptContext, store: Store, facts: dict[str, Any], seconds: float
) -> None:
    revision = _revision(attempt, task)
    if revision.diff:
        (context.folder / "uncommitted.diff").write_text(revision.diff, encoding="utf-8")
    result = _record(
        attempt,
        wall_s=round(seconds, 3),
        devices=context.device.count,
        device_share=context.device.share,
        code_digest=context.code_digest,
        revision=Revision(**revision.facts()),
        tool=Revision(**provenance.tool()),
        versions=versions_of(task, facts),
        **provenance.host(),
        **training_time(store, attempt.spec.run_id, attempt.attempt, seconds),
    )
    # The trainer's facts come first, so that they cannot replace the fields of the result.
    write_json(context.folder / RESULT_FILE, {**facts, **result.content})


def open_members(attempt: AttemptSpec, store: Store) -> list[ensembles.TrainedMember]:
    """Return the members of an ensemble; [] if the run is not an ensemble.

    Raises UserError if a member is missing. If the attempt only evaluates an ensemble, UserError is also raised if a
    member was trained again with other weights since the ensemble was recorded.
    """
    members = ensembles.members(store, attempt.spec.members)
    recorded = None if attempt.train or not members else store.result(attempt.spec.run_id)
    if recorded is not None and (other := ensembles.changed(store, recorded)):
        raise UserError(
            f"The run {other[0].run_id}, a member of this ensemble, was trained again with other weights since the "
            "ensemble was evaluated. `ablations run … --stale rerun` evaluates it again."
        )
    return members


if __name__ == "__main__":
    given = [argument for argument in sys.argv[1:] if argument != "--alone"]
    sys.exit(main(Path(given[0]).absolute(), *map(int, given[1:3]), alone="--alone" in sys.argv))
