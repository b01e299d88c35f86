"""Rows that are made of another row: ensembles of its trainings, and branches, which begin with one of them."""

from collections.abc import Sequence

from ablations.study.overrides import Overrides
from ablations.study.study import Study
from ablations.study.variation import Variation


def as_run(study: Study, row: Variation) -> Variation:
    """The row with all settings that its runs have: those of the row that it names, and its own.

    What an ensemble sets itself (how it is decoded) or a branch (how it goes on) replaces what that row sets. A branch
    has the seeds of its trunk, unless it says how many.
    """
    named = row.ensemble.of if row.ensemble else row.branch.row if row.branch else None
    if named is None:
        return row
    of = next(other for other in study.variations if other.key == named)

    def joined(theirs: Overrides, own: Overrides) -> Overrides:
        return {**{name: value for name, value in theirs.items() if name not in row.declared}, **own}

    parts = {name: joined(getattr(of, name), getattr(row, name)) for name in ("set", "fixed", "tuned")}
    profiles = dict.fromkeys([*of.by_profile, *row.by_profile])
    by_profile = {name: joined(of.by_profile.get(name, {}), row.by_profile.get(name, {})) for name in profiles}
    seeds = {"seeds": row.seeds or of.seeds, "seed_offset": of.seed_offset} if row.branch else {}
    return row.model_copy(update={**parts, **seeds, "by_profile": by_profile})


def in_words(seeds: Sequence[int]) -> str:
    """ "seed 1", "seeds 1, 2, 3"."""
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
