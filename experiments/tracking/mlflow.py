"""Write runs to MLflow.

Each study has an experiment, and each study × profile × corpus has a parent run (heading). Below the heading, there is
one run per row × seed. Once a table has been published, each of its rows has a run at the top level, and the trainings
of the row are below that run instead of the heading (page.py).

A training has one run in MLflow, named after the row for which it was first queued. Every other row that shares the
training, even in another study, has an MLflow run with its name and scores, but without a curve. The tag `training` of
that run refers to the training.

MLflow's client writes everything, both to the store's database and to a server. The coordinator calls it in a
background thread. MLflow is a view of events and results: `sync` writes those data of a run that MLflow does not have
yet, whether the run has just begun or has ended long ago. Only the process that holds the coordinator's lock writes
runs.

A tag of each run records how far its events are written. The tag is set after the points are written. After a failure,
`sync` continues at the recorded position, and MLflow ignores points that are written a second time. If two processes
created an entry for the same run at the same time, the next `sync` deletes one of the entries.

Artifacts are in the store's `artifacts/`, hard-linked if possible. Their addresses are `mlflow-artifacts:/…`, relative
to the server's folder of artifacts (`ui_command`). The database therefore contains no absolute paths, and a store can
be moved.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.dotted import flatten
from experiments.errors import UserError
from experiments.events.history import History, Point
from experiments.identity import seed_in_words, without_runs
from experiments.records import RUNNING
from experiments.store.layout import Store, rows_of
from experiments.store.tracked_run import TrackedRun
from experiments.tracking.artifacts import Artifacts, artifacts
from experiments.tracking.database import ANEW, explained, import_mlflow, log, make_database, merge_journal
from experiments.tracking.headings import Headings
from experiments.tracking.mlflow_keys import to_key, whole_names
from experiments.tracking.record import (
    PLACE,
    RECORD,
    config,
    content,
    curve_name,
    evaluations,
    final_points,
    members,
    own_evaluations,
    tags,
)
from experiments.tracking.views import PARAM_LENGTH, PARENT, SHARED, MlflowRunView, write_views
from experiments.tracking.written import begin, note

POINTS_AT_ONCE = 800  # MLflow allows 1,000 items per call, at most 100 parameters and 100 tags among them
MOST_ATTEMPTS = 200  # maximum number of attempts in the tag POSITION; points of older ones would be written again
# Tags of a training that are copied to the MLflow runs of other rows that share the training.
OF_CODE = ("task", "seed", "commit", "dirty", "code_digest", "host", "imported", "ensemble")
SCORED = "scored"  # tag: time of each evaluation whose scores are in MLflow; "*" marks scores under plain names
POSITION = "events_written"  # tag: number of bytes of each attempt's events that are in MLflow


@dataclass
class _Entry:
    """The MLflow run of a training."""

    mlflow_id: str
    name: str
    history: History
    begin: int  # number of the first attempt of its curve
    status: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    end_ms: int | None = None


class Tracker:
    """A writer to a store's MLflow database, or to the server at `uri`. It is not thread-safe."""

    def __init__(
        self, store: Store, uri: str = "", *, database: Path | None = None, artifacts: Path | None = None
    ) -> None:
        """Open MLflow.

        database, artifacts: a new database and a new folder of artifacts, to be filled instead of the store's.
        """
        self._database = database = database or store.mlflow_db
        self._store, self._elsewhere = store, bool(uri)
        with self.explained():
            if not uri:
                make_database(database)
            mlflow = import_mlflow()
            self.client: Any = mlflow.MlflowClient(tracking_uri=uri or f"sqlite:///{database}")
        self._entities: Any = mlflow.entities
        self._fresh = database != store.mlflow_db
        self.headings = Headings(self.client, self._elsewhere)
        self.artifacts = Artifacts(self.client, None if uri else artifacts or store.artifacts)
        self._open: dict[str, _Entry] = {}

    def close(self) -> None:
        """Merge the journal into the database."""
        if not self._elsewhere:
            merge_journal(self._database)

    def explained(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that turns errors of the database into UserError (see `database.explained`)."""
        return explained(self._database)

    def sync(self, run: TrackedRun) -> None:
        """Write those data of a run that MLflow does not have yet. After an error, the next call continues.

        Raises UserError or MLflow's errors.
        """
        if not (self._elsewhere or self._database.is_file()):  # SQLite would continue to write to the removed file
            raise UserError(f"MLflow's database {self._database} was removed. {ANEW}")
        record = content(self._store, run.run_id) if run.status != RUNNING else ""
        try:
            with self.explained():
                shown = self._sync(run, record)
        except BaseException:
            self.headings = Headings(self.client, self._elsewhere)  # discard cached ids, which a user may have deleted
            raise
        if shown and record and not self._elsewhere:
            note(self._database, run.run_id, record)

    def _sync(self, run: TrackedRun, record: str) -> bool:
        """Write a run. Return False if it has not begun, so that MLflow does not have it."""
        entry = self._open.pop(run.run_id, None) or (None if self._fresh else self._find(run))
        # The training was restarted, so the curve in MLflow is out of date.
        if entry is not None and entry.begin != entry.history.look():
            self.hide(run.run_id)
            entry = None
        # The run was imported again with other numbers, which MLflow would merge into one curve.
        if entry is not None and run.imported and record and entry.tags.get(RECORD) != record:
            self.hide(run.run_id)
            entry = None
        history = entry.history if entry is not None else History(self._store, run.run_id)
        begin = history.look()
        if history.first_t is None and run.status == RUNNING:
            return False
        last, position = list[Point](), ""
        for batch in history.batches(POINTS_AT_ONCE):
            if position:
                entry = entry or self._create(run, history, begin, {})
                self._log(entry, run, _curve(last))
                self._set_tags(entry, {POSITION: position})
            last, position = batch, _position_of(history)
        # All events have been read, so tags and scores are known.
        about, points = tags(self._store, run, history), _curve(last)
        if record:
            points += final_points(self._store, run, history)
            if scored := _scored(self._store, run, history):
                about[SCORED] = " ".join(f"{name}:{t}" for name, t in scored.items())
            words = entry.tags.get(SCORED, "").split() if entry is not None else []
            before = dict(word.split(":", 1) for word in words if ":" in word)
            if any(scored.get(name, t) != t for name, t in before.items()):
                self.hide(run.run_id)  # a set was evaluated again, and MLflow would merge old and new scores
                return self._sync(run, record)
        entry = entry or self._create(run, history, begin, about)
        if entry.name != (name := self._name(run, history)):  # an older version that did not record rows named it
            self.client.update_run(entry.mlflow_id, name=name)
            entry.name = name
        self._set_tags(entry, about)  # before the scores, because SCORED names all scores that MLflow may have
        if "error" in entry.tags and not run.error:
            self.client.delete_tag(entry.mlflow_id, "error")
            del entry.tags["error"]
        self._log(entry, run, points)
        if record:
            for source, name in artifacts(self._store, run.run_id):
                self.artifacts.keep(entry.mlflow_id, source, name)
        if run.status != entry.status or (record and _ended_later(entry)):
            self._set_status(entry, run)
        if record and (shared := list(self._sharing(entry, run))):
            write_views(self.client, shared, () if self._fresh else self._search(f"tags.{SHARED} = '{run.run_id}'"))
        # last, after all points are written
        self._set_tags(entry, {POSITION: position, **({RECORD: record} if record and run.imported else {})})
        if not record:
            self._open[run.run_id] = entry
        return True

    def recognise(self) -> None:
        """Create the list of runs in a database of version 0.1.0 from their tags. The list includes deleted runs."""
        every, known, token = self._entities.ViewType.ALL, dict[str, str](), None
        with self.explained():
            experiments = [one.experiment_id for one in self.client.search_experiments(view_type=every)]
            while experiments:
                found = self.client.search_runs(experiments, "", every, max_results=1000, page_token=token)
                for one in found:
                    about = one.data.tags
                    counts = one.info.lifecycle_stage == "active" or about.get("run_id") not in known
                    if "run_id" in about and RECORD in about and counts:
                        known[about["run_id"]] = about[RECORD]
                token = found.token
                if not token:
                    break
        begin(self._database, known)

    def hide(self, run_id: str) -> None:
        """Delete the MLflow runs of a run. MLflow only hides them, and can restore them."""
        with self.explained():
            if not self._elsewhere:
                note(self._database, run_id, "")  # otherwise the run would count as deleted by the user
            for tag in ("run_id", SHARED):
                for found in self._search(f"tags.{tag} = '{run_id}'"):
                    self.client.delete_run(found.info.run_id)

    def _search(self, search: str) -> Sequence[Any]:
        found: Sequence[Any] = self.client.search_runs(self.headings.experiments(), search, max_results=10_000)
        return found

    def _find(self, run: TrackedRun) -> _Entry | None:
        """Return the run's entry from an earlier `sync`, or None. Delete further entries of the run."""
        found = self._search(f"tags.run_id = '{run.run_id}'")
        if not found:
            return None
        for double in found[1:]:
            self.client.delete_run(double.info.run_id)
        known, history = found[0], History(self._store, run.run_id)
        about = dict(known.data.tags)
        history.skip(_position(about.get(POSITION, "")))
        begin, params = int(about.get("first_attempt", 0)), known.data.params
        self.artifacts.locate(known)
        name, status, end = known.info.run_name, known.info.status, known.info.end_time
        return _Entry(known.info.run_id, name, history, begin, status, about, params, end)

    def _name(self, run: TrackedRun, history: History, row: str = "") -> str:
        """Return the name of a run, such as "base · seed 1". The default row is the first row of the run."""
        row = row or next((member[3] for member in members(self._store, run, history)), run.run_id)
        return f"{row} · {seed_in_words(run.spec.seed)}{', imported' if run.imported else ''}"

    def _sharing(self, entry: _Entry, run: TrackedRun) -> Iterator[MlflowRunView]:
        """Yield views for the other rows that share a training. Each view has the scores of its row."""
        start, end = entry.history.first_t or run.imported_t, entry.history.last_t or run.imported_t
        times = _ms(start) or None, _ms(end) or None
        about = {n: v for n, v in entry.tags.items() if n in OF_CODE or n.startswith("input.")}
        for row in rows_of(self._store, run.run_id)[1:]:
            study, profile, corpus, key, _ = row.member
            heading = self.headings.heading(study, profile, corpus, times[0])
            tags = {**about, **dict(zip(PLACE, row.member, strict=True)), SHARED: run.run_id}
            values = {**dict(flatten(config(self._store, run))), **row.settings}
            yield MlflowRunView(
                self.headings.experiment(study),
                heading,
                self._name(run, entry.history, key),
                tags,
                {name: str(value) for name, value in values.items()},
                [(p.name, p.value, _ms(p.t), p.step) for p in final_points(self._store, run, entry.history, row)],
                times,
                run.status,
            )

    def _create(self, run: TrackedRun, history: History, begin: int, about: Mapping[str, str]) -> _Entry:
        """Create the entry of a run, with tags."""
        of = members(self._store, run, history)
        study, profile, corpus, *_ = of[0] if of else ("runs", "", "")
        start = _ms(history.first_t or run.imported_t) or None
        experiment, parent = self.headings.experiment(study), self.headings.heading(study, profile, corpus, start)
        known = {to_key(name): value for name, value in about.items()}
        known |= {"run_id": run.run_id, PARENT: parent, "first_attempt": str(begin)}
        name = self._name(run, history)
        made = self.client.create_run(experiment, start_time=start, tags=known, run_name=name)
        self.artifacts.locate(made)
        return _Entry(made.info.run_id, name, history, begin, RUNNING, known)

    def _set_status(self, entry: _Entry, run: TrackedRun) -> None:
        if run.status == RUNNING:
            self.client.update_run(entry.mlflow_id, status=RUNNING)
        else:
            entry.end_ms = _ms(entry.history.last_t or run.imported_t) or None
            self.client.set_terminated(entry.mlflow_id, run.status, entry.end_ms)
        entry.status = run.status

    def _log(self, entry: _Entry, run: TrackedRun, points: Sequence[Point]) -> None:
        """Log points. The first call for a run also logs its parameters and data sets, which never change."""
        make = self._entities
        settings = {} if POSITION in entry.tags else self._settings(run)
        wanted = {to_key(name): str(value)[:PARAM_LENGTH] for name, value in settings.items()}
        names = whole_names([*settings, *(point.name for point in points)])
        log(
            self.client,
            entry.mlflow_id,
            metrics=[make.Metric(to_key(p.name), p.value, _ms(p.t), p.step) for p in points],
            params=[make.Param(*item) for item in wanted.items() if item[0] not in entry.params],
            tags=[make.RunTag(*item) for item in names.items() if item[0] not in entry.tags],
        )
        entry.tags |= names
        if settings:
            self._log_inputs(entry, run)

    def _settings(self, run: TrackedRun) -> dict[str, Any]:
        return {"task": run.spec.task, **dict(flatten(config(self._store, run))), "seed": run.spec.seed or "ensemble"}

    def _log_inputs(self, entry: _Entry, run: TrackedRun) -> None:
        make, inputs = self._entities, without_runs(run.spec.inputs)
        corpus = next((member[2] for member in members(self._store, run, entry.history)), "")
        source = json.dumps({"corpus": corpus})
        use = make.InputTag("mlflow.data.context", "training")
        data = [make.Dataset(name, value[:36], "local", source) for name, value in inputs.items()]
        if data:
            self.client.log_inputs(entry.mlflow_id, [make.DatasetInput(one, [use]) for one in data])

    def _set_tags(self, entry: _Entry, wanted: Mapping[str, str]) -> None:
        """Write the new and changed tags."""
        changed = {to_key(name): value for name, value in wanted.items() if entry.tags.get(to_key(name)) != value}
        if len(changed) == 1:  # set_tag is faster than a batch of one
            [(key, value)] = changed.items()
            self.client.set_tag(entry.mlflow_id, key, value, synchronous=True)
        else:
            log(self.client, entry.mlflow_id, tags=[self._entities.RunTag(*item) for item in changed.items()])
        entry.tags |= changed


def _ended_later(entry: _Entry) -> bool:
    """Return whether the run ended later than MLflow shows, because a short attempt was never synced while it ran."""
    return bool(entry.history.last_t) and entry.end_ms != _ms(entry.history.last_t)


def _curve(points: Sequence[Point]) -> list[Point]:
    """Return points of the training curve under their names in MLflow."""
    return [point._replace(name=curve_name(point.name)) for point in points]


def _position_of(history: History) -> str:
    """Return the value of the tag POSITION: how far the events have been read."""
    return " ".join(f"{number}:{offset}" for number, offset in list(history.position.items())[-MOST_ATTEMPTS:])


def _position(text: str) -> dict[int, int]:
    """Parse the tag POSITION. An invalid tag gives {}, so that all points are written again."""
    try:
        return {int(number): int(offset) for number, offset in (word.split(":") for word in text.split())}
    except ValueError:
        return {}


def _scored(store: Store, run: TrackedRun, history: History) -> dict[str, str]:
    """Return the content of the tag SCORED: a dict from the beginning of each eval_id to the time of the evaluation.

    The time is followed by "*" if the scores of the evaluation have plain names.
    """
    own = own_evaluations(store, run.run_id, history.evaluated_t).values()
    made = {name: _ms(history.evaluated_t.get(name, run.imported_t)) for name, _ in evaluations(store, run.run_id)}
    return {name[:8]: f"{t}{'*' * (name in own)}" for name, t in sorted(made.items())}


def _ms(t: float) -> int:
    """Convert seconds to MLflow's milliseconds."""
    return int(t * 1000)
