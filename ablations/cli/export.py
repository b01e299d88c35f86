"""`ablations export`: write a trained model to one folder."""

from pathlib import Path
from typing import Annotated

import typer

from ablations.cli import options
from ablations.cli.terminal import print_json
from ablations.service import choose_run
from ablations.service.selected import Selectors
from experiments.errors import UserError


def export(
    words: Annotated[
        list[str],
        typer.Argument(metavar="[STUDY] DIR", help="The study that trained the model (not with --run); a new folder."),
    ],
    *,
    named: choose_run.Named,
    checkpoint: options.Checkpoint = None,
    selectors: Annotated[Selectors, options.Without(("rows", "seeds"))],
    as_json: options.Json = False,
) -> None:
    """Write a trained model to a folder: weights, configuration, tokenizer, README."""
    named, folders = choose_run.study_first(named, words, ["DIR"])
    if not folders:
        raise UserError("DIR is missing: the new folder for the model.")
    folder = Path(folders[0])
    found = choose_run.find_trained(named, selectors)
    from experiments.evaluation.trained.export import export as write

    choice = checkpoint or found.config.evaluation.checkpoint
    facts = {
        "commit": found.result.revision.commit,
        "code_digest": found.result.code_digest,
        "versions": found.result.versions,
    }
    write(found.config, found.attempt, folder, run_id=found.run_id, choice=choice, facts=facts)
    if as_json:
        print_json({"run_id": found.run_id, "folder": str(folder), "checkpoint": choice})
        return
    typer.echo(f"run {found.run_id} is in {folder}: ablations translate --model {folder}")
