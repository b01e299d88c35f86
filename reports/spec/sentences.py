"""Cited results and claims in a study file.

A claim is a sentence with one of a few forms, such as "A-h1 is worse than base in bleu by at least 0.5". `parse` reads
the sentence, and `compared` finds the pairs of systems that the claim compares. reports/table/claims.py compares their
numbers.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple, Protocol, TypeVar

from pydantic import AfterValidator, Field, FiniteFloat

from experiments.labels import Key, Text
from experiments.messages import suggestion
from model.strict import StrictModel

ALL_CITED = "cited"  # a name in claims that stands for all cited results in the group of the first name
FORMS = (
    "A is better than B in bleu",
    "A is worse than B, C in bleu by at least 0.5",
    "A is better than B in flops by a factor of more than 4",
    "A is within 0.2 of B in bleu",
    "A is at least as good as B in bleu to within 0.2",
    "A is the best of B, C in bleu",
    "A, B, C are monotone in bleu",
)
_NAMES, _AMOUNT = r"[\w.-]+(?:(?:, | and |, and )[\w.-]+)*", r"\d+(?:\.\d+)?"
_SENTENCE = re.compile(
    rf"(?P<subjects>{_NAMES}) (?:is|are) (?:(?P<monotone>monotone)|within (?P<within>{_AMOUNT}) of (?P<near>{_NAMES})|"
    rf"(?P<relation>better than|worse than|at least as good as|(?:the )?best of) (?P<others>{_NAMES})) "
    rf"in (?P<number>[\w-]+)"
    rf"(?: by (?P<factor>a factor of )?(?P<how>at least|more than) (?P<by>{_AMOUNT})| to within (?P<slack>{_AMOUNT}))?"
)
_System = TypeVar("_System")


@dataclass(frozen=True)
class Comparison:
    """A parsed claim about pairs of systems: the first is better than the second by `bound`, or within `bound` of it.

    Each column declares whether lower or higher values are better. For costs, lower values are better. For a
    logarithmic column, the bound is a difference of logarithms, like Δ.
    """

    subjects: tuple[str, ...]  # names of rows, groups and cited results, as written
    others: tuple[str, ...]  # names of the systems that the subjects are compared with; () if monotone
    number: str  # name of the compared column or cost
    bound: float = 0.0
    strict: bool = False  # whether the difference must be more than the bound, not at least the bound
    factor: bool = False  # whether the bound is a ratio
    within: bool = False  # whether the difference must be at most the bound, in either direction
    worse: bool = False  # whether the sentence says that the subjects are worse

    def pairs(self, subjects: Sequence[_System], others: Sequence[_System]) -> Iterator[tuple[_System, _System]]:
        """Yield the pairs to compare, the better system first.

        Every subject is compared with each of `others`. If the claim is monotone, each subject is compared with the
        subject before it.
        """
        if not self.others:
            yield from zip(subjects[1:], subjects, strict=False)
            return
        for one in subjects:
            yield from ((other, one) if self.worse else (one, other) for other in others if other != one)


def parse(sentence: str) -> Comparison:
    """Parse the sentence of a claim.

    Raises ValueError if the sentence has none of FORMS, or if its factor is not more than 0.
    """
    found = _SENTENCE.fullmatch(" ".join(sentence.split()).removesuffix("."))
    relation = (found["relation"] or "") if found else ""
    by_fits = found is None or found["by"] is None or relation in ("better than", "worse than")
    slack_fits = found is None or found["slack"] is None or relation == "at least as good as"
    subjects = _names(found["subjects"]) if found else ()
    if found is None or not by_fits or not slack_fits or (found["monotone"] and len(subjects) < 2):
        raise ValueError(f'"{sentence}" has none of the forms of a claim: {"; ".join(FORMS)}')
    if found["factor"] and float(found["by"]) <= 0:
        raise ValueError(f'"{sentence}": a factor is more than 0')
    others = _names(found["near"] or found["others"] or "")
    if found["within"]:
        return Comparison(subjects, others, found["number"], float(found["within"]), within=True)
    if relation in ("better than", "worse than"):
        strict = found["how"] != "at least"
        bound, factor, worse = float(found["by"] or 0), bool(found["factor"]), relation == "worse than"
        return Comparison(subjects, others, found["number"], bound, strict, factor, worse=worse)
    strict = bool(found["monotone"])
    return Comparison(subjects, others, found["number"], -float(found["slack"] or 0), strict)


def _names(text: str) -> tuple[str, ...]:
    return tuple(re.split(r", and |, | and ", text)) if text else ()


def _sentence(text: str) -> str:
    parse(text)
    return text


class Cited(StrictModel):
    """A published result of another system, printed as a row of the table. The program does not train this row."""

    key: Key | None = Field(
        None, description="name in claims: a new name, or the key of the study's row for this system"
    )
    label: Text
    group: Text = Field("", description="group, such as the training data; results of one group are printed together")
    values: dict[str, FiniteFloat] = Field(
        description="published numbers by name, as in `paper`: perplexity, bleu, params, …"
    )
    note: Text = ""


class Claim(StrictModel):
    """A claim about numbers, which is checked in the published numbers and in the study's runs."""

    text: Text = Field("", description="sentence of the paper, with its place")
    check: Annotated[Text, AfterValidator(_sentence)] = Field(
        description="the statement in one of the forms, such as: A-h1 is worse than base in bleu by at least 0.5"
    )


class DeclaredRow(Protocol):
    """A row of a study, with the fields that claims need."""

    @property
    def key(self) -> str:
        """The row's key."""

    @property
    def group(self) -> str:
        """The group of the row; "" if it has none."""

    @property
    def paper(self) -> Mapping[str, float]:
        """The row's published numbers by name."""


class System(NamedTuple):
    """The system to which a name in a claim refers."""

    name: str
    row: str  # key of the row that runs this system in the study; "" if no row does
    published: Mapping[str, float]


def systems(names: Iterable[str], group: str, rows: Sequence[DeclaredRow], cited: Sequence[Cited]) -> Iterator[System]:
    """Yield the systems to which names in a claim refer. Raises ValueError for an unknown name.

    group: the name ALL_CITED refers to all cited results in this group.
    """
    keys = {row.key: row for row in rows}
    named = {entry.key: entry for entry in cited if entry.key}
    for name in names:
        if name in keys:
            theirs = named[name].values if name in named else {}
            yield System(name, name, {**theirs, **keys[name].paper})
        elif name in named:
            yield System(named[name].label, "", named[name].values)
        elif name == ALL_CITED:
            yield from (
                System(e.label, e.key if e.key in keys else "", e.values) for e in cited if e.group == group
            )  # fmt: skip
        elif members := [row for row in rows if row.group == name]:
            yield from (System(row.key, row.key, row.paper) for row in members)
        else:
            near = suggestion(name, [*keys, *named, *dict.fromkeys(r.group for r in rows if r.group)], "names")
            raise ValueError(f'there is no row, group or cited result "{name}". {near.rstrip(".")}')


def compared(
    comparison: Comparison, rows: Sequence[DeclaredRow], cited: Sequence[Cited]
) -> list[tuple[System, System]]:
    """Return the pairs of systems that a claim compares. Raises ValueError for unknown names or if there is no pair."""
    of = {row.key: row.group for row in rows} | {entry.key or "": entry.group for entry in cited if entry.key}
    group = of.get(comparison.subjects[0], "")
    sides = (list(systems(names, group, rows, cited)) for names in (comparison.subjects, comparison.others))
    pairs = list(comparison.pairs(*sides))
    if not pairs:
        raise ValueError("it compares nothing. Name at least two different systems")
    return pairs
