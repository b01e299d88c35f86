"""From a plan to finished runs: what `ablations run` and `ablations.run` of Python do, apart from what they print."""

from collections.abc import Callable
from dataclasses import dataclass

from ablations.plan.plan import Plan, PlannedRun
from ablations.service.enqueue import enqueue, prepare, wanted
from ablations.service.made_again import say_renewed, say_trained_again, trained_again
from ablations.service.selected import Selected
from ablations.study.messages import number
from experiments.jobs.coordinator.reporter import Summary
from experiments.store.layout import Store
from experiments.tasks.base import Progress

Say = Callable[[str], None]  # a line for the user


@dataclass(frozen=True)
class Training:
    """Queues runs of a selection and works on them."""

    chosen: Selected
    stale: str  # see enqueue.wanted
    work_on: Callable[[Store], Summary]  # until the queue is empty
    progress: Progress
    say: Say

    def run(self) -> Summary:
        """plan − valid results → queue → work; again while the study's rule for seeds asks for more."""
        plan = self.chosen.plan
        runs = wanted(plan, self.stale)
        summary = Summary()
        if not runs:
            self.say(f"{number(len(plan.trainings), 'run')}, all done, nothing to train")
        asked: set[str] = set()
        while runs and not (summary.interrupted or asked.issuperset(run.run_id for run in runs)):
            asked |= {run.run_id for run in runs}
            queue_runs(self.chosen, plan, runs, self.stale, self.progress, self.say)
            summary = summary.plus(self.work_on(self.chosen.store))
            if not plan.by_rule:
                break
            plan = self.chosen.plan  # the rule may ask for more seeds
            runs = wanted(plan, "keep")
        return summary


def queue_runs(chosen: Selected, plan: Plan, runs: list[PlannedRun], stale: str, progress: Progress, say: Say) -> None:
    """Prepare the inputs of these runs and queue them. Raises UserError (see `prepare`)."""
    for note in filter(None, [*plan.notes, say_trained_again(trained_again(chosen, runs)), say_renewed(runs, stale)]):
        say(f"note: {note}")
    prepare(chosen, runs, progress)
    added = enqueue(chosen, plan, runs, stale)
    asked, every = {run.run_id for run in runs}, plan.trainings
    left = sum(run.run_id in asked for run in every)
    say(f"{number(len(every), 'run')}: {len(every) - left} done, {added} queued now, {left - added} queued before")
