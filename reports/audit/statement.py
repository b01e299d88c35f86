"""A statement on a whole store, in words: what was run for a table, what was scored, what was chosen on what.

A table shows the rows that its author selected. The statement also counts what it does not show: attempts that ended
early, other runs of the study, other evaluations of its runs, trials of a tuning. What no record shows is not said.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from ablations.planning.planned import Plan
from ablations.study.messages import number
from ablations.study.parts import Text
from ablations.study.tuning import trials_of
from experiments.config import flatten
from experiments.errors import Damaged, UserError
from experiments.events.history import History
from experiments.store.layout import Store
from experiments.store.results import Facts
from experiments.tasks.columns import Column
from reports.results.accounting import tunings

TRIALS = "trials of `ablations tune`"
DEV = "dev"  # every other set is a test set (docs/corpora.md)


class Statement(Facts):
    """The whole study, as far as its store shows it."""

    statement: Literal[1] = 1  # version
    study: Text
    runs: list[Text]  # run_ids of the table, sorted
    sentences: list[Text]


def state(plan: Plan, store: Store, columns: Sequence[Column]) -> Statement:
    """The statement on a plan whose runs are finished in this store. columns: of its table. Raises Damaged."""
    run_ids = dict.fromkeys(run.run_id for run in plan.trainings)
    others = _others(store, plan.study.name, run_ids)
    said = [_run(plan, store, run_ids), _not_shown(plan, store, others)]
    said += [*_looked_at(plan, store, run_ids, others), *_chosen(plan, store, columns)]
    return Statement(study=plan.study.name, runs=sorted(run_ids), sentences=said)


def read_statement(content: Mapping[str, Any], plan: Plan) -> Statement:
    """A crate's statement. Raises ValueError for another shape, UserError if it is on other runs than the plan's."""
    found = Statement.model_validate(content)
    if (found.study, found.runs) != (plan.study.name, sorted({run.run_id for run in plan.trainings})):
        raise UserError("its statement is about other runs than those of its plan.")
    return found


def _run(plan: Plan, store: Store, run_ids: Iterable[str]) -> str:
    records = [record for run_id in run_ids if (record := store.result(run_id))]
    early = Counter(earlier.ended or "ended" for record in records for earlier in record.earlier_attempts)
    rows, runs = len({run.row for run in plan.trainings}), len(list(run_ids))
    ended = ", ".join(f"{how} {count}" for how, count in sorted(early.items()))
    lost = f"{number(early.total(), 'attempt')} ended early and went on or began again ({ended})"
    attempts = number(runs + early.total(), "attempt")
    said = lost if early else "no attempt ended early"
    return f"Run: {number(runs, 'run')} of {number(rows, 'row')} in {attempts}; {said}."


def _others(store: Store, study: str, shown: Iterable[str]) -> dict[str, list[str]]:
    """Row → the runs of it in the store that were queued for the study, and are not shown."""
    found: dict[str, list[str]] = {}
    for run_id in set(store.run_ids()).difference(shown):
        history = History(store, run_id)
        history.look()
        names = {member[0]: member[3] for member in history.begun.get("members", ())}
        if row := names.get(study, TRIALS if trials_of(study) in names else ""):
            found.setdefault(row, []).append(run_id)
    return dict(sorted(found.items()))


def _not_shown(plan: Plan, store: Store, others: Mapping[str, Sequence[str]]) -> str:
    if not others:
        return f"Not shown: the store has no other run that was started for the study {plan.study.name}."
    listed = []
    for row, run_ids in others.items():
        unfinished = sum(not _finished(store, run_id) for run_id in run_ids)
        listed.append(f"{row} ({len(run_ids)}{f', {unfinished} unfinished' * bool(unfinished)})")
    total = sum(map(len, others.values()))
    return (
        f"Not shown: the store has {number(total, 'more run')} that {'was' if total == 1 else 'were'} started for the "
        f"study {plan.study.name}: {', '.join(listed)}."
    )


def _finished(store: Store, run_id: str) -> bool:
    try:
        return store.result(run_id) is not None
    except Damaged:
        return False


def _looked_at(plan: Plan, store: Store, run_ids: Iterable[str], others: Mapping[str, Sequence[str]]) -> Iterator[str]:
    evaluations = {e.eval_id: e.spec.set for run in plan.trainings for e in run.evaluations}
    printed, scored = Counter(evaluations.values()), _scored(store, run_ids)
    yield f"Scored: {_counts(printed) or 'nothing'}."
    if further := scored - printed:
        yield f"Scored and not printed: {_counts(further)} (further evaluations of these runs in the store)."
    if of_others := _scored(store, [run_id for of in others.values() for run_id in of]):
        yield f"Scored of the runs that are not shown: {_counts(of_others)}."
    if {*scored, *printed, *of_others} <= {DEV}:
        yield "Not looked at: test sets. The store has no evaluation of these runs on a set other than dev."
    else:
        yield "Not looked at: other sets. The store has no evaluation of these runs on a set that is not named above."


def _scored(store: Store, run_ids: Iterable[str]) -> Counter[str]:
    """The evaluations of runs in the store, by set; those that are no record of one are not counted."""
    found: Counter[str] = Counter()
    for run_id in run_ids:
        for folder in sorted((store.run_folder(run_id) / "evaluations").glob("[0-9a-f]*")):
            try:
                record = store.evaluation(run_id, folder.name)
            except (Damaged, ValueError):  # a folder of another name; one that `report` names
                continue
            if record is not None:
                found[record.set or "unknown"] += 1
    return found


def _chosen(plan: Plan, store: Store, columns: Sequence[Column]) -> Iterator[str]:
    settings = {e.eval_id: e.spec.settings for run in plan.trainings for e in run.evaluations}
    choices = Counter(str(of["checkpoint"]) for of in settings.values() if "checkpoint" in of)
    for name, count in sorted(choices.items()):
        if name == "best":
            yield f"Chosen on dev: the checkpoint with the lowest perplexity, in {number(count, 'evaluation')}."
        else:
            yield f"Not chosen by any score: the checkpoint ({name}), in {number(count, 'evaluation')}."
    configs = {run.row: dict(flatten(run.config)) for run in plan.trainings}
    if follow := [row for row, config in configs.items() if config.get("training.schedule") == "plateau"]:
        yield f"Chosen on dev: the learning rate during training, in {', '.join(follow)}."
    if measured := [row for row, config in configs.items() if config.get("training.eval_steps")]:
        yield f"Perplexity on dev was measured during training in {', '.join(measured)}."
    rows = {run.run_id: run.row for run in plan.trainings}
    tuned = False
    for record, run_ids in tunings(store, rows):
        tuned, space = True, record.get("space", {})
        states = Counter(str(trial.get("state", "")) for trial in record["trials"] if isinstance(trial, dict))
        of = dict.fromkeys(rows[run_id] for run_id in run_ids if run_id in rows)
        yield (
            f"Chosen on {space.get('set', '')}: settings of {', '.join(of)}, by {space.get('metric', '')} over "
            f"{number(states.total(), 'trial')} ({', '.join(f'{n} {state}' for state, n in sorted(states.items()))}); "
            f"runs of the trials were scored on {_counts(_scored(store, run_ids)) or 'nothing'}."
        )
    if not tuned:
        yield "No run of the table is a trial of `ablations tune`."
    yield "No record shows how other settings of the study were chosen."


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in sorted(counts.items()))
