"""Notes on rows that are ensembles: what they are made of, and which member is missing."""

from collections.abc import Iterator

from ablations.plan.ensembles import in_words
from ablations.plan.planned import Plan
from reports.results.table import Table

_HOW = {"missing": "is not trained", "running": "is being trained", "damaged": "is damaged"}


def ensembles(table: Table, plan: Plan) -> Iterator[str]:
    """One sentence for each ensemble, and one for each without a number because of a member."""
    for row in table.rows:
        for outcome in row.outcomes:
            members = plan.members_of(outcome.run)
            if not members:
                continue
            of = f"{members[0].row}, {in_words([member.seed for member in members])}"
            yield (
                f"{row.key}: ensemble of {of}: the mean of their probabilities at each step of the search. Parameters "
                "and training cost are those of all members together; it is one entry, with no seed of its own."
            )
            lacking = [member for member in members if member.state not in ("finished", "stale")]
            if lacking and (outcome.record is None or not outcome.scored):
                words = "; ".join(f"{member.name} {_HOW.get(member.state, member.state)}" for member in lacking)
                yield f"{row.key} has no number, because a member is missing: {words}."
