"""`ablations bundle`: pack a finished table into one archive. Also its inverse, for `ablations import`."""

import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from ablations.cli import options
from ablations.cli.terminal import print_json, say
from ablations.service.enqueue import member
from ablations.service.queued_runs import all_rows
from ablations.service.selected import Place, Selectors, choose
from ablations.study.messages import number
from experiments.errors import UserError
from experiments.exchange.import_runs import Taken, import_runs, runs_in
from experiments.exchange.redaction import NOTHING, identity, places
from experiments.jobs.queue.job import Member
from experiments.store.layout import Store
from experiments.tracking.record import finished_run
from reports.trust.bundles.archive import CRATE_SUFFIX, SUFFIX, is_bundle
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
        origin, members = _origin(source, Path(folder))
        target = place.open(create=True)
        with target.coordinator_lock():
            taken = list(import_runs(origin, target, runs_in(origin)))
            new = [item.run_id for item in taken if item.how == "taken" or item.evaluations]
            _track(target, new, members)
    if as_json:
        runs = [{"run_id": item.run_id, "how": item.how, "evaluations": item.evaluations} for item in taken]
        print_json({"store": str(target.root), "runs": runs})
        return
    _say(taken, target)


Members = dict[str, tuple[Member, ...]]


def _origin(source: Path, folder: Path) -> tuple[Store, Members]:
    """The store to import from, and the tables that its runs belong to."""
    if is_bundle(source.name):
        found = read_bundle(source, folder)
        typer.echo(f"{source}: {found.checked}", err=True)
        plan = found.plan
        members: Members = {}
        for run in plan.trainings:
            members[run.run_id] = (*members.get(run.run_id, ()), member(plan, run))
        return found.store, members
    if not (source / "store.json").is_file():
        raise UserError(f"{source} is neither a bundle ({SUFFIX}, {CRATE_SUFFIX}) nor a store (it has no store.json).")
    store = Store.open(source, create=False)
    return store, {row.run_id: row.members for row in all_rows(store)}


def _track(store: Store, run_ids: Iterable[str], members: Members) -> None:
    """Record the imported runs in MLflow."""
    run_ids = list(run_ids)
    if not run_ids:
        return
    from experiments.tracking.mlflow import Tracker, forgiving

    with forgiving():
        tracker = Tracker(store)
        for run_id in run_ids:
            tracker.sync(finished_run(store, run_id, members.get(run_id, ())))


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
