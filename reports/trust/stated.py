"""The statement on a whole study (statement.py) in words, each sentence from its data alone."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from ablations.study.messages import number
from reports.trust.statement import DEV, Statement


def sentences(statement: Statement) -> list[str]:
    """The statement in words."""
    return [
        _run(statement),
        _not_shown(statement),
        *_looked_at(statement),
        *_chosen(statement),
    ]


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
    yield from _seeds(statement)
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


def _seeds(statement: Statement) -> Iterator[str]:
    rule = statement.seeds
    if rule is None:
        return
    counts = Counter(row for run in statement.runs if run.seed is not None for row in run.rows)
    yield (
        f"Chosen on {rule.set}: the number of seeds of each row ({', '.join(f'{r} {n}' for r, n in counts.items())}), "
        f"by a rule fixed in advance on {rule.metric}: {rule.start} to {rule.max} seeds, level {rule.alpha:g}, power "
        f"{rule.power:g}, smallest difference that matters {rule.difference:g}."
    )


def _sum(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return total


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({count})" for name, count in sorted(counts.items()))
