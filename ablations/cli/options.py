"""Command-line options that several commands share.

`spread` turns a dataclass parameter of a command into one option per field.
"""

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from experiments.config.evaluation import CHECKPOINTS
from experiments.config.field_types import PrecisionChoice
from experiments.errors import UserError
from experiments.store import ledger
from model.extensions import added


def _studies(incomplete: str) -> list[str]:
    """Return the shell completions for a study: built-in studies, files and folders."""
    from ablations.study.study_file import builtin_studies

    there = Path(incomplete).parent if "/" in incomplete else Path()
    names = [f"{path}/" if path.is_dir() else str(path) for path in sorted(there.iterdir())] if there.is_dir() else []
    files = [name for name in names if name.endswith((".toml", ".tar.gz", "/")) and not name.startswith(".")]
    return [name for name in (*builtin_studies(), *files) if name.startswith(incomplete)]


_FILE, _BUNDLE = "the path of a .toml file", "a bundle (.tar.gz)"


def _study(metavar: str, about: str) -> Any:
    return typer.Argument(metavar=metavar, help=about, autocompletion=_studies)


StudyName = Annotated[str, _study("STUDY", f"A built-in study (`ablations studies`) or {_FILE}.")]
MaybeStudy = Annotated[str | None, _study("[STUDY]", f"A built-in study, or {_FILE}.")]
StudyOrBundle = Annotated[str, _study("STUDY", f"A built-in study, {_FILE}, or {_BUNDLE}.")]

OPTIONS = {  # name of a parameter or dataclass field → its option; --help lists the fields in this order
    "run": typer.Option("--run", metavar="RUN_ID", help="A trained run, or the beginning of its id."),
    "row": typer.Option("--row", metavar="KEY", help="The study's row; base if unset."),
    "seed": typer.Option("--seed", metavar="N", help="The row's seed; the first if unset."),
    "profile": typer.Option(metavar="P", help="Size of the whole table; the study's default if unset."),
    "corpus": typer.Option(
        metavar="builtin|DIR", help="The generated corpus, or a folder with train.<lang>, dev.<lang>."
    ),
    "rows": typer.Option(metavar="KEY,KEY|GROUP", help="Only these rows or groups; row:X or group:X if both exist."),
    "seeds": typer.Option(metavar="N", help="Seeds 1..N of every row."),
    "sets": typer.Option("--set", metavar="KEY=VALUE", help="Override a setting in every row; repeatable."),
    "store": typer.Option("--store", metavar="DIR", envvar="ABLATIONS_STORE", help="The folder that holds the runs."),
    "state_dir": typer.Option(
        metavar="DIR",
        envvar="ABLATIONS_STATE_DIR",
        help="A local folder for queue.db and mlflow.db, if the store is on a network disk.",
    ),
    "devices": typer.Option(metavar="SLOTS", help="auto, cpu:NxT, cuda:0,2, cuda:*x3."),
    "devices_per_run": typer.Option(metavar="K", min=1, help="Devices that train a run together."),
    "priority": typer.Option(metavar="N", help="Higher priorities train first; 0 if unset."),
    "stale": typer.Option(
        metavar="keep|rerun", help="Finished runs of other code than the present: keep and mark them, or train again."
    ),
    "yes": typer.Option("--yes", help="Accept a design of over 10,000 rows."),
    "hang_after": typer.Option(
        "--hang-after", metavar="MIN", min=0.01, help="Stop a run that reports no step or other event for MIN minutes."
    ),
    "sinks": typer.Option(
        "--sink",
        metavar="|".join(added("sinks")) or "NAME",
        envvar="ABLATIONS_SINKS",
        help="Also record runs with this program; repeatable.",
    ),
    "engine": typer.Option(
        "--engine",
        metavar="|".join(("local", "slurm", *added("engines"))),
        help="Run on this machine (local) or on a cluster.",
    ),
    "engine_set": typer.Option(
        "--engine-set", metavar="KEY=VALUE", help="Setting of the engine: partition=gpu, time=720, …; repeatable."
    ),
    "address": typer.Option(metavar="HOST:PORT", help="Address of the Ray cluster; the local one if unset."),
    "workers": typer.Option(
        "--workers",
        metavar="N",
        help="On a cluster: at most N jobs, each of which trains one run after another; --devices are the slots of "
        "each.",
    ),
    "setup": typer.Option(
        "--setup",
        metavar="LINE",
        help="On a cluster: a shell line that nodes run first, such as module load …; repeatable.",
    ),
    "columns": typer.Option(
        metavar="A,B,…", help="Print these columns, in this order: bleu, d_k, params, bleu.change, any setting …"
    ),
    "hide": typer.Option(metavar="A,B,…", help="Do not print these columns."),
    "plain": typer.Option(
        "--plain/--no-plain", help="Print no changes from base and no published numbers (LaTeX's default)."
    ),
    "paper": typer.Option(
        "--paper/--no-paper",
        help="Print published numbers; if unset, they are printed unless the table is plain or the study's "
        "paper_corpus excludes the corpus.",
    ),
    "digits": typer.Option(metavar="N|A=N,…", help="Digits after the decimal point, for all metrics or by column."),
    "caption": typer.Option(metavar="TEXT", help="Caption or title; the study's title if unset."),
    "notes": typer.Option(
        metavar="none|short|full", help="Notes under the table: none, those that explain signs, or all."
    ),
    "label": typer.Option(metavar="NAME", help="LaTeX: \\label; tab:STUDY if unset."),
    "wide": typer.Option("--wide/--no-wide", help="LaTeX: print across both columns of a page (table*)."),
}

