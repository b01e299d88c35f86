"""Warnings about differences in how a table's numbers were made, and about results that are left out."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from experiments.messages import plural, some_names
from experiments.store.results import EvaluationResult, TrainingResult
from reports.results.run_outcomes import NOT_RECORDED, Outcome
from reports.results.table import Row, Table, differing_code, measured_alike, tokenizer_of
from reports.table.provenance import corpus_name


def warnings(table: Table) -> tuple[str, ...]:
    """Return one warning for each difference in how the numbers were made, and for each result that is left out."""
    found = [
        _mixed(family.rows, what, of)
        for what, of in _MUST_AGREE.items()
        for family in (table.families if what in _OF_THE_DATA else [table])
    ]
    found += _mixed_versions(table)
    for column, family in itertools.product(table.listed, table.families):
        if not measured_alike(family.rows, column):
            found.append(
                f"{column.header} was measured over different tokens, sentences or signatures: changes from "
                f"{family.base or 'base'} are left out where these differ, and no value is marked as the best."
            )
    found.append(_code(table))
    found += [_miscounted(row) for row in table.rows]
    found += [f"{o.run.name} is left out: {why}" for o in table.outcomes for why in dict.fromkeys(o.harm.values())]
    found += [f"{o.run.name}: {o.undescribed} Its numbers are not affected." for o in table.outcomes if o.undescribed]
    return tuple(text for text in found if text)


def _tokenizer(outcome: Outcome) -> str:
    trained, size = tokenizer_of(outcome)
    return trained or (f"{size} pieces" if size else "")


Records = Callable[[Outcome], Sequence[TrainingResult | EvaluationResult]]


def _each(records_of: Records, of: Callable[[Any], str | None]) -> Callable[[Outcome], list[str]]:
    """Return a function that collects a fact from several records of a run, with each value once."""
    return lambda outcome: sorted({value for facts in records_of(outcome) if (value := of(facts))})


def _scored(outcome: Outcome) -> list[EvaluationResult]:
    return [scored.record for scored in outcome.scored.values() if scored.record]


def _trained(outcome: Outcome) -> list[TrainingResult]:
    return [outcome.record] if outcome.record else []


_MUST_AGREE: dict[str, Callable[[Outcome], Any]] = {
    "corpora": corpus_name,
    "tokenizers": _tokenizer,
    "precisions of training": lambda o: o.record and o.record.precision,
    "precisions of evaluation": _each(_scored, lambda facts: facts.precision),
    "kinds of device for training": lambda o: o.record and o.record.device_kind,
    "kinds of device for evaluation": _each(_scored, lambda facts: facts.device_kind),
}
_OF_THE_DATA = ("corpora", "tokenizers")  # these facts may differ between groups, such as language pairs


def _mixed_versions(table: Table) -> Iterator[str]:
    """Yield a warning for each package whose recorded versions differ in training or in evaluation."""
    of_parts: dict[str, Records] = {"training": _trained, "evaluation": _scored}
    for part, records_of in of_parts.items():
        recorded = [facts.versions for outcome in table.outcomes for facts in records_of(outcome)]
        for name in dict.fromkeys(name for versions in recorded for name in versions):

            def version_of(facts: TrainingResult | EvaluationResult, name: str = name) -> str | None:
                return facts.versions.get(name)

            yield _mixed(table.rows, f"versions of {name} in {part}", _each(records_of, version_of))


def _mixed(rows: Iterable[Row], what: str, of: Callable[[Outcome], Any]) -> str:
    """Return a warning such as "The rows mix 2 precisions: bf16 (base, A-h1), fp32 (big)."; "" if the rows agree."""
    holders: dict[str, list[str]] = {}
    for row in rows:
        for outcome in row.outcomes:
            # These facts are unknown for imported runs. Another note lists the imported runs.
            here = outcome.record is not None and not outcome.run.spec.imported
            value = of(outcome) if here else None
            if value:
                text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
                holders.setdefault(text, []).append(row.key)
    if len(holders) < 2:
        return ""
    parts = [f"{value} ({some_names(keys)})" for value, keys in holders.items()]
    return f"The rows mix {len(holders)} {what}: {'; '.join(parts)}."


# Numeric parts of built-in tasks.
_PARTS = {"training": "training code", "decode": "decoding code", "score": "scoring code"}
# Stale part (`RunState.stale`) → name of its code in the warning
_OLDER = {
    "training": "training",
    "likelihood": "evaluation",
    "decode": "decoding",
    "score": "scoring",
    "evaluate": "scoring",
}


def _code(table: Table) -> str:
    """Return a warning on rows made by code that differs from the present code or from other rows' code.

    The warning includes the command that makes the results again.
    """
    said = [*dict.fromkeys(filter(None, map(_differing, table.families)))]
    groups: dict[tuple[str, str], list[str]] = {}
    for row in table.rows:
        parts = {part for outcome in row.outcomes for part in outcome.run.store_state.stale}
        if row.stale:
            made = list(dict.fromkeys(word for part, word in _OLDER.items() if part in parts))
            words = " and ".join(filter(None, [", ".join(made[:-1]), *made[-1:]]))
            changed = some_names(what for outcome in row.outcomes for what in outcome.run.store_state.changed)
            groups.setdefault((words, changed), []).append(row.key)
    for (words, changed), keys in groups.items():
        which = f" ({changed})" if changed else ""
        other = f"other {words} code" if words else "other code"
        said.append(f"Results of {other} than the present{which}, kept (†): {some_names(keys)}.")
    if groups:
        said.append(
            "Make them again with `ablations run … --stale rerun`; the present results stay as earlier attempts."
        )
    return " ".join(said)


def _differing(family: Table) -> str:
    """Return a warning on the rows and files in which the code differs; "" if it does not differ.

    A row that uses none of these files is not named, because it is compared with all others (for example, a row with
    `commit`). A row whose seeds have different code is named once for each code, with the seeds.
    """
    files: dict[str, None] = {}
    made: dict[str, dict[str, dict[int, None]]] = {}  # code → key of a row → seeds
    for column in family.columns:
        differing = differing_code(family.rows, column)
        files |= dict.fromkeys(differing)
        for row in family.rows if differing else ():
            for outcome in row.outcomes:
                code = outcome.code(column)
                unknown = NOT_RECORDED in differing and bool(code)  # unrecorded code differs from all recorded code
                if outcome.measured(column.set, column.metric) is None or not (unknown or code.keys() & differing):
                    continue
                of_code = made.setdefault(repr([code.get(name) for name in differing]), {})
                of_code.setdefault(row.key, {})[outcome.run.seed] = None
    if not files:
        return ""
    times = Counter(key for of_code in made.values() for key in of_code)
    mixed = [key for key, count in times.items() if count > 1]

    def named(key: str, seeds: Iterable[int]) -> str:
        numbers = list(seeds)
        of = f" ({plural(len(numbers), 'seed')} {', '.join(map(str, numbers))})"
        return f"{key}{of}" if key in mixed else key

    groups = [some_names(named(key, seeds) for key, seeds in of_code.items()) for of_code in made.values()]
    rows = "; ".join(dict.fromkeys(groups))  # several columns may give the same rows
    names = ", ".join(_PARTS.get(name, name.removeprefix("/")) for name in files)
    within = f" Seeds of {some_names(mixed)} differ in code." if mixed else ""
    return (
        f"Different code made these rows ({names}): {rows}.{within} Between rows of different code no change is "
        "printed or tested, and no value is marked as the best."
    )


def _miscounted(row: Row) -> str:
    for outcome in row.outcomes:
        counted = outcome.record.num_params if outcome.record else None
        if None not in (counted, row.num_params) and counted != row.num_params:
            return f"{row.key}: the trained model has {counted:,} parameters; {row.num_params:,} were computed."
    return ""
