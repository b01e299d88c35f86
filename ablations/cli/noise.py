"""`ablations noise`: how much base varies with its seed, and how many seeds a difference needs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer

from ablations.cli import options
from ablations.cli.run import run_chosen
from ablations.cli.terminal import print_json
from ablations.service.forecast import why_unknown
from ablations.service.noise import Noise, base_of, hours_of_rows, noise_of, wanted_difference
from ablations.service.selected import Selectors, choose
from ablations.study.messages import number
from ablations.study.selectors import only_row
from experiments.errors import UserError
from experiments.jobs.devices.slots import parse_slots
from reports.render.markdown import pipe
from reports.render.numbers import fixed
from reports.results.comparable import change_digits
from reports.statistics.dunnett import ALPHA, POWER

Seeds = tuple[int | None, int | None, int | None]  # at the spread, and at both ends of its interval
SEEDS = (2, 3, 4, 5, 7, 10, 15, 20)


def noise(
    study: options.StudyName,
    selectors: Annotated[Selectors, options.Without(("seeds",))],
    seeds: Annotated[int, typer.Option(metavar="N", min=2, help="Seeds of base; missing ones are trained.")] = 5,
    detect: Annotated[
        list[str] | None,
        typer.Option(metavar="[COLUMN=]D", help="Also the seeds a row that show a difference D from base; repeatable."),
    ] = None,
    devices: options.Devices = "auto",
    as_json: options.Json = False,
) -> None:
    """Train seeds of base; print their spread, what so many seeds of every row can show, and the hours for it."""
    asked = [wanted_difference(text) for text in detect or ()]
    chosen = choose(study, selectors)
    base = base_of(chosen)
    alone = replace(selectors, rows=only_row(chosen.study, base.key), seeds=seeds)
    run_chosen(choose(study, alone), devices, "keep", "markdown", show=False)
    found = noise_of(study, selectors, chosen, seeds)
    if not found:
        raise UserError(
            f"{base.key}: no metric of it varies between {number(seeds, 'seed')}, so there is no noise to print."
        )
    wanted = [(one, one.of(found)) for one in asked]
    hours = hours_of_rows(study, selectors, parse_slots(devices))
    known = [value for value in hours.values() if value is not None]
    per_seed = sum(known) if known and len(known) == len(hours) else None
    answers = [(of, one.difference, of.seeds_for(one.difference)) for one, of in wanted]
    if as_json:
        print_json(_as_json(base.key, seeds, found, per_seed, answers))
        return
    typer.echo(f"{base.key} of {chosen.study.name}, profile {chosen.plan.profile}: {number(seeds, 'seed')}\n")
    typer.echo(_spreads(found))
    typer.echo(
        f"The smallest true difference from {base.key} that is marked with {POWER:.0%} power at {ALPHA:.0%}, "
        f"{number(found[0].rows, 'row')} compared at once (Dunnett), with so many seeds of every row:\n"
    )
    typer.echo(_shown(found, per_seed))
    for answer in answers:
        typer.echo(seeds_needed(*answer))
    if per_seed is None:
        typer.echo(f"Hours are unknown: {why_unknown(chosen.plan.runs)}.")


def seeds_needed(of: Noise, difference: float, seeds: Seeds) -> str:
    """How many seeds show a difference, with the uncertainty of the spread."""
    first, low, high = ("more than 1,000" if n is None else str(n) for n in seeds)
    unit = " in ln" if of.column.logarithmic else ""
    return (
        f"{of.column.header}: a difference of {difference:g}{unit} needs {first} seeds of every row "
        f"({low} to {high}, as the spread is known from {number(len(of.values), 'seed')} only)."
    )


def _spreads(found: Sequence[Noise]) -> str:
    lines = []
    for one in found:
        places = change_digits(one.column) + 1
        lines.append([
            one.column.header + (" (spread in ln)" if one.column.logarithmic else ""),
            fixed(one.mean, one.column.digits),
            fixed(one.sd, places),
            f"{fixed(one.low, places)} … {fixed(one.high, places)}",
        ])  # fmt: skip
    return pipe(["metric", "mean", "sd of a seed", "95 % interval of the sd"], lines, [True, False, False, False])


def _shown(found: Sequence[Noise], per_seed: float | None) -> str:
    """A line for each number of seeds."""
    heads = ["seeds a row", *(one.column.header + (" Δ ln" if one.column.logarithmic else " Δ") for one in found)]
    lines = []
    for seeds in SEEDS:
        cells = [fixed(one.shown_by(seeds) or 0.0, change_digits(one.column)) for one in found]
        lines.append([str(seeds), *cells, "" if per_seed is None else f"{seeds * per_seed:.3g}"])
    return pipe([*heads, "hours of work"], lines, [False] * (len(heads) + 1))


def _as_json(
    base: str, seeds: int, found: Sequence[Noise], per_seed: float | None, answers: Sequence[tuple[Noise, float, Seeds]]
) -> dict[str, Any]:
    return {
        "base": base,
        "seeds": seeds,
        "rows_compared": found[0].rows,
        "alpha": ALPHA,
        "power": POWER,
        "hours_per_seed": per_seed,
        "columns": [
            {
                "key": one.column.key,
                "header": one.column.header,
                "logarithmic": one.column.logarithmic,
                "values": list(one.values),
                "mean": one.mean,
                "sd": one.sd,
                "sd_interval": [one.low, one.high],
                "smallest_difference": {str(n): one.shown_by(n) for n in SEEDS},
            }
            for one in found
        ],
        "detect": [
            {"column": of.column.key, "difference": size, "seeds": first, "seeds_interval": interval}
            for of, size, (first, *interval) in answers
        ],
    }
