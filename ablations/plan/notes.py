"""What the reader of a table is told of its plan."""

from collections.abc import Sequence

from ablations.plan.planned import PlannedRun
from ablations.plan.planned_row import PlannedRow
from ablations.study.messages import show
from ablations.study.selectors import Selection
from ablations.study.study import Study


def of_settings(rows: list[PlannedRow]) -> list[str]:
    """One sentence per replaced setting, with the rows concerned; one per repeated row."""
    concerned: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        for r in row.replaced:
            concerned.setdefault((r.by, r.name, show(r.value)), []).append(f"{r.row} (declares {show(r.declared)})")
    return [
        *(
            f"{by} sets {name} = {value} in every row, also in {', '.join(k)}."
            for (by, name, value), k in concerned.items()
        ),
        *(f"{', '.join(r.repeated_by)} equals {r.variation.key} and is printed once." for r in rows if r.repeated_by),
    ]


def of_words(runs: Sequence[PlannedRun]) -> list[str]:
    """One sentence per word of a user by which runs of other settings stand for planned ones."""
    concerned: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        if run.adopted is not None:
            said = f"by `ablations adopt` on {run.adopted.when}" if run.adopted.when else "by the study's same_as"
            was = ", ".join(f"{name} = {show(value)}" for name, value in run.adopted.was.items()) or "fewer settings"
            concerned.setdefault((f"with {was} and taken over {said}", run.adopted.why), []).append(run.name)
    return [f"{', '.join(names)}: trained {how}: {why.rstrip('.')}." for (how, why), names in concerned.items()]


def of_added(runs: Sequence[PlannedRun]) -> list[str]:
    """Runs that were trained before a setting of their trainer existed, and as what they count."""
    concerned: dict[tuple[str, str], dict[str, None]] = {}
    for run in runs:
        if run.added and run.state in ("finished", "stale"):
            values = ", ".join(f"{name} = {show(value)}" for name, value in run.added.items())
            concerned.setdefault((", ".join(run.added), values), {})[run.row] = None
    return [
        f"{', '.join(rows)}: trained without {names}, and counted as {values}."
        for (names, values), rows in concerned.items()
    ]


def of_target(study: Study, profile: str, selection: Selection) -> list[str]:
    """A target is a number for one text, size and length of training; a profile's is for the profile's own."""
    if not selection.forced or study.rule is None or study.profiles[profile].target is None:
        return []
    given = ", ".join(f"{option} {name}" for name, (_, option) in selection.forced.items())
    return [f"The target of the rule {study.rule} was chosen for the profile {profile} as it is, not for {given}."]
