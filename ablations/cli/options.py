"""The options that verbs share, and what they select."""

from pathlib import Path
from typing import Annotated

import typer

from experiments.jobs.coordinator.watch import HANG_S

StudyName = Annotated[
    str, typer.Argument(metavar="STUDY", help="A built-in study (`ablations studies`) or the path of a .toml file.")
]
StudyOrBundle = Annotated[
    str, typer.Argument(metavar="STUDY", help="A built-in study, the path of a .toml file, or a bundle (.tar.gz).")
]
Profile = Annotated[str | None, typer.Option(metavar="P", help="Size of the whole table; the study has a default.")]
Corpus = Annotated[
    str | None,
    typer.Option(metavar="builtin|DIR", help="The generated corpus, or a folder with train.<lang>, dev.<lang>."),
]
Rows = Annotated[str | None, typer.Option(metavar="KEY,KEY|GROUP", help="Only these rows or groups.")]
Seeds = Annotated[int | None, typer.Option(metavar="N", help="Seeds 1..N of every row.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting in every row; repeatable.")
]
StoreDir = Annotated[
    Path, typer.Option("--store", metavar="DIR", envvar="ABLATIONS_STORE", help="The folder that holds the runs.")
]
StateDir = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        envvar="ABLATIONS_STATE_DIR",
        help="A local folder for queue.db and mlflow.db, where the store is on a network disk.",
    ),
]
Devices = Annotated[
    str, typer.Option(metavar="SLOTS", help="auto, cpu:NxT, cuda:0,2, cuda:*x3; in run also cpu:auto, cuda:*xauto.")
]
DevicesPerRun = Annotated[
    str,
    typer.Option(
        metavar="K|auto",
        help="Devices that train a run together; auto: more for rows that would outlast all others.",
    ),
]
Priority = Annotated[int, typer.Option(metavar="N", help="Higher ones are trained first; 0 if left out.")]
Stale = Annotated[
    str, typer.Option(metavar="keep|rerun", help="Finished runs of older code: keep them, marked, or train anew.")
]
EngineName = Annotated[str, typer.Option("--engine", metavar="local|slurm|ray", help="Where runs execute.")]
EngineSet = Annotated[
    list[str] | None,
    typer.Option("--engine-set", metavar="KEY=VALUE", help="For the engine: partition=gpu, time=720, …; repeatable."),
]
Address = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Of the Ray cluster; else the one nearby.")]
HangAfter = Annotated[
    float, typer.Option("--hang-after", metavar="MIN", min=0.01, help="Stop a run without a step for so many minutes.")
]
Notify = Annotated[
    str | None,
    typer.Option(metavar="COMMAND", envvar="ABLATIONS_NOTIFY", help="Run this when a row fails or a table has ended."),
]
DEFAULT_HANG_MIN = HANG_S / 60
Yes = Annotated[bool, typer.Option("--yes", help="Go on with a design of over 10,000 rows.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Significance = Annotated[
    str,
    typer.Option(
        metavar="auto|seeds|sentences|none",
        help="What marks a change from base: seeds (other trainings), sentences (these weights, other sentences); "
        "auto: seeds where every row has three.",
    ),
]

DEFAULT_STORE = Path("runs")
