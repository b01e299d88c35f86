"""`ablations ui`: MLflow's pages on this store, on 127.0.0.1."""

import os
from typing import Annotated

import typer

from ablations.cli import options as o
from experiments.errors import UserError
from experiments.store import Store
from experiments.tracking import ui_command


def register(app: typer.Typer) -> None:
    app.command("ui")(ui)


def ui(
    store: o.StoreDir = o.DEFAULT_STORE,
    state_dir: o.StateDir = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on 127.0.0.1.")] = 5000,
) -> None:
    """Open MLflow on the store; Ctrl-C ends it."""
    opened = Store.open(store, state_dir, create=False)
    if not opened.mlflow_db.exists():
        raise UserError(f"{opened.mlflow_db} does not exist: nothing was run in this store yet.")
    command = ui_command(opened, port)
    typer.echo(f"MLflow on http://127.0.0.1:{port} (Ctrl-C ends it)")
    os.execvpe(command[0], command, {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"})
