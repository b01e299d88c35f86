"""The command `ablations ui`, which serves MLflow's web interface for a store at 127.0.0.1.

With a study, MLflow also shows the study's table and figures.
"""

import contextlib
import errno
import math
import os
import socket
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated

import typer

from ablations.cli import options
from ablations.cli.report import page
from ablations.cli.store import alone
from ablations.cli.terminal import FAILED, answer, say
from ablations.planning.plan import Plan
from ablations.service.enqueue import keep_rows, member
from ablations.service.selected import Selected, Selectors, choose
from ablations.service.tables import nearest_with_results, table_of
from experiments.errors import UserError
from experiments.masking import masked
from experiments.messages import number
from experiments.processes.keeper import kept
from experiments.store.durable import remove_folder
from experiments.store.layout import Store
from experiments.store.locks import Occupied
from experiments.store.tracked_run import TrackedRun, recorded_run
from experiments.tasks.columns import Column
from experiments.tracking.database import HOST, ui_command
from experiments.tracking.page import Published, ScoredRun, Table, publish
from experiments.tracking.reachable import refuse_unreachable
from experiments.tracking.rebuild import rebuild as rebuild_tracking
from experiments.tracking.rebuild import tracked_runs
from experiments.tracking.record import NUM_PARAMS
from experiments.tracking.sinks.sink import SinkError, SinkProcess, check_sink, folder_of
from experiments.tracking.views import RowLine
from model.extensions import added
from reports.render.formats import render
from reports.render.markdown import escape
from reports.results.run_outcomes import Outcome
from reports.results.table import Table as Printed
from reports.results.table import change_digits
from reports.table.settings import at, show

MLFLOW = "mlflow"  # a value of --rebuild; the other values are sinks
LEAVE_S = 10.0  # seconds that MLflow may take to end after Ctrl-C
FILES = {"markdown": "table.md", "latex": "table.tex", "csv": "table.csv", "json": "table.json", "setup": "setup.md"}


def ui(
    study: options.MaybeStudy = None,
    *,
    selectors: Selectors,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on 127.0.0.1.")] = 5000,
    tracking_uri: Annotated[
        str | None,
        typer.Option(metavar="URI", help="Send the table and its runs to this tracking server."),
    ] = None,
    rebuild: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(("mlflow", *added("sinks"))),
            help="Write this view of the runs again from their records, and exit.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --rebuild: print JSON.")] = False,
) -> None:
    """Serve MLflow on the store until Ctrl-C, with the table and figures of STUDY as a comparison."""
    if rebuild is not None:
        _rebuild(selectors.open(), rebuild, as_json)
        return
    if as_json:
        raise UserError("--json needs --rebuild; without it, `ui` serves until Ctrl-C.")
    if tracking_uri and study is None:
        raise UserError("--tracking-uri sends the table of a study. Name STUDY.")
    server = tracking_uri or f"http://{HOST}:{port}"
    if not tracking_uri:
        _refuse_used_port(port)
    opened = selectors.open()
    if not tracking_uri and not opened.mlflow_db.is_file():
        raise UserError(f"{opened.mlflow_db} does not exist, because no run has started in this store.")
    if study is not None:
        chosen = choose(study, selectors, there=True)
        if near := nearest_with_results(study, selectors, chosen.plan):
            raise UserError(near)
        published, name = _publish(chosen, tracking_uri or ""), chosen.study.name
        typer.echo(f"{name}, each row with its runs below it: {published.listing(server)}")
    if tracking_uri:
        return
    raise typer.Exit(_serve(ui_command(opened, port), server))


def _serve(command: Sequence[str], server: str) -> int:
    """Run MLflow's server until it ends or Ctrl-C is pressed. Return its exit code; 0 after Ctrl-C.

    None of the server's processes outlives this process.
    """
    # With PYTHONSAFEPATH, the server and its child processes import nothing from the working directory.
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "PYTHONSAFEPATH": "1"}
    with kept(command, env=environment, stdin=subprocess.DEVNULL) as served:
        typer.echo(f"MLflow on {server} (press Ctrl-C to stop)")
        try:
            return served.process.wait()
        except KeyboardInterrupt:
            served.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                served.process.wait(LEAVE_S)
            return 0


def _refuse_used_port(port: int) -> None:
    with contextlib.closing(socket.socket()) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # allow a port in TIME_WAIT, as the server does
        try:
            trial.bind((HOST, port))
            return
        except OSError as error:
            why = "is used by another process" if error.errno == errno.EADDRINUSE else f"cannot be used: {error}"
    raise UserError(
        f"Port {port} {why}. Name another with --port, for example --port {port + 1 if port < 65535 else port - 1}."
    )


def _publish(chosen: Selected, uri: str) -> Published:
    """Write missing runs to MLflow, then the table.

    Raises UserError if no run of the table is finished, or if the server cannot be reached.
    """
    from experiments.tracking.mlflow import Tracker

    try:
        refuse_unreachable(uri)
    except UserError as error:
        raise UserError(f"--tracking-uri {masked(uri)}: {error}") from None
    plan = chosen.plan
    done = [run for run in plan.runs if chosen.store.result(run.run_id) is not None]
    if not done:
        raise UserError(f"{chosen.store.root} has no finished run of this table. Train it with `ablations run`.")
    try:
        keep_rows(chosen, plan, done)
        tracker = Tracker(chosen.store, uri)
        with contextlib.ExitStack() as held:
            if not uri:
                try:
                    held.enter_context(chosen.store.coordinator_lock())
                except Occupied:
                    done = []  # the coordinator writes its runs itself
            for run in {run.run_id: run for run in done}.values():
                tracker.sync(recorded_run(chosen.store, run.run_id, [member(plan, run)]))
        table = _table(chosen, plan, table_of(chosen))
        with tracker.explained():
            return publish(tracker, table)
    except Exception as error:
        if not uri or type(error).__name__ not in ("MlflowException", "RestException", "ConnectionError"):
            raise
        raise UserError(masked(f"--tracking-uri {uri}: the server refused it ({error}).")) from None


