"""The command `ablations bundle`, and functions that open a bundle in place of a study and verify it."""

import atexit
import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from ablations.cli import options
from ablations.cli.inspect import listed
from ablations.cli.terminal import DONE, FAILED, answer, print_json, say
from ablations.extras.bundles.archive import SUFFIX
from ablations.extras.bundles.read import read_bundle
from ablations.extras.bundles.write import traces, write_bundle
from ablations.service.selected import Say, SelectedTable, Selectors, choose, open_table
from experiments.errors import UserError
from experiments.exchange.redaction import NOTHING, identity, places
from experiments.messages import number
from experiments.store import ledger


def bundle(
    study: options.StudyName,
    *,
    selectors: Selectors,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help=f"File to write; STUDY{SUFFIX} if unset.")] = None,
    weights: Annotated[bool, typer.Option("--weights", help="Include the trained weights.")] = False,
    anonymous: Annotated[
        bool,
        typer.Option("--anonymous", help="For double-blind review: leave out names, commits, logs and code changes."),
    ] = False,
    as_recorded: Annotated[bool, typer.Option("--as-recorded", help="Keep host names and absolute paths.")] = False,
    as_json: options.Json = False,
) -> None:
    """Pack a finished table into a file. `ablations report FILE` prints it anywhere, without corpus or GPU."""
    if anonymous and as_recorded:
        raise UserError("--anonymous and --as-recorded cannot be combined. Give one of them.")
    chosen = choose(study, selectors, there=True)
    path = out or Path(f"{chosen.study.name}{SUFFIX}")
    if not path.name.endswith(SUFFIX):
        raise UserError(f"--out {path}: the name must end with {SUFFIX}.")
    if not path.absolute().parent.is_dir():
        raise UserError(
            f"--out {path}: the folder {path.absolute().parent} does not exist. Create it, or name another one."
        )
    plan, opened, folder = chosen.plan, chosen.store, chosen.study.folder
    if as_recorded:
        redaction = NOTHING
    else:
        redaction = (
            identity(opened, folder) if anonymous else places(opened, [r.run_id for r in plan.trainings], folder)
        )
    count = write_bundle(path, plan, opened, chosen.columns, chosen.asked, redaction, weights)
    size = f"{path.stat().st_size / 1e6:.1f} MB"
    left = list(traces(path, opened.root)) if anonymous else []
    if as_json:
        runs = {"runs": len(plan.trainings), "files": count, "bytes": path.stat().st_size}
        print_json({"file": str(path), **runs, "not_anonymous": left})
        return
    typer.echo(f"{path}: {number(len(plan.trainings), 'run')}, {number(count, 'file')}, {size}")
    for found in left:
        typer.echo(f"not anonymous: {found}", err=True)


def open_bundle(path: Path, say: Say) -> SelectedTable:
    """Read and check a bundle, and print what was checked. Raises UserError as `read_bundle` does.

    The unpacked files are removed when the process ends.
    """
    folder = Path(tempfile.mkdtemp(prefix="ablations-bundle-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    bundle = read_bundle(path, folder)
    say(f"{path}: {bundle.checked.runs}. {bundle.checked.provenance}")
    return SelectedTable(
        study=bundle.plan.study,
        store=bundle.store,
        replan=lambda: bundle.plan,
        columns=bundle.columns,
        asked=bundle.asked,
        bundle=bundle.checked.provenance,
    )


def verify_bundle(file: Path, _: Selectors, as_json: bool) -> None:
    """Print which numbers of a bundle follow from its files, and exit.

    Return without output if the file is not a bundle.
    """
    if not file.name.endswith(SUFFIX):
        return
    bundle = open_table(file, say)
    found = ledger.damaged(bundle.store)
    facts = {"file": str(file), "from_bundle": bundle.bundle, "changed": found}
    answer(as_json, facts, [bundle.bundle, *(listed(file, found) if found else [])])
    raise typer.Exit(FAILED if found else DONE)
