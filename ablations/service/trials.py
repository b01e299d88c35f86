"""Run the trials of `ablations tune` as ordinary runs: propose, queue and report them in the coordinator's process."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ablations.planning.plan import Plan, PlannedRun
from ablations.service.enqueue import enqueue
from ablations.service.selected import Selected, plan_with_states
from ablations.study.overrides import setting_names
from ablations.study.selectors import Selection, only_row, select_rows
from ablations.study.study import Study
from ablations.study.tuning import SETS, about, deciding_column, space_of, tune_of, with_tuned
from experiments.errors import UserError
from experiments.jobs.queue.job import JobStatus, State
from experiments.jobs.queue.queue import Queue
from experiments.records import FailureClass
from experiments.tuning import COMPLETE, FAILED, Search, Trial, trials_of

# Failures that the settings of a run cause. The trial of such a run counts as failed. Other failures come from the
# program or the machine, so they stop the search of the row.
TELLING = (FailureClass.DIVERGED, FailureClass.OUT_OF_MEMORY)


class Trials:
    """The searches of all rows that are tuned. The coordinator calls `refill` repeatedly.

    `searches` maps each row to its search, which has the trials and their results.
    """

    def __init__(
        self, chosen: Selected, selected: Selection, trials: int, slots: int, when_complete: Callable[[], None]
    ) -> None:
        self._when_complete, self._reported_complete = when_complete, False
        self._chosen, self._selected = chosen, selected
        study, task = chosen.study, chosen.task
        self.tune, self.column, self.trials = tune_of(study, task), deciding_column(study, task), trials
        self.searches: dict[str, Search] = {}
        for row in select_rows(study, selected.rows):
            if row.ensemble is not None or row.branch is not None or row.imported:
                continue  # members and parent runs are tuned as separate rows; imported runs are not trained
            run = self._plan(study, row.key).runs[0]
            space = space_of(study, row, run.config, selected, task)
            identity = about(run.config, run.spec.trainer, run.spec.inputs, space)
            self.searches[row.key] = Search(chosen.store, space, identity)
        if not self.searches:
            raise UserError(
                "Nothing to tune: all chosen rows are ensembles, branches or imported rows. For an ensemble or a "
                "branch, tune the row that it is made from."
            )
        self._at_once = max(1, -(-slots // len(self.searches)))  # maximum number of queued or running trials of a row
        self._runs: dict[tuple[str, int], PlannedRun] = {}  # (row, trial number) → its run, queued by this process
        self.given_up: dict[str, str] = {}  # row → why its search was stopped

    def budget(self, row: str) -> int:
        """Return the number of trials of a row; 0 for a row that sets every searched setting itself."""
        return self.trials if self.searches[row].space.ranges else 0

    @property
    def complete(self) -> bool:
        """Whether every row's budget is spent and no trial is running."""
        return all(len(s.trials) >= self.budget(row) and not s.running for row, s in self.searches.items())

    def refill(self) -> None:
        """Report ended trials, and keep `_at_once` trials of each row in the queue until its budget is spent."""
        # A failed run is reported only if this process queued it. So if the run of an open trial failed in an earlier
        # process, the run is queued again.
        mine = {run.run_id for run in self._runs.values()}
        with Queue(self._chosen.store.queue_db) as queue:
            queued = {row.run_id: row for row in queue.status() if row.run_id in mine}
        for row, search in self.searches.items():
            for trial in search.running:
                self._start(row, trial)
                self._report_trial(row, trial, queued)
            budget = 0 if row in self.given_up else self.budget(row)
            while len(search.trials) < budget and len(search.running) < self._at_once:
                trial = search.ask()
                self._start(row, trial)
                self._report_trial(row, trial, {})
        if self.complete and not self._reported_complete:
            self._reported_complete = True
            self._when_complete()

    def best(self) -> dict[str, Mapping[str, Any]]:
        """Return the best settings found so far, by row."""
        return {row: search.best.params for row, search in self.searches.items() if search.best is not None}

    def _start(self, row: str, trial: Trial) -> None:
        """Queue the run of a trial once per process, also if an earlier process started the trial."""
        if (row, trial.number) in self._runs:
            return
        study = with_tuned(self._chosen.study, {row: trial.params})
        plan = self._plan(study.model_copy(update={"name": trials_of(study.name)}), row)
        [run, *_] = plan.runs
        variation = run.variation.model_copy(update={"key": f"{row}.trial{trial.number + 1}"})
        run = replace(run, planned_row=replace(run.planned_row, variation=variation))
        self._runs[row, trial.number] = run
        self.searches[row].started(trial.number, run.run_id)
        if run.state not in ("finished", "stale"):
            enqueue(self._chosen, plan, [run], "keep")

    def _plan(self, study: Study, row: str) -> Plan:
        sets = {SETS: [self.tune.set]} if SETS in setting_names(self._chosen.task.config_type) else {}
        rows = (only_row(study, row),)
        selected = replace(self._selected, rows=rows, seeds=1, overrides={**sets, **self._selected.overrides})
        store, task = self._chosen.store, self._chosen.task
        return plan_with_states(study, selected, task, store)

    def _report_trial(self, row: str, trial: Trial, queued: Mapping[str, JobStatus]) -> None:
        """Report a trial to the search if its run has ended."""
        run, search, store = self._runs[row, trial.number], self.searches[row], self._chosen.store
        eval_id = next(e.eval_id for e in run.evaluations if e.set == self.tune.set)
        scored = store.evaluation(run.run_id, eval_id) if store.result(run.run_id) else None
        if scored is not None:
            value = scored.metrics.get(self.column.metric)
            search.tell(trial.number, COMPLETE if value is not None else FAILED, value)
            return
        known = queued.get(run.run_id)
        if known is None or not known.state.ended or known.state is State.FINISHED:
            return
        if known.error_class in TELLING:
            search.tell(trial.number, FAILED)
        else:
            self.given_up[row] = known.error.splitlines()[0] if known.error else "it was cancelled"
