"""A statement on a whole store: what was run for a table, what was scored, what was chosen on what; and it in words.

A table shows the rows that its author selected. The statement also counts what it does not show: attempts that ended
early, other runs of the study, other evaluations of its runs, trials of a tuning. What no record shows is not said.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from ablations.planning.planned import Plan, PlannedRun
from ablations.study.messages import number
from ablations.study.parts import Text
from ablations.study.tuning import trials_of
from experiments.config import flatten
from experiments.errors import Damaged, UserError
from experiments.events.history import History
from experiments.store.layout import Store
from experiments.store.results import Count, Facts
from experiments.tasks.columns import Column
from reports.results.accounting import tunings
from reports.results.rule import rule_of

TRIALS = "trials of `ablations tune`"
DEV = "dev"  # every other set is a test set (docs/corpora.md)


class StatedRun(Facts):
    """A run of the table."""

    rows: list[Text]  # rows may share a training and differ in its evaluation
    seed: Count | None  # None: an ensemble
    run_id: Text
    ended_early: list[Text]  # how each attempt before the last one ended
    scored: dict[Text, Count]  # evaluations of its weights in the store, by set


class OtherRuns(Facts):
    """Runs of a row of the study that the table does not show."""

    row: Text
    runs: Count
    finished: Count
    scored: dict[Text, Count]


class SeedsByRule(Facts):
    """The study's rule for seeds (docs/seeds.md), fixed in advance, and the scores that it read."""

    metric: Text
    set: Text
    start: Count
    max: Count
    alpha: float
    power: float
    difference: float


class Tuned(Facts):
    """A search whose trials include runs of the table, or runs of its study."""

    rows: list[Text]
    metric: Text
    set: Text
    trials: dict[Text, Count]  # by state
    scored: dict[Text, Count]  # evaluations of the trials' runs, by set


class Statement(Facts):
    """The whole study, as far as its store shows it."""

    statement: Literal[1] = 1  # version
    study: Text
    runs: list[StatedRun]
    printed: dict[Text, Count]  # evaluations that the table prints, by set
    others: list[OtherRuns]
    checkpoints: dict[Text, Count]  # which weights were scored → evaluations of the table
    follow_dev: list[Text]  # rows whose learning rate follows the perplexity on dev
    measured_dev: list[Text]  # rows that measured the perplexity on dev while they trained
    tuned: list[Tuned]
    seeds: SeedsByRule | None = None  # None: their number was fixed, or the crate was written before it was stated


def state(plan: Plan, store: Store, columns: Sequence[Column]) -> Statement:
    """The statement on a plan whose runs are finished in this store. columns: of its table. Raises Damaged."""
    runs = plan.trainings
    rows = _rows_of(plan)
    evaluations = {e.eval_id: e.spec for run in runs for e in run.evaluations}
    return Statement(
        study=plan.study.name,
        runs=[_stated(run_id, *key, store) for run_id, key in rows.items()],
        printed=dict(Counter(spec.set for spec in evaluations.values())),
        others=_others(store, _named(store, plan.study.name, set(rows))),
        checkpoints=dict(
            Counter(str(s.settings["checkpoint"]) for s in evaluations.values() if "checkpoint" in s.settings)
        ),
        follow_dev=_with(runs, "training.schedule", lambda value: value == "plateau"),
        measured_dev=_with(runs, "training.eval_steps", bool),
        tuned=list(_tunings(store, {run.run_id: run.row for run in runs})),
        seeds=_seeds(plan, columns),
    )


def _seeds(plan: Plan, columns: Sequence[Column]) -> SeedsByRule | None:
    if not plan.by_rule:
        return None
    rule, column = rule_of(plan.study, columns)
    return SeedsByRule(
        metric=column.metric,
        set=column.set,
        start=rule.start,
        max=rule.most,
        alpha=rule.alpha,
        power=rule.power,
        difference=rule.difference,
    )


def _rows_of(plan: Plan) -> dict[str, tuple[list[str], int | None]]:
    """run_id → the rows that show it, and its seed."""
    found: dict[str, tuple[list[str], int | None]] = {}
    for run in plan.trainings:
        rows, _ = found.setdefault(run.run_id, ([], None if run.members else run.seed))
        if run.row not in rows:
            rows.append(run.row)
    return found


def _stated(run_id: str, rows: list[str], seed: int | None, store: Store) -> StatedRun:
    record = store.result(run_id)
    return StatedRun(
        rows=rows,
        seed=seed,
        run_id=run_id,
        ended_early=[earlier.ended or "ended" for earlier in record.earlier_attempts] if record else [],
        scored=dict(_scored(store, [run_id])),
    )


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


def _named(store: Store, study: str, shown: set[str]) -> dict[str, list[str]]:
    """Row → the runs of it in the store that were queued for the study, and are not shown."""
    found: dict[str, list[str]] = {}
    for run_id in store.run_ids():
        if run_id in shown:
            continue
        history = History(store, run_id)
        history.look()
        names = {member[0]: member[3] for member in history.begun.get("members", ())}
        row = names.get(study, TRIALS if trials_of(study) in names else "")
        if row:
            found.setdefault(row, []).append(run_id)
    return found


def _others(store: Store, named: Mapping[str, Sequence[str]]) -> list[OtherRuns]:
    return [
        OtherRuns(
            row=row,
            runs=len(run_ids),
            finished=sum(_finished(store, run_id) for run_id in run_ids),
            scored=dict(_scored(store, run_ids)),
        )
        for row, run_ids in sorted(named.items())
    ]


def _finished(store: Store, run_id: str) -> bool:
    try:
        return store.result(run_id) is not None
    except Damaged:
        return False


