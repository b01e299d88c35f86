"""Rows that are ensembles: trainings of another row that decode together."""

from collections.abc import Sequence

from ablations.study.overrides import Overrides
from ablations.study.study import Study, Variation


def as_run(study: Study, row: Variation) -> Variation:
    """The row with all settings that its runs have: an ensemble's members are trainings of the row that it names.

    What an ensemble sets itself (how it is decoded) replaces what that row sets.
    """
    if row.ensemble is None:
        return row
    of = next(other for other in study.variations if other.key == row.ensemble.of)

    def joined(theirs: Overrides, own: Overrides) -> Overrides:
        return {**{name: value for name, value in theirs.items() if name not in row.declared}, **own}

    parts = {name: joined(getattr(of, name), getattr(row, name)) for name in ("set", "fixed", "tuned")}
    profiles = dict.fromkeys([*of.by_profile, *row.by_profile])
    by_profile = {name: joined(of.by_profile.get(name, {}), row.by_profile.get(name, {})) for name in profiles}
    return row.model_copy(update={**parts, "by_profile": by_profile})


def in_words(seeds: Sequence[int]) -> str:
    """ "seed 1", "seeds 1, 2, 3"."""
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
