"""Warnings over a table: in which ways its numbers were not made alike, and what is left out of it."""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from experiments.store.results import EvaluationResult, TrainingResult
from reports.results import comparable
from reports.results.results import Outcome
from reports.results.table import Row, Table
from reports.table.provenance import corpus_name

NAMED = 6  # rows that a warning names before it counts


def warnings(table: Table) -> tuple[str, ...]:
    """One sentence for each way in which the numbers of a table were not made alike."""
    found = [
        _mixed(family.rows, what, of)
        for what, of in _MUST_AGREE.items()
        for family in (table.families if what in _OF_THE_DATA else [table])
    ]
    found += [*_mixed_code(table.rows), *_mixed_versions(table.rows)]
    for column, family in itertools.product(table.columns, table.families):
        if not comparable.one_basis(family.rows, column):
            found.append(
                f"{column.header} was measured over different tokens, sentences or signatures: changes from "
                f"{family.base or 'base'} are left out where these differ, and no value is marked as the best."
            )
    found.append(_stale(table))
    found += [_miscounted(row) for row in table.rows]
    found += [text for row in table.rows for text in _left_out(row)]
    return tuple(text for text in found if text)


def _tokenizer(outcome: Outcome) -> str:
    trained, size = comparable.tokenizer(outcome)
    return trained or (f"{size} pieces" if size else "")


def _of_evaluations(of: Callable[[EvaluationResult], str | None]) -> Callable[[Outcome], list[str]]:
    """A fact of all evaluations of a run, each value once."""
    return lambda outcome: sorted({value for facts in _scored(outcome) if (value := of(facts))})


def _scored(outcome: Outcome) -> list[EvaluationResult]:
    return [scored.record for scored in outcome.scored.values() if scored.record]


def _trained(outcome: Outcome) -> list[TrainingResult]:
    return [outcome.record] if outcome.record else []


_MUST_AGREE: dict[str, Callable[[Outcome], Any]] = {
    "revisions of the training code": lambda o: o.record and o.record.code_digest,
    "corpora": corpus_name,
    "tokenizers": _tokenizer,
    "precisions of training": lambda o: o.record and o.record.precision,
    "precisions of evaluation": _of_evaluations(lambda facts: facts.precision),
    "kinds of device for training": lambda o: o.record and o.record.device_kind,
    "kinds of device for evaluation": _of_evaluations(lambda facts: facts.device_kind),
}
_OF_THE_DATA = ("corpora", "tokenizers")  # may differ between the columns of a pivoted table: language pairs


def _mixed_code(rows: Iterable[Row]) -> Iterator[str]:
    """The code of each part of the evaluations."""
    outcomes = [outcome for row in rows for outcome in row.outcomes]
    for part in dict.fromkeys(part for outcome in outcomes for facts in _scored(outcome) for part in facts.code):
        what = f"revisions of the evaluation code ({part})"
        yield _mixed(rows, what, _of_evaluations(functools.partial(_code_of, part)))


def _code_of(part: str, facts: EvaluationResult) -> str | None:
    return facts.code.get(part)


def _mixed_versions(rows: Iterable[Row]) -> Iterator[str]:
    """Of each package that training or scoring recorded."""
    outcomes = [outcome for row in rows for outcome in row.outcomes]
    for part, facts_of in (("training", _trained), ("evaluation", _scored)):
        recorded = [facts.versions for outcome in outcomes for facts in facts_of(outcome)]
        for name in dict.fromkeys(name for versions in recorded for name in versions):
            yield _mixed(rows, f"versions of {name} in {part}", _version_of(name, facts_of))


def _version_of(
    name: str, facts_of: Callable[[Outcome], Sequence[TrainingResult | EvaluationResult]]
) -> Callable[[Outcome], list[str]]:
    return lambda outcome: sorted({facts.versions[name] for facts in facts_of(outcome) if name in facts.versions})


def _mixed(rows: Iterable[Row], what: str, of: Callable[[Outcome], Any]) -> str:
    """ "The rows mix 2 precisions: bf16 (base, A-h1), fp32 (big)." over the runs that there are; "" if they agree."""
    holders: dict[str, list[str]] = {}
    for row in rows:
        for outcome in row.outcomes:
            here = outcome.record is not None and not outcome.run.imported  # a note says that the others are unknown
            value = of(outcome) if here else None
            if value:
                text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
                holders.setdefault(text, []).append(row.key)
    if len(holders) < 2:
        return ""
    parts = [f"{value} ({_names(keys)})" for value, keys in holders.items()]
    return f"The rows mix {len(holders)} {what}: {'; '.join(parts)}."


def _in_words(words: list[str]) -> str:
    """a, b and c."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


# parts of PlannedRun.stale → how the sentence calls them
_MADE = {"training": "trained", "likelihood": "measured", "decode": "decoded", "score": "scored", "evaluate": "scored"}


def _stale(table: Table) -> str:
    groups: dict[str, list[str]] = {}
    for row in table.rows:
        parts = {part for outcome in row.outcomes for part in outcome.run.stale}
        if row.stale:
            groups.setdefault(_in_words([word for part, word in _MADE.items() if part in parts]), []).append(row.key)
    sentences = (
        f"{made.capitalize()} by another revision of the code than the present one, and kept (†): {_names(keys)}."
        for made, keys in groups.items()
    )
    return " ".join(sentences)


def _miscounted(row: Row) -> str:
    for outcome in row.outcomes:
        counted = outcome.record.num_params if outcome.record else None
        if None not in (counted, row.num_params) and counted != row.num_params:
            return f"{row.key}: the trained model has {counted:,} parameters; {row.num_params:,} were computed."
    return ""


def _left_out(row: Row) -> Iterator[str]:
    """What could not be believed, a sentence for each file."""
    for outcome in row.outcomes:
        for why in dict.fromkeys(outcome.harm.values()):
            yield f"{outcome.run.name} is left out: {why}"


def _names(keys: Iterable[str]) -> str:
    unique = list(dict.fromkeys(keys))
    rest = len(unique) - NAMED
    return ", ".join(unique[:NAMED]) + (f" and {rest} more" if rest > 0 else "")
