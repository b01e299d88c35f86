"""`ablations evaluate`: decode finished runs again with other settings, without training."""

import typer

from ablations.cli import options as o
from ablations.cli.jobs import trained_again
from ablations.cli.run import run_chosen
from experiments.errors import UserError


def register(app: typer.Typer) -> None:
    app.command("evaluate")(evaluate)


def evaluate(
    study: o.StudyName,
    profile: o.Profile = None,
    corpus: o.Corpus = None,
    rows: o.Rows = None,
    seeds: o.Seeds = None,
    sets: o.Set = None,
    store: o.StoreDir = o.DEFAULT_STORE,
    state_dir: o.StateDir = None,
    devices: o.Devices = "auto",
    as_json: o.Json = False,
) -> None:
    """Score trained runs with the evaluation.* settings given; refuses to train.

    For example: ablations evaluate table3 --set evaluation.beam_size=1
    """
    chosen = o.choose(study, profile, corpus, rows, seeds, sets, store, state_dir)
    untrained = [f"{run.row} (seed {run.seed})" for run in chosen.plan.runs if not chosen.store.result(run.run_id)]
    if untrained:
        raise UserError(
            f"Not trained in {chosen.store.root} with these settings: {', '.join(untrained)}. `evaluate` never trains: "
            "train them with `ablations run`, or leave them out with --rows. Only evaluation.* may differ."
        )
    if again := trained_again(chosen, chosen.plan.runs):
        raise UserError(
            f"The trainings of {', '.join(dict.fromkeys(run.row for run in again))} kept too few checkpoints for this "
            "evaluation.checkpoint, and `evaluate` never trains. `ablations run` with the same options does."
        )
    run_chosen(chosen, devices, "keep", "json" if as_json else "markdown")
