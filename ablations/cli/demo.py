"""`ablations demo`: Table 3 in miniature on the generated corpus."""

import typer

from ablations.cli import options
from ablations.cli.run import run_chosen
from ablations.service.selected import choose


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(
    store: options.StoreDir = options.DEFAULT_STORE,
    state_dir: options.StateDir = None,
    devices: options.Devices = "auto",
) -> None:
    """Train the 20 rows of Table 3 in miniature (some minutes on 2 cores), record them, print the table."""
    run_chosen(choose("table3", "demo", None, None, None, None, store, state_dir), devices, "keep", "markdown")
    typer.echo(
        f"\nThe runs in MLflow:        ablations ui --store {store}\n"
        f"The table as LaTeX:        ablations report table3 --format latex --store {store}\n"
        f"The same on your corpus:   ablations run table3 --profile small --corpus DIR",
        err=True,
    )
