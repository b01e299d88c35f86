"""Decide the state of a job after an attempt has ended. The functions are pure.

`decide` returns an `Ending`. If an attempt was stopped or killed, the job is resumed from its checkpoint as long as
attempts make progress. The job fails after three attempts in a row without progress (see `_mark`).
"""

import re
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from experiments.config.training import LARGEST_UNCUT, SMALLEST_MICRO_BATCH
from experiments.jobs.attempts.attempt_progress import AttemptProgress
from experiments.jobs.devices.hardware import OTHERS_SHARE
from experiments.jobs.queue.job import Claimed, Ending, Outcome, State
from experiments.records import TRAINING, ChildExit, FailureClass

MAX_STALLS = 3
LONG_S = 600.0  # seconds; in an attempt of at least this length, one new step is progress, because it may be an epoch
MAX_HANGS = 2  # the job fails after this number of hangs or device failures in a row, so it is retried once
FAILED_CODES = range(1, 128)


def decide(
    claimed: Claimed,
    record: AttemptProgress,
    code: int | None,
    missing: Sequence[str],
    *,
    expected: Collection[str],
    asked: str = "",
    withdrawn: str = "",
    log_tail: str = "",
    limit_gb: float | None = None,
    shared: bool = False,
) -> Ending:
    """Decide the state of a job after an attempt has ended and its finished parts are published.

    missing: parts (TRAINING, eval_ids) that the job still needs.
    expected: parts that this attempt had to make; more parts may have been requested since its start.
    code: the child's exit code (negative: a signal; None: unknown).
    asked: "cancel", "stop" or "hung" if the coordinator asked the attempt to end.
    withdrawn: the reason why an attempt on a cluster did not begin; "" if it began.
    log_tail: end of the log, for messages.
    limit_gb: memory limit of the run, for messages.
    shared: whether the run had a share of a GPU.
    """
    best, ahead = _mark(claimed, record)
    log_tail = f"\n{log_tail}" if log_tail else ""
    pinned = {**claimed.pinned, **record.pinned}
    end = partial(Ending, pinned=pinned, best=best)
    again = partial(end, State.WAITING, alone=claimed.alone)
    if not missing:
        return end(State.FINISHED, Outcome.FINISHED)
    if asked == "cancel":
        return end(State.CANCELLED, Outcome.CANCELLED, detail="cancelled on request")
    if withdrawn:
        untouched = {"pinned": claimed.pinned, "stalls": claimed.stalls, "hangs": claimed.hangs}
        return again(Outcome.PREEMPTED, detail=f"waits again: {withdrawn}", **untouched)
    if record.failure is not None and record.failure.get("cls") != FailureClass.DISK_FULL:
        training = TRAINING in expected and not record.parts
        return _failed(claimed, record.failure, end, pinned, log_tail, training, shared)
    if record.failure is not None or code == ChildExit.DISK_FULL:
        detail = str((record.failure or {}).get("message") or "There is no space left on the disk of the store.")
        return again(Outcome.DISK_FULL, detail=detail)
    if asked == "hung":
        said = "it reported no step or other event within the time of --hang-after."
        return _lost(claimed, Outcome.HUNG, "hung", said, end, log_tail)
    if code == ChildExit.FINISHED:
        lost = [part for part in missing if part in expected]
        if not lost:  # more evaluations were requested meanwhile, and another attempt makes them
            return end(State.WAITING, Outcome.FINISHED, detail="will continue, because more evaluations were requested")
        error = f"The child process ended without an error, but did not produce: {', '.join(lost)}.{log_tail}"
        return end(State.FAILED, Outcome.BUG, error=error)
    if code in FAILED_CODES and code != ChildExit.PREEMPTED and not record.preempted:
        error = f"The child process ended with exit code {code} and gave no reason.{log_tail}"
        return end(State.FAILED, Outcome.BUG, error=error)
    outcome = Outcome.PREEMPTED if record.preempted or code == ChildExit.PREEMPTED else Outcome.KILLED
    how = "stopped" if outcome is Outcome.PREEMPTED else _killed_by(code)
    how += " after a checkpoint" if outcome is Outcome.PREEMPTED and record.saved_step else ""
    stalls = 0 if ahead else claimed.stalls + (asked != "stop")
    if stalls >= MAX_STALLS:
        limit = f" The run may use {limit_gb:g} GB (--devices): a higher limit may help." if limit_gb else ""
        error = (
            f"Ended {stalls} times in a row without progress (at most one new step in a checkpoint); the last attempt "
            f"was {how}. On a CPU the kernel's out-of-memory killer looks like SIGKILL: a smaller "
            f"training.tokens_per_batch or fewer slots may help.{limit}{log_tail}"
        )
        return end(State.FAILED, outcome, error=error, stalls=stalls)
    return again(outcome, detail=f"will {'resume' if best else 'start again'}, because it was {how}", stalls=stalls)


