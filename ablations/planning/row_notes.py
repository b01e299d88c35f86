"""Notes on the rows of a plan, for the reader of its table."""

from ablations.planning.resolve import PlannedRow
from ablations.study.study import Study
from experiments.command_words import names
from experiments.messages import show


def of_refused(rows: list[PlannedRow]) -> list[str]:
    """Return one note for each row whose code cannot be made now."""
    return [
        f"{row.variation.key} cannot be trained now; its existing results were made with the change as it was. "
        f"{row.variation.refused}"
        for row in rows
        if row.variation.refused
    ]


def of_settings(rows: list[PlannedRow]) -> list[str]:
    """Return one note for each replaced setting, and one note for each row into which equal rows were merged."""
    concerned: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        for r in row.replaced:
            said = f"{row.variation.key} (declares {show(r.declared)})"
            concerned.setdefault((r.by, r.name, show(r.value)), []).append(said)
    return [
        *(
            f"{by} sets {name} = {value} in every row, also in {', '.join(k)}."
            for (by, name, value), k in concerned.items()
        ),
        *(f"{', '.join(r.repeated_by)} equals {r.variation.key} and is printed once." for r in rows if r.repeated_by),
    ]


def of_seeds(study: Study, rows: list[PlannedRow]) -> list[str]:
    """Return a note if rows have several seeds and the command contains no placeholder for the seed; otherwise [].

    Such a command may ignore the seed. The placeholders are {seed}, {settings} and {settings.yaml}.
    """
    if not study.command or {"seed", "settings", "settings.yaml"} & set(names(study.command)):
        return []
    several = any(len(row.seeds) > 1 for row in rows)
    return [
        "The command has no {seed}. Unless the script reads the environment variable ABLATIONS_SEED, all seeds "
        "repeat one training."
    ] * several
