"""`ablations demo`: Table 3 in miniature on the generated corpus."""

import typer

from ablations.cli import options
from ablations.cli.run import run_chosen
from ablations.service.selected import Place, Selectors, choose
from ablations.service.table_options import TableOptions


def demo(
    place: Place,
    devices: options.Devices = "auto",
) -> None:
    """Train the 20 rows of Table 3 in miniature (5 to 12 minutes on 2 cores), record them, print the table."""
    selectors = Selectors(store=place.store, state_dir=place.state_dir, profile="demo")
    run_chosen(choose("table3", selectors), devices, "keep", "", printing=TableOptions(paper=True))
    typer.echo(
        f"\nThe runs in MLflow:        ablations ui --store {place.store}\n"
        f"The table as LaTeX:        ablations report table3 --format latex --store {place.store}\n"
        f"The same on your corpus:   ablations run table3 --profile small --corpus DIR",
        err=True,
    )