def _lost(claimed: Claimed, outcome: Outcome, how: str, why: str, end: Callable[..., Ending], log_tail: str) -> Ending:
    """Return the ending of an attempt that hung or whose device failed.

    Such an attempt is retried once, because the disk may answer again, or another GPU may work.
    """
    hangs, detail = claimed.hangs + 1, f"{how}: {why}"
    if hangs >= MAX_HANGS:
        error = f"{how.capitalize()} {hangs} times: {why}{log_tail}"
        return end(State.FAILED, outcome, error=error, detail=detail)
    return end(State.WAITING, outcome, detail=f"will resume after: {detail}", hangs=hangs, alone=claimed.alone)


def _mark(claimed: Claimed, record: AttemptProgress) -> tuple[int, bool]:
    """Return the best progress so far, and whether this attempt has advanced it.

    Progress is the step of the last checkpoint plus the number of parts that this attempt completed. A child that is
    stopped saves a checkpoint at its current step. So a single new step in an attempt shorter than LONG_S does not
    count. If it did, a job whose attempts are always stopped immediately would be repeated forever.
    """
    reached = max(claimed.best, record.saved_step) + record.parts
    gained = reached - claimed.best
    return reached, record.parts > 0 or gained > 1 or (gained == 1 and record.lasted_s >= LONG_S)


def _failed(
    claimed: Claimed, failure: Mapping[str, Any], end: Callable[..., Ending], pinned: dict[str, Any], log_tail: str,
    training: bool, shared: bool,
) -> Ending:  # fmt: skip
    outcome = Outcome(FailureClass(str(failure.get("cls"))))
    message = str(failure.get("message", "")) or "no message"
    if outcome is Outcome.DEVICE:
        return _lost(claimed, outcome, "the device failed", message, end, log_tail)
    if outcome is Outcome.OUT_OF_MEMORY:
        beside = shared and not claimed.alone  # other runs on its GPU may have used the memory
        if not beside and (others := _held_by_others(message)) and claimed.hangs + 1 < MAX_HANGS:
            why = f"other processes used {others} of the GPU's memory. {message}"
            return _lost(claimed, outcome, "out of memory", why, end, log_tail)
        tokens = _micro_batch(claimed, failure, pinned) if training else None  # evaluations have no micro-batch
        if not beside and tokens is not None and tokens // 2 >= SMALLEST_MICRO_BATCH:
            half = tokens // 2
            detail = f"will resume with micro-batches of {half} tokens; out of memory with {tokens}"
            kept = {name: value for name, value in pinned.items() if name != "shapes"}  # the old shapes are too large
            smaller = {**kept, "micro_batch_tokens": half}
            return end(State.WAITING, outcome, detail=detail, pinned=smaller, alone=claimed.alone)
        if not claimed.alone:
            return end(State.WAITING, outcome, detail="will resume alone on a device; out of memory", alone=True)
        told = f", and the micro-batch of {tokens} tokens cannot be made smaller" if tokens is not None else ""
        message = f"Out of memory{told}. {message}"
    tail = "" if outcome is Outcome.USER_ERROR else log_tail
    return end(State.FAILED, outcome, error=f"{message}{tail}")


def _micro_batch(claimed: Claimed, failure: Mapping[str, Any], pinned: Mapping[str, Any]) -> int | None:
    """Return the size, in tokens, of the micro-batch that was too large for the memory; None if it is unknown.

    The size is the one that the child reported. If there is none, it is the pinned size, or else the whole batch.
    Padding makes a batch at most LARGEST_UNCUT times as large. A larger micro-batch would not split any batch, so the
    result is at most LARGEST_UNCUT times the size of the batch.
    """
    training = claimed.job.spec.config.get("training")
    training = training if isinstance(training, Mapping) else {}  # another task may use this name differently
    whole = training.get("tokens_per_batch")
    known = failure.get("micro_batch_tokens") or pinned.get("micro_batch_tokens") or whole
    return int(min(known, LARGEST_UNCUT * whole if whole else known)) if known else None


_USED = re.compile(r"Process \d+ has ([\d.]+) GiB memory in use")
_TOTAL = re.compile(r"total capacity of ([\d.]+) GiB")


def _held_by_others(message: str) -> str:
    """Return how much GPU memory other processes used, according to torch's message.

    Return "" if this amount is unknown or only a small share of the GPU's memory.
    """
    total, used = _TOTAL.search(message), sum(map(float, _USED.findall(message)))
    much = total and "this process has" in message and used > OTHERS_SHARE * float(total[1])
    return f"{used:.1f} GiB" if much else ""


def _killed_by(code: int | None) -> str:
    number = -code if code is not None and code < 0 else (code - 128 if code is not None else 0)
    try:
        return f"killed by {signal.Signals(number).name}"
    except ValueError:
        return "lost without a message"


_TAIL = re.compile(r"^The end of .+ in the store:$", re.MULTILINE)  # first line of attempt.log_tail
_OURS = re.compile(r"\d{4}-\d\d-\d\d [\d:,]+ [A-Z]+ experiments\.")  # beginning of a line that this program logged


def printed(error: str) -> list[str]:
    """Return the log lines that a failed run itself printed, taken from its error (`decide`); [] if there are none."""
    lines = "".join(_TAIL.split(error, maxsplit=1)[1:]).splitlines()
    return [line.rstrip() for line in lines if line.strip() and not _OURS.match(line)]