_PANELS = {  # groups of less common options in --help
    "Store and queue": ("state_dir", "stale", "yes", "priority", "hang_after"),
    "Several devices and clusters": ("devices_per_run", "engine", "engine_set", "address", "workers", "setup"),
    "Accounting": ("sinks",),
    "Printing": (
        *("columns", "hide", "plain", "paper", "digits"),
        *("caption", "notes", "label", "wide"),
    ),
}
for _panel, _names in _PANELS.items():
    for _name in _names:
        OPTIONS[_name].rich_help_panel = _panel

Devices = Annotated[str, OPTIONS["devices"]]
Sure = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

Significance = Annotated[
    str,
    typer.Option(
        metavar="auto|seeds|paired|sentences|none",
        help="Significance test of changes from base: between seeds, between runs of the same seed (paired), or "
        "between sentences of the same weights; auto: seeds, for rows with three or more.",
    ),
]


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
    typer.Option(
        metavar="last|best|average:K",
        callback=_checkpoint,
        help="Checkpoint; the run's evaluation.checkpoint if unset.",
    ),
]
Precision = Annotated[str, typer.Option(metavar="fp32|bf16|auto", callback=_precision, help="Floating-point format.")]


class Without(tuple[str, ...]):
    """Names of dataclass fields for which a command has no option: Annotated[Selectors, Without(("seeds",))]."""


Because = Annotated[
    str | None,
    typer.Option(
        "--because", metavar="TEXT", help="Reason, written to the store's ledger.", rich_help_panel="Store and queue"
    ),
]


def spread(verb: Callable[..., None], recorded_as: str = "") -> Callable[..., None]:
    """Replace each dataclass parameter of a command by one option per field, for typer.

    Fields named in `Without` get no option. If OPTIONS contains some of the other fields, only those get an option;
    otherwise all other fields do. The option is the one in the field's annotation, or else the one in OPTIONS under the
    field's name.

    recorded_as: the name of the command if its requests are written to the ledger; else "". A command with requests in
    the ledger also gets the option --because.
    """
    parameters: list[inspect.Parameter] = []
    made: dict[str, tuple[Any, list[str]]] = {}  # parameter → its class and the fields that have an option
    for parameter in inspect.signature(verb, eval_str=True).parameters.values():
        annotated = get_origin(parameter.annotation) is Annotated
        kind, *about = get_args(parameter.annotation) if annotated else (parameter.annotation,)
        if dataclasses.is_dataclass(kind):
            left_out = {name for one in about if isinstance(one, Without) for name in one}
            defaults = {f.name: f.default for f in dataclasses.fields(kind) if f.init and f.name not in left_out}
            names = [name for name in OPTIONS if name in defaults] or list(defaults)
            made[parameter.name] = kind, names
            hints = get_type_hints(kind, include_extras=True)
            for name in names:
                own = get_origin(hints[name]) is Annotated
                hint = hints[name] if own else Annotated[hints[name], OPTIONS[name]]
                parameters.append(_option(name, defaults[name], hint))
        else:
            parameters.append(_option(parameter.name, parameter.default, parameter.annotation))

    if recorded_as:
        parameters.append(_option("because", None, Because))

    @functools.wraps(verb)
    def called(**given: Any) -> None:
        if recorded_as:
            why = given.pop("because")
            ledger.command.set({"verb": recorded_as} | ({"because": ledger.reason(why)} if why else {}))
        for name, (kind, names) in made.items():
            given[name] = kind(**{field: given.pop(field) for field in names})
        verb(**given)

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return called


def _option(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
