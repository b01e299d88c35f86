"""The options that name a trained model."""

import re
from typing import Annotated, get_args

import typer

from experiments.config import CHECKPOINTS, PrecisionChoice
from experiments.errors import UserError

Run = Annotated[str | None, typer.Option("--run", metavar="RUN_ID", help="A trained run, or the beginning of its id.")]
StudyOption = Annotated[str | None, typer.Option("--study", metavar="STUDY", help="The study that trained it.")]
Row = Annotated[
    str | None,
    typer.Option(
        "--row", metavar="KEY", help="The study's row, or best: that with the best dev score; its base if unset."
    ),
]
Seed = Annotated[int | None, typer.Option("--seed", metavar="N", help="The row's seed; its first if unset.")]


def _checkpoint(value: str | None) -> str | None:
    if value is not None and not re.fullmatch(CHECKPOINTS, value):
        raise UserError(f"--checkpoint {value}: write last, best or average:K, such as average:5.")
    return value


def _precision(value: str) -> str:
    if value not in get_args(PrecisionChoice):
        raise UserError(f"--precision {value}: write fp32, bf16 or auto.")
    return value


Checkpoint = Annotated[
    str | None,
    typer.Option(metavar="last|best|average:K", callback=_checkpoint, help="As the run's evaluation if unset."),
]
Precision = Annotated[str, typer.Option(metavar="fp32|bf16|auto", callback=_precision, help="Arithmetic.")]
