"""`ablations export`: a trained model in one folder."""

from pathlib import Path
from typing import Annotated

import typer

from ablations.cli import model_options, options
from ablations.service import choose_run
from experiments.store.layout import Store


def register(app: typer.Typer) -> None:
    app.command("export")(export)


def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    run: model_options.Run = None,
    study: model_options.StudyOption = None,
    row: model_options.Row = None,
    seed: model_options.Seed = None,
    checkpoint: model_options.Checkpoint = None,
    profile: options.Profile = None,
    corpus: options.Corpus = None,
    sets: options.Set = None,
    store: options.StoreDir = options.DEFAULT_STORE,
    state_dir: options.StateDir = None,
) -> None:
    """Write a trained model to a folder: weights, configuration, tokenizer, README.

    For example: ablations export german-english --study table3 --row base
    """
    opened = Store.open(store, state_dir, create=False)
    found = choose_run.find_trained(opened, run, study, row, seed, profile=profile, corpus=corpus, sets=sets)
    from experiments.evaluation.trained.export import export as write

    choice = checkpoint or found.config.evaluation.checkpoint
    facts = {
        "commit": (found.result.get("revision") or {}).get("commit"),
        "code_digest": found.result.get("code_digest"),
        "versions": found.result.get("versions"),
    }
    write(found.config, found.attempt, folder, run_id=found.run_id, choice=choice, facts=facts)
    typer.echo(f"run {found.run_id} is in {folder}: ablations translate --model {folder}")