def _lines(table: Printed) -> Iterator[RowLine]:
    """Yield one line per row: its settings, and the means, standard deviations and changes of its metrics.

    A line has the values of all settings that vary in the table. A setting that the row does not use has the value "–".
    """
    varying = list(dict.fromkeys(name for row in table.rows for name in row.settings))
    names = _distinct({name: table.settings.get(name, name.rpartition(".")[2]) for name in varying})
    heads = _heads(table)
    for row in table.rows:
        settings = at(row, varying)
        metrics: dict[str, float | None] = {NUM_PARAMS: row.num_params}
        for column in table.listed:
            measure, digits = row.measures[column.key], column.digits
            values = (measure.mean, digits), (measure.sd, digits), (measure.change, change_digits(column))
            metrics |= {n: _rounded(*value) for n, value in zip(_parts(column, heads), values, strict=True)}
        yield RowLine(
            row.key,
            row.group,
            row.n,
            {names[name]: show(name, settings[name]) if name in settings else "–" for name in varying},
            {name: float(value) for name, value in metrics.items() if value is not None},
        )


def _heads(table: Printed) -> dict[str, str]:
    """Return a short head for each key of a column: `BLEU dev` and `BLEU test`, or `BLEU` if dev is the only set."""
    bare = {column.key: column.header.removesuffix(f" ({column.set})") for column in table.listed}
    alone = {column.set for column in table.listed} == {"dev"}
    return _distinct({c.key: bare[c.key] if alone else f"{bare[c.key]} {c.set}" for c in table.listed})


def _parts(column: Column, heads: Mapping[str, str]) -> tuple[str, str, str]:
    """Return the names of a column's mean, standard deviation and change from base."""
    head = heads[column.key]
    return head, f"{head} sd", f"Δ ln {head}" if column.logarithmic else f"Δ{head}"


def _distinct(heads: dict[str, str]) -> dict[str, str]:
    """Replace each head that several columns share by the keys of these columns. heads: key → head."""
    several = {head for head, count in Counter(heads.values()).items() if count > 1}
    return {name: name if head in several else head for name, head in heads.items()}


def _table(chosen: Selected, plan: Plan, table: Printed) -> Table:
    from reports.figures.draw import draw

    files = {name: render(table, format_).encode() for format_, name in FILES.items()}
    files |= {"table.html": page(table, chosen).encode(), **draw(table, chosen.store, ["svg"])}
    heads = _heads(table)
    runs = [
        ScoredRun(row.key, outcome.run.run_id, _scores(outcome, table, heads))
        for row in table.rows
        for outcome in row.outcomes
    ]
    where = {"profile": plan.profile, "corpus": member(plan, plan.runs[0]).corpus}
    tuning = {f"tuning_{name}": value for name, value in table.spent.tuning.known().items()}
    cost = {**table.spent.total.known(), **tuning}  # without the parts of the cost that are unknown
    return Table(
        study=plan.study.name,
        profile=plan.profile,
        corpus=where["corpus"],
        title=escape(table.title),
        latest=", ".join(f"{what} {escape(name)}" for what, name in where.items() if name),
        runs=runs,
        lines=list(_lines(table)),
        note=render(table, "markdown"),
        files=files,
        cost=cost,
    )


def _scores(outcome: Outcome, table: Printed, heads: Mapping[str, str]) -> dict[str, float]:
    """Return the scores of one run, with the heads of the rows' means as keys. A missing score is NaN."""
    values = {heads[c.key]: _rounded(outcome.measured(c.set, c.metric), c.digits) for c in table.listed}
    return {head: math.nan if value is None else value for head, value in values.items()}


def _rounded(value: float | None, digits: int) -> float | None:
    """Round a value as the table prints it, because MLflow's list cuts long numbers."""
    return None if value is None else round(value, digits)


def _rebuild(store: Store, view: str, as_json: bool) -> None:
    if view != MLFLOW:
        check_sink(view, "--rebuild: besides mlflow,")
    what, where = ("database", store.mlflow_db) if view == MLFLOW else ("folder", folder_of(store, view))
    with alone(store):
        runs = list(tracked_runs(store))
        problems = rebuild_tracking(store, runs) if view == MLFLOW else _rebuild_sink(store, view, runs)
    written = len(runs) - len(problems)
    for line in problems if not as_json else ():
        say(f"not written: {line}")
    answer(as_json, {what: str(where), "runs": written, "problems": problems}, [f"{where}: {number(written, 'run')}"])
    if problems:
        raise typer.Exit(FAILED)


def _rebuild_sink(store: Store, sink: str, runs: Iterable[TrackedRun]) -> list[str]:
    """Write the sink's folder again. Return a message for each run that could not be written."""
    remove_folder(folder_of(store, sink))
    writer, problems = SinkProcess(store, sink), list[str]()
    for run in runs:
        try:
            writer.sync(run)
        except SinkError as error:
            problems.append(f"{run.run_id}: {error}")
    writer.close()
    return problems
