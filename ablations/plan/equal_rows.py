"""Rows that would print the same runs twice: repeats of designs are merged, others are refused with the reason."""

from dataclasses import replace

from ablations.plan.planned_row import PlannedRow
from ablations.study.messages import show
from experiments.errors import UserError
from experiments.identity import NO_SEED, digest


def merge_repeats(rows: list[PlannedRow]) -> list[PlannedRow]:
    """Merge rows of designs that equal an earlier row (a value equal to base's): each is printed once."""
    kept: list[PlannedRow] = []
    first: dict[str, int] = {}  # by settings, the place in `kept`
    for row in rows:
        place = first.setdefault(_settings_digest(row), len(kept))
        if place < len(kept) and row.variation.design and not row.variation.seed_offset:
            kept[place] = replace(kept[place], repeated_by=(*kept[place].repeated_by, row.variation.key))
        else:
            kept.append(row)
    return kept


def _settings_digest(row: PlannedRow) -> str:
    """Equal for rows of the same settings; for ensembles, of the same members too, and for branches of one place."""
    ensemble, branch = row.variation.ensemble, row.variation.branch
    return digest(
        [
            row.config.model_dump(mode="json", exclude={"seed"}),
            ensemble and list(ensemble.seeds),
            branch and [branch.row, row.shared_steps],
            row.variation.imported and row.variation.key,
        ]
    )


def refuse_equal(rows: list[PlannedRow], origin: str, profile: str) -> None:
    """Refuse two rows with equal settings and a common seed: they would print the same runs twice."""
    seen: dict[tuple[str, int], PlannedRow] = {}
    for row in rows:
        settings = _settings_digest(row)
        for seed in row.seeds:
            other = seen.setdefault((settings, seed), row)
            if other is not row:
                raise UserError(_equal(other, row, seed, origin, profile))


def _equal(first: PlannedRow, second: PlannedRow, seed: int, origin: str, profile: str) -> str:
    return (
        f'{origin}: the rows "{first.variation.key}" and "{second.variation.key}" have equal settings '
        f'under profile "{profile}" and share {f"seed {seed}" if seed != NO_SEED else "their members"}: '
        "the table would show the same runs twice."
        f"{_lost(first)}{_lost(second)} Change one of them, leave one out with --rows, or, to repeat base, "
        "give one a larger seed_offset."
    )


def refuse_cancelled(rows: list[PlannedRow], origin: str, profile: str) -> None:
    """Refuse a row whose changes were all replaced: it would print base's numbers under its own name."""
    for row in rows:
        if row.replaced and not row.overrides and not row.variation.ensemble and not row.trunk:
            raise UserError(
                f'{origin}: the row "{row.variation.key}" equals base under profile '
                f'"{profile}".{_lost(row)} Leave out the row with --rows, or do not replace that setting.'
            )


def _lost(row: PlannedRow) -> str:
    return "".join(
        f' {r.by} replaces {r.name} = {show(r.declared)} of row "{r.row}" by {show(r.value)}.' for r in row.replaced
    )
