"""`ablations probe`: measure the training speed of each row on the given devices."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ablations.cli import options
from ablations.cli.terminal import plain_progress, print_json
from ablations.plan.planned import PlannedRun
from ablations.service.enqueue import prepare
from ablations.service.forecast import short_spec
from ablations.service.selected import Selected, Selectors, choose
from ablations.study.messages import duration
from experiments.config import total_steps
from experiments.errors import UserError
from experiments.jobs.attempts.probe import PROBING, STEPS, Measured, probe_together, steps_together
from experiments.jobs.attempts.probe import probe as measure
from experiments.jobs.devices.device_sharing import WORTH, gain, shares, worth_sharing
from experiments.jobs.devices.slots import Slot, parse_slots

TRACED = 4  # steps in a trace; the first two are warm-up
FORMULA = (
    "MFU = operations of a training step per target piece × target tokens/s ÷ the matrix product's rate; operations "
    "are 3 × forward, multiply and add counted, matrix products only (model/cost.py). tokens/s are real pieces."
)


def probe(
    study: options.StudyName,
    selectors: Annotated[Selectors, options.Without(("seeds", "state_dir"))],
    devices: options.Devices = "auto",
    steps: Annotated[
        int, typer.Option(metavar="N", min=11, help="Steps of each row; the first ten are warm-up.")
    ] = STEPS,
    together: Annotated[
        int, typer.Option(metavar="N", min=1, help="Also measure N runs at once on the first device.")
    ] = 1,
    trace: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write a torch profiler trace of each row there.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Train a few steps of each row on the first device and report the speed; nothing is stored."""
    chosen = choose(study, replace(selectors, seeds=1))
    slot = parse_slots(devices)[0]
    runs = list({run.run_id: run for run in chosen.plan.runs if not run.members}.values())
    if not runs:
        raise UserError("The chosen rows are ensembles, which train nothing: probe the rows of their members.")
    prepare(chosen, runs, plain_progress)
    parts = shares(slot, together)
    found = []
    measured = measure(chosen.store, (short_spec(chosen, run, steps) for run in runs), slot, child=PROBING)
    for run, alone in zip(runs, measured, strict=True):
        row = {"row": run.row, **asdict(alone), "mfu": alone.mfu, "hours": _hours(run, alone)}
        if together > 1:
            spec = short_spec(chosen, run, steps_together(alone.seconds_per_step))
            [first] = probe_together(chosen.store, spec, [slot])  # same steps and start as the shared runs
            row |= _sharing(first, probe_together(chosen.store, spec, parts))
        if trace:
            row["trace"] = str(_trace(chosen, run, slot, trace))
        found.append(row)
        if not as_json:
            typer.echo(_line(row, first=len(found) == 1))
    if as_json:
        print_json(found)
    else:
        typer.echo(_notes(found, slot))


def _sharing(alone: Measured, together: Sequence[Measured]) -> dict[str, Any]:
    speeds = 1 / alone.seconds_per_step, [1 / shared.seconds_per_step for shared in together]
    return {"together": len(together), "gain": gain(*speeds), "share": worth_sharing(*speeds)}


def _trace(chosen: Selected, run: PlannedRun, slot: Slot, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = (folder / f"{run.row}.json").absolute()
    spec = {**short_spec(chosen, run, TRACED), "trace": str(path)}
    try:
        next(measure(chosen.store, [spec], slot, child=PROBING))
    except UserError:  # so few steps give fewer than two points of a curve
        if not path.exists():
            raise
    return path


def _hours(run: PlannedRun, measured: Measured) -> float | None:
    steps = total_steps(run.config)
    return None if steps is None else steps * measured.seconds_per_step / 3600


def _line(row: dict[str, Any], first: bool) -> str:
    head = f"{'row':14}{'source/s':>10}{'target/s':>10}{'step':>9}{'MFU':>7}{'padding':>9}{'memory':>9}{'to train':>11}"
    memory = row["peak_memory_bytes"]
    cells = [
        f"{row['row']:14}",
        f"{_number(row['source_tokens_per_s']):>10}",
        f"{_number(row['target_tokens_per_s']):>10}",
        f"{row['seconds_per_step'] * 1e3:6,.0f} ms",
        f"{'–' if row['mfu'] is None else format(row['mfu'], '.1%'):>7}",
        f"{'–' if row['padding'] is None else format(row['padding'], '.1%'):>9}",
        f"{'–' if memory is None else format(memory / 1e9, '.2f') + ' GB':>9}",
        f"{'–' if row['hours'] is None else duration(row['hours'] * 3600):>11}",
    ]
    shared = f"  {row['together']} at once: {row['gain']:.2f}×" if "gain" in row else ""
    return (head + "\n" if first else "") + "".join(cells) + shared


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _notes(rows: Sequence[dict[str, Any]], slot: Slot) -> str:
    lines = []
    known = next((row for row in rows if row["matrix_flops"]), None)
    if known:
        rate = known["matrix_flops"] / 1e12
        lines.append(f"{known['device']}, {known['precision']}; matrix product {rate:,.3f} TFLOP/s. {FORMULA}")
    shared = [row for row in rows if "gain" in row]
    if shared:
        worth = [row["row"] for row in shared if row["share"]]
        how = f"cuda:*x{shared[0]['together']}" if slot.kind == "cuda" else f"cpu:{shared[0]['together']}"
        lines.append(
            f"Sharing the device pays from a gain of {WORTH} ×: {', '.join(worth) if worth else 'no row'}"
            + (f" (--devices {how})." if worth else ".")
        )
    lines += [f"trace: {row['trace']}" for row in rows if "trace" in row]
    return "\n".join(lines)
