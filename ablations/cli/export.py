"""`ablations export`: write a trained model to one folder."""

from pathlib import Path
from typing import Annotated

import typer

from ablations.cli import options
from ablations.service import choose_run
from ablations.service.selected import Selectors


def export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    named: choose_run.Named,
    *,
    checkpoint: options.Checkpoint = None,
    selectors: Annotated[Selectors, options.Without(("rows", "seeds"))],
) -> None:
    """Write a trained model to a folder: weights, configuration, tokenizer, README.

    For example: ablations export german-english --study table3 --row base
    """
    found = choose_run.find_trained(named, selectors)
    from experiments.evaluation.trained.export import export as write

    choice = checkpoint or found.config.evaluation.checkpoint
    facts = {
        "commit": found.result.revision.commit,
        "code_digest": found.result.code_digest,
        "versions": found.result.versions,
    }
    write(found.config, found.attempt, folder, run_id=found.run_id, choice=choice, facts=facts)
    typer.echo(f"run {found.run_id} is in {folder}: ablations translate --model {folder}")
