"""`ablations bundle`: pack a finished table into one archive. Also its inverse, for `ablations import`."""

import tempfile
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from ablations.cli import options
from ablations.cli.terminal import print_json, say
from ablations.service.enqueue import row_of
from ablations.service.selected import Place, Selectors, choose
from ablations.study.messages import number
from experiments.errors import UserError
from experiments.exchange.import_runs import Taken, import_runs, runs_in
from experiments.exchange.redaction import NOTHING, identity, places
from experiments.store.description import TableRow, keep_row
from experiments.store.layout import Store
from experiments.tracking.rebuild import write_lacking
from reports.trust.bundles.archive import CRATE_SUFFIX, SUFFIX, is_bundle
from reports.trust.bundles.in_crate import check_library
from reports.trust.bundles.read import read_bundle
from reports.trust.bundles.traces import traces
from reports.trust.bundles.write import write_bundle
from reports.trust.stated import sentences
from reports.trust.statement import state


def bundle(
    study: options.LastStudy = None,
    *,
    selectors: Selectors,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The archive; STUDY.tar.gz (STUDY.zip of a crate) if unset.")
    ] = None,
    crate: Annotated[
        bool, typer.Option("--crate", help="Write an RO-Crate (.zip), which other programs can read too.")
    ] = False,
    weights: Annotated[bool, typer.Option("--weights", help="Include the trained weights.")] = False,
    anonymous: Annotated[
        bool, typer.Option("--anonymous", help="For double-blind review: no names, commits, logs or code changes.")
    ] = False,
    as_recorded: Annotated[bool, typer.Option("--as-recorded", help="Keep host names and absolute paths.")] = False,
    as_json: options.Json = False,
) -> None:
    """Pack a finished table into a file. `ablations report FILE` prints it anywhere, without corpus or GPU."""
    if anonymous and as_recorded:
        raise UserError("--anonymous removes what --as-recorded keeps: give only one of them.")
    if crate:
        check_library()
    study, selectors = selectors.with_last(study, say)
    chosen = choose(study, selectors, there=True, used=True)
    suffix = CRATE_SUFFIX if crate else SUFFIX
    path = out or Path(f"{chosen.study.name}{suffix}")
    if not path.name.endswith(suffix):
        what, other = (
            ("crate", "leave out --crate") if crate else ("bundle", f"for a crate ({CRATE_SUFFIX}) add --crate")
        )
        raise UserError(f"--out {path}: a {what}'s name ends with {suffix}; {other}.")
    if not path.absolute().parent.is_dir():
        raise UserError(f"--out {path}: there is no folder {path.absolute().parent}. Create it, or name another one.")
    plan, opened, folder = chosen.plan, chosen.store, chosen.study.folder
    if as_recorded:
        redaction = NOTHING
    else:
        redaction = (
            identity(opened, folder) if anonymous else places(opened, [r.run_id for r in plan.trainings], folder)
        )
    statement = state(plan, opened, chosen.columns)
    count = write_bundle(
        path, plan, opened, chosen.columns, chosen.asked, redaction, weights, statement if crate else None
    )
    size = f"{path.stat().st_size / 1e6:.1f} MB"
    said, left = list(sentences(statement)), list(traces(path, opened.root)) if anonymous else []
    if as_json:
        runs = {"runs": len(plan.trainings), "files": count, "bytes": path.stat().st_size}
        print_json({"file": str(path), **runs, "statement": said, "not_anonymous": left})
        return
    typer.echo(f"{path}: {number(len(plan.trainings), 'run')}, {number(count, 'file')}, {size}")
    for sentence in said:
        typer.echo(f"- {sentence}")
    for found in left:
        typer.echo(f"not anonymous: {found}", err=True)


def import_stored(source: Path, place: Place, as_json: bool = False) -> None:
    """Import finished runs of a bundle or another store; runs that this store already has stay unchanged."""
    with tempfile.TemporaryDirectory(prefix="ablations-import-") as folder:
        origin, found = _origin(source, Path(folder))
        target = place.open(create=True)
        with target.coordinator_lock():
            taken = list(import_runs(origin, target, runs_in(origin)))
            for run_id, rows in found.items():
                for row in rows if target.result(run_id) else ():
                    keep_row(target, run_id, row)
            write_lacking(target)
    if as_json:
        runs = [{"run_id": item.run_id, "how": item.how, "evaluations": item.evaluations} for item in taken]
        print_json({"store": str(target.root), "runs": runs})
        return
    _say(taken, target)


def _origin(source: Path, folder: Path) -> tuple[Store, dict[str, list[TableRow]]]:
    """The store to import from; the rows of a bundle's runs, which are in its plan (in a store they are in folders)."""
    if is_bundle(source.name):
        found = read_bundle(source, folder)
        typer.echo(f"{source}: {found.checked.runs}. {found.checked.word}", err=True)
        rows: dict[str, list[TableRow]] = {}
        for run in found.plan.trainings:
            rows.setdefault(run.run_id, []).append(row_of(found.plan, run, found.store))
        return found.store, rows
    if not (source / "store.json").is_file():
        raise UserError(f"{source} is neither a bundle ({SUFFIX}, {CRATE_SUFFIX}) nor a store (it has no store.json).")
    return Store.open(source, create=False), {}


def _say(taken: list[Taken], target: Store) -> None:
    counts = Counter(item.how for item in taken)
    scores = sum(item.evaluations for item in taken)
    typer.echo(
        f"{number(counts['taken'], 'run')} imported into {target.root}, {counts['had']} already there; "
        f"{number(scores, 'evaluation')} imported"
    )
    for item in taken:
        if item.how == "other":
            typer.echo(
                f"{item.run_id}: both stores trained it, with different results (another device or code); ours is kept",
                err=True,
            )
