"""Checks of what a study says of its printed table: `pivot`, the names in its claims, and the target of its rule."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from ablations.study.messages import suggestion
from ablations.study.published import Cited, Claim


class _Row(Protocol):
    """What is read of a row of the study."""

    @property
    def key(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def paper(self) -> Mapping[str, float]: ...


def check_pivot(pivot: Mapping[str, str], rows: Sequence[_Row], cited: Sequence[Cited]) -> None:
    """Raises ValueError for a row or cited result without its own place: a line (label) and a column (group)."""
    _check_places(pivot, "row", [(row.key, row.label, row.group) for row in rows])
    _check_places(pivot, "cited result", [(entry.label, entry.label, entry.group) for entry in cited])


def _check_places(pivot: Mapping[str, str], kind: str, places: Sequence[tuple[str, str, str]]) -> None:
    taken = dict[tuple[str, str], str]()
    for name, label, group in places:
        if not label:
            raise ValueError(f'pivot: the {kind} "{name}" needs a label, the name of its line')
        if group not in pivot:
            near = suggestion(group, pivot, "groups of pivot").rstrip(".")
            raise ValueError(f'pivot: the {kind} "{name}" has the group "{group}", which is no column. {near}')
        if (label, group) in taken:
            raise ValueError(
                f'pivot: the {kind}s "{taken[label, group]}" and "{name}" have the same label and the same group, so '
                "they would print in the same place; change one of them"
            )
        taken[label, group] = name


def check_claim(claim: Claim, rows: Sequence[_Row], cited: Sequence[Cited]) -> None:
    """Raises ValueError for rows and cited results that do not exist, or that lack the number that is compared."""
    by_key = {row.key: row for row in rows}
    for key in (claim.row, *claim.here):
        if key not in by_key:
            near = suggestion(key, by_key, "rows").rstrip(".")
            raise ValueError(f'claim "{claim.text}": there is no row "{key}". {near}')
    of = by_key[claim.row]
    if claim.number not in of.paper:
        raise ValueError(f'claim "{claim.text}": the row "{claim.row}" has no published {claim.number}')
    others = {entry.label: entry for entry in cited if entry.group == of.group}
    for label in claim.published:
        if label not in others:
            near = suggestion(label, others, "labels of its group").rstrip(".")
            raise ValueError(f'claim "{claim.text}": the row\'s group has no cited result "{label}". {near}')
    if not any(claim.number in others[label].values for label in claim.published or others):
        raise ValueError(f'claim "{claim.text}": no cited result that it compares with has a {claim.number}')


def check_rule(rule: str | None, target: object, of_profiles: Sequence[object]) -> None:
    """Raises ValueError for a rule without any target, and for the study's own target without a rule.

    A target of a profile alone is no mistake: `extends` inherits profiles, but no rule.
    """
    if rule and target is None and not any(of_profiles):
        raise ValueError(
            f'rule = "{rule}" needs a target, a number chosen before the rows are trained: write target = 3.28 beside '
            "it, or in a profile; [target] with value, metric, set, alpha and source says more"
        )
    if target is not None and not rule:
        raise ValueError('it has a target, but no rule that reads it: add rule = "speedrun", or remove the target')
