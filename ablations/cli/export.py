"""`ablations export`: write a trained model to one folder."""

from pathlib import Path
from typing import Annotated, Any

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
    form: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="own|huggingface",
            help="For this program, or, of a language model, for Hugging Face's transformers.",
        ),
    ] = "own",
    selectors: Annotated[Selectors, options.Without(("rows", "seeds"))],
    as_json: options.Json = False,
) -> None:
    """Write a trained model to a folder: weights, configuration, tokenizer, README."""
    if form not in ("own", "huggingface"):
        raise UserError(f"--format {form}: write own or huggingface.")
    named, folders = choose_run.study_first(named, words, ["DIR"])
    if not folders:
        raise UserError("DIR is missing: the new folder for the model.")
    folder = Path(folders[0])
    found = choose_run.find_trained(named, selectors, tuple(choose_run.DOES))
    choice = checkpoint or found.config.evaluation.checkpoint
    facts = {
        "commit": found.result.revision.commit,
        "code_digest": found.result.code_digest,
        "versions": found.result.versions,
    }
    about: dict[str, Any] = {"run_id": found.run_id, "choice": choice, "facts": facts}
    layout = None
    if form == "own":
        from experiments.evaluation.trained.export import export as write

        write(found.config, found.attempt, folder, **about)
    else:
        from experiments.evaluation.trained.huggingface.folder import export as write_theirs

        layout = write_theirs(found.config, found.attempt, folder, **about)
    if as_json:
        architecture = {} if layout is None else {"architecture": layout}
        print_json({"run_id": found.run_id, "folder": str(folder), "checkpoint": choice, **architecture})
        return
    verb = "translate" if found.config.needs_encoder else "sample"
    use = f"ablations {verb} --model {folder}" if layout is None else f"as {layout}, for Hugging Face's transformers"
    typer.echo(f"run {found.run_id} is in {folder}: {use}")