def _with(runs: Iterable[PlannedRun], name: str, holds: Callable[[Any], bool]) -> list[str]:
    """The rows whose setting of that name satisfies a condition; tasks without the setting have none."""
    return list(dict.fromkeys(run.row for run in runs if holds(dict(flatten(run.config)).get(name))))


def _tunings(store: Store, rows: Mapping[str, str]) -> Iterator[Tuned]:
    """The searches of the store (experiments/tuning.py) with a trial among the table's runs."""
    for record, run_ids in tunings(store, rows):
        trials = [trial for trial in record["trials"] if isinstance(trial, dict)]
        of = list(dict.fromkeys(rows[run_id] for run_id in run_ids if run_id in rows))
        space = record.get("space", {})
        yield Tuned(
            rows=of,
            metric=str(space.get("metric", "")),
            set=str(space.get("set", "")),
            trials=dict(Counter(str(trial.get("state", "")) for trial in trials)),
            scored=dict(_scored(store, run_ids)),
        )


def read_statement(content: Mapping[str, Any], plan: Plan) -> Statement:
    """A crate's statement. Raises ValueError for another shape, UserError if it is on other runs than the plan's."""
    found = Statement.model_validate(content)
    runs = {run.run_id: (run.rows, run.seed) for run in found.runs}
    if found.study != plan.study.name or runs != _rows_of(plan):
        raise UserError("its statement is about other runs than those of its plan.")
    if found.seeds is not None and (rule := plan.study.seed_rule) is not None:
        stated = (found.seeds.start, found.seeds.max, found.seeds.alpha, found.seeds.power, found.seeds.difference)
        if stated != (rule.start, rule.max, rule.stop.alpha, rule.stop.power, rule.stop.difference):
            raise UserError("its statement names another rule for seeds than its study.")
    return found


# --- The statement in words, each sentence from its data alone


def sentences(statement: Statement) -> list[str]:
    """The statement in words."""
    return [_run(statement), _not_shown(statement), *_looked_at(statement), *_chosen(statement)]


def _run(statement: Statement) -> str:
    rows = {row for run in statement.runs for row in run.rows}
    early = Counter(how for run in statement.runs for how in run.ended_early)
    attempts = len(statement.runs) + sum(early.values())
    ended = ", ".join(f"{how} {count}" for how, count in sorted(early.items()))
    return (
        f"Run: {number(len(statement.runs), 'run')} of {number(len(rows), 'row')} in {number(attempts, 'attempt')}; "
        + (f"{number(sum(early.values()), 'attempt')} ended early and went on or began again ({ended})." if early
           else "no attempt ended early.")
    )  # fmt: skip


def _not_shown(statement: Statement) -> str:
    if not statement.others:
        return f"Not shown: the store has no other run that was started for the study {statement.study}."
    listed = [f"{o.row} ({o.runs}{f', {o.runs - o.finished} unfinished' * (o.finished < o.runs)})"
              for o in statement.others]  # fmt: skip
    total = sum(other.runs for other in statement.others)
    return (
        f"Not shown: the store has {number(total, 'more run')} that {'was' if total == 1 else 'were'} started for the "
        f"study {statement.study}: {', '.join(listed)}."
    )


def _looked_at(statement: Statement) -> Iterator[str]:
    printed, scored = Counter(statement.printed), _sum(run.scored for run in statement.runs)
    yield f"Scored: {_counts(printed) or 'nothing'}."
    if further := scored - printed:
        yield f"Scored and not printed: {_counts(further)} (further evaluations of these runs in the store)."
    others = _sum(other.scored for other in statement.others)
    if others:
        yield f"Scored of the runs that are not shown: {_counts(others)}."
    if {*scored, *printed, *others} <= {DEV}:
        yield "Not looked at: test sets. The store has no evaluation of these runs on a set other than dev."
    else:
        yield "Not looked at: other sets. The store has no evaluation of these runs on a set that is not named above."


def _chosen(statement: Statement) -> Iterator[str]:
    for name, count in sorted(statement.checkpoints.items()):
        if name == "best":
            yield f"Chosen on dev: the checkpoint with the lowest perplexity, in {number(count, 'evaluation')}."
        else:
            yield f"Not chosen by any score: the checkpoint ({name}), in {number(count, 'evaluation')}."
    if statement.follow_dev:
        yield f"Chosen on dev: the learning rate during training, in {', '.join(statement.follow_dev)}."
    if statement.measured_dev:
        yield f"Perplexity on dev was measured during training in {', '.join(statement.measured_dev)}."
    if (rule := statement.seeds) is not None:
        counts = Counter(row for run in statement.runs if run.seed is not None for row in run.rows)
        yield (
            f"Chosen on {rule.set}: the number of seeds of each row ({', '.join(f'{r} {n}' for r, n in counts.items())}"
            f"), by a rule fixed in advance on {rule.metric}: {rule.start} to {rule.max} seeds, level {rule.alpha:g}, "
            f"power {rule.power:g}, smallest difference that matters {rule.difference:g}."
        )
    for tuned in statement.tuned:
        states = ", ".join(f"{count} {name}" for name, count in sorted(tuned.trials.items()))
        yield (
            f"Chosen on {tuned.set}: settings of {', '.join(tuned.rows)}, by {tuned.metric} over "
            f"{number(sum(tuned.trials.values()), 'trial')} ({states}); runs of the trials were scored on "
            f"{_counts(Counter(tuned.scored)) or 'nothing'}."
        )
    if not statement.tuned:
        yield "No run of the table is a trial of `ablations tune`."
    yield "No record shows how other settings of the study were chosen."


def _sum(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    return sum(map(Counter, counts), Counter())


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in sorted(counts.items()))
