"""From a plan to finished runs: what `ablations run` and `ablations.run` of Python do, apart from what they print."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from ablations.plan.planned import Plan, PlannedRun
from ablations.service.enqueue import enqueue, join, prepare, wanted
from ablations.service.forecast import refuse_above
from ablations.service.made_again import say_renewed, say_trained_again, trained_again
from ablations.service.obstacles import refuse, warnings
from ablations.service.orphans import orphans, say_orphans
from ablations.service.selected import Say, Selected
from ablations.service.shares import over_quota
from ablations.service.sharing import as_one, resolve_auto
from ablations.service.work import WorkOptions, complete_mlflow, track_ended
from ablations.study.messages import number
from experiments.errors import UserError
from experiments.jobs.coordinator.reporter import Summary
from experiments.jobs.queue.queue import Queue
from experiments.jobs.queue.states import State
from experiments.tasks.base import Progress
from experiments.tracking.sinks.sink import check_sink


@dataclass(frozen=True)
class Training:
    """Queues runs of a selection and works on them."""

    chosen: Selected
    stale: str  # see enqueue.wanted
    work_on: Callable[[Plan, list[PlannedRun]], Summary]  # the queued runs of a plan, until the queue is empty
    progress: Progress
    say: Say

    def run(self) -> Summary:
        """plan − valid results → queue → work; again while the study's rule for seeds asks for more."""
        plan = self.chosen.plan
        runs = wanted(plan, self.stale)
        summary = Summary()
        if not runs:
            join(self.chosen, plan)
            track_ended(self.chosen.store)
            self.say(f"{number(len(plan.trainings), 'run')}, all done, nothing to train")
        asked: set[str] = set()
        while runs and not (summary.interrupted or asked.issuperset(run.run_id for run in runs)):
            asked |= {run.run_id for run in runs}
            queue_runs(self.chosen, plan, runs, self.stale, self.progress, self.say)
            summary = summary.plus(self._own(self.work_on(plan, runs), runs))
            if not plan.by_rule:
                break
            plan = self.chosen.plan  # the rule may ask for more seeds
            runs = wanted(plan, "keep")
        if not summary.interrupted:
            complete_mlflow(self.chosen.store, self.say)
        return summary

    def _own(self, summary: Summary, runs: Iterable[PlannedRun]) -> Summary:
        """Of the runs that were not started only these: others may wait for another user's quota."""
        if not summary.left:
            return summary
        with Queue(self.chosen.store.queue_db, create=False) as queue:
            states = queue.states()
        return replace(summary, left=sum(states.get(run.run_id) is State.WAITING for run in runs))


def queue_runs(
    chosen: Selected, plan: Plan, runs: list[PlannedRun], stale: str, progress: Progress, say: Say
) -> dict[str, int]:
    """Prepare the inputs of these runs and queue them; returns what was counted. Raises UserError (see `prepare`)."""
    made_again = [say_trained_again(trained_again(chosen, runs)), say_renewed(runs, stale)]
    for note in filter(None, [*plan.notes, *say_orphans(orphans(chosen, plan, runs), chosen.to_paste), *made_again]):
        say(f"note: {note}")
    prepare(chosen, runs, progress)
    added = enqueue(chosen, plan, runs, stale)
    join(chosen, plan)
    chosen.remember()  # of a store that this call created
    asked, every = {run.run_id for run in runs}, plan.trainings
    left = sum(run.run_id in asked for run in every)
    counts = {"done": len(every) - left, "queued_now": added, "queued_before": left - added}
    words = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items())
    say(f"{number(len(every), 'run')}: {words}")
    for line in over_quota(chosen.store):
        say(f"note: {line}")
    return counts


def options_for(
    chosen: Selected,
    devices: str,
    engine: str,
    settings: Sequence[str],
    hang_s: float,
    notify: str | None,
    sinks: Sequence[str] = (),
    workers: int | None = None,
    setup: Sequence[str] = (),
    *,
    stale: str,
    max_hours: float | None,
    progress: Progress,
    say: Say,
) -> WorkOptions:
    """The options of `run` as they hold on this machine: what is to be measured there is, unless nothing is to do.

    Raises UserError for what cannot run there, and where the runs would take longer than `max_hours`.
    """
    here = engine == "local"
    one = as_one(devices) if here else devices
    for name in chosen.study.sinks.names:
        check_sink(name, f"{chosen.study.origin}, [sinks]:")
    sinks = (*sinks, *chosen.study.sinks.names)
    working = WorkOptions(one, engine, settings, hang_s, notify, sinks, workers, setup)
    todo = wanted(chosen.plan, stale)
    if here:
        refuse(chosen, todo, working.slots)
        for warning in warnings(chosen, todo, working.slots):
            say(f"note: {warning}")
    if one != devices:
        if chosen.devices_per_run != 1:
            raise UserError(
                f"--devices {devices} measures how many runs share a device, but --devices-per-run "
                f"{chosen.devices_per_run or 'auto'} gives a run several devices: give a number of runs per device, "
                "such as cuda:*x2, or leave one out."
            )
        working = replace(working, devices=resolve_auto(devices, chosen, todo, progress, say))
    if max_hours is not None and todo:
        say(refuse_above(max_hours, chosen, todo, working.slots, progress, here=here))
    return working
