"""`ablations figures`: draw the table's figures as files for a paper."""

from pathlib import Path
from typing import Annotated

import typer

from ablations.cli import options
from ablations.cli.terminal import print_json, say
from ablations.service.nearest import nearest_with_results
from ablations.service.selected import Selectors, choose_table
from ablations.service.tables import table_of
from experiments.errors import UserError, explain_os_errors
from experiments.store.durable import write_bytes
from reports.figures.style import FORMATS
from reports.trust.bundles.archive import is_bundle


def figures(
    study: options.LastStudyOrBundle = None,
    *,
    selectors: Selectors,
    formats: Annotated[str, typer.Option("--formats", metavar="F,F", help="Some of pdf, svg, png.")] = "pdf",
    out: Annotated[Path, typer.Option(metavar="DIR", help="A folder; created if missing.")] = Path("figures"),
    significance: options.Significance = "auto",
    as_json: options.Json = False,
) -> None:
    """Draw changes from base, quality against cost, learning curves, and scores by sentence length."""
    wanted = [part.strip() for part in formats.split(",")]
    if not all(part in FORMATS for part in wanted):
        raise UserError(f"--formats {formats}: choose from {', '.join(FORMATS)}, separated by commas.")
    study, selectors = selectors.with_last(study, say)
    chosen = choose_table(study, selectors, say)
    from reports.figures.draw import draw  # imported late: matplotlib takes a second

    drawn = draw(table_of(chosen, significance), chosen.store, wanted)
    if not drawn:
        near = "" if is_bundle(study) else nearest_with_results(study, selectors, chosen.plan)
        raise UserError(
            f"There is nothing to draw yet: {chosen.store.root} has no number of this table. {near}".strip()
        )
    with explain_os_errors(f"write to {out}"):
        out.mkdir(parents=True, exist_ok=True)
        for name, data in drawn.items():
            write_bytes((out / name).absolute(), data)
    files = [str(out / name) for name in drawn]
    if as_json:
        print_json({"files": files})
    else:
        typer.echo("\n".join(files))
