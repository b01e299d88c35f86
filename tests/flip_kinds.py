"""Every kind of durable file of a store, each with a function that reads it (see tests/flips.py)."""

import json
import os
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from experiments.attempt_context import AttemptContext
from experiments.config.run_config import RunConfig
from experiments.data.corpora import files
from experiments.data.encoding import encoded
from experiments.device_spec import DeviceSpec
from experiments.evaluation.load_network import kept_average, load_tokenizers
from experiments.events.event_log import Tail
from experiments.identity import digest
from experiments.jobs.attempts import probe as calibration
from experiments.jobs.queue.work_queue import WorkQueue
from experiments.run_spec import RunSpec
from experiments.store.checksummed import read_json
from experiments.store.layout import Store
from experiments.store.spec import AttemptSpec
from experiments.tasks.own.context import new_checkpoint, open_folder
from experiments.tracking.mlflow import Tracker
from experiments.tracking.rebuild import tracked_runs
from experiments.training import checkpoint, kept_checkpoints
from experiments.tuning import Range, Search, Space
from tests.flips import Gap, Kind, Printing, Said


def all_kinds(study: Path, root: Path, folder: Path) -> Iterator[Kind]:
    """Yield the kinds of files of a store made by `flips.make_store`. `folder`: an empty folder for temporary files."""
    store, table = Store.open(root, create=False), Printing(study, root)
    yield Kind("store.json", root / "store.json", table)
    yield Kind("fingerprints", root / "corpora" / "fingerprints.json", lambda: _read_anew(table))
    bundle = study.with_suffix(".tar.gz")
    yield Kind("bundle", bundle, Printing(bundle, root))
    yield Kind("MLflow's database", store.mlflow_db, lambda: _tracked(store))
    yield from results(root, table)
    yield Kind("events, the table", min(root.glob("runs/*/attempts/*/events.jsonl")), table)
    yield from checkpoints(root)
    yield from corpus(root)
    yield from queue(store, table)
    yield from others(store, folder)


def results(root: Path, table: Callable[[], Any]) -> Iterator[Kind]:
    """Yield the files from which a table is printed, and the other files of a run and an attempt."""
    evaluation = min(path.parent for path in root.glob("runs/*/evaluations/*/result.json"))
    home = evaluation.parents[1]
    attempt = max((home / "attempts").iterdir())
    yield Kind("training result", home / "result.json", table)
    for path in sorted(evaluation.iterdir()):
        yield Kind(f"evaluation {path.name}", path, table)
    for path in (home / "config.json", attempt / "spec.json"):
        yield Kind(path.name, path, partial(read_json, path))
        yield Kind(f"{path.name}, the table", path, table)
    yield Kind("events", attempt / "events.jsonl", partial(_events, attempt, _lines(attempt)))


def checkpoints(root: Path) -> Iterator[Kind]:
    average = min(root.glob("runs/*/attempts/*/averages/*"))
    attempt = average.parents[1]
    for path in sorted(checkpoint.all_of(attempt)[-1].iterdir()):
        yield Kind(f"checkpoint {path.name}", path, lambda: _resumed(attempt))
        yield Kind(f"checkpoint {path.name}, for the best", path, lambda: _best(attempt))
    for path in sorted((attempt / "final").iterdir()):
        yield Kind(f"final {path.name}", path, lambda: _final(attempt))
    for path in sorted(average.iterdir()):
        yield Kind(f"average {path.name}", path, lambda: _weights(kept_average(attempt, 2, 2)))


def corpus(root: Path) -> Iterator[Kind]:
    folder = min(path.parent for path in root.glob("corpora/*/facts.json"))
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        yield Kind(f"corpus {path.relative_to(folder)}", path, lambda: _corpus(folder))


def queue(store: Store, table: Callable[[], Any]) -> Iterator[Kind]:
    yield Kind("queue, its jobs", store.queue_db, lambda: _jobs(store))
    yield Kind("queue, the table", store.queue_db, table)


def others(store: Store, folder: Path) -> Iterator[Kind]:
    """Yield the files of measured speeds, of tuning trials, and of checkpoints of a user's trainer."""
    steps = calibration.of_results(store, {path.name: 1e6 for path in store.runs.iterdir()})[0]
    calibration.keep(store, steps)
    yield Kind("measurements", store.root / calibration.CALIBRATION_FILE, lambda: calibration.kept(store))
    space = Space({"x": Range(0.0, 1.0)}, "bleu", "dev", minimize=False, sampler="random")
    search = Search(store, space, "flips")
    search.tell(search.ask().number, "complete", 3.5)
    path = next((store.root / "tuning").iterdir())
    yield Kind("trials", path, lambda: Search(store, space, "flips").trials)
    with new_checkpoint(_context(folder), 3) as place:
        (place / "state.bin").write_bytes(random.Random(1).randbytes(300))
    for path in sorted(path for path in (folder / "checkpoints").rglob("*") if path.is_file()):
        yield Kind(f"a trainer's checkpoint {path.name}", path, lambda: _own(folder))


def _lines(attempt: Path) -> list[dict[str, Any]]:
    tail = Tail(attempt)
    found = list(tail.read())
    if tail.damaged:
        raise Said
    return found


def _events(attempt: Path, whole: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = _lines(attempt)
    if found == whole[: len(found)] != whole:
        raise Gap
    return found


def _tracked(store: Store) -> str:
    """Bring every run up to date in MLflow's database.

    No number is compared, because the program never reads numbers from MLflow.
    """
    for suffix in ("-wal", "-shm", "-journal"):
        store.mlflow_db.with_name(store.mlflow_db.name + suffix).unlink(missing_ok=True)
    os.environ["MLFLOW_SQLALCHEMYSTORE_POOLCLASS"] = "NullPool"  # no connection stays open while the file is corrupted
    tracker = None
    try:
        tracker = Tracker(store)
        for run in tracked_runs(store):
            tracker.sync(run)
            tracker.hide("f" * 16)
        return "all runs"
    finally:
        if tracker is not None:
            tracker.close()


def _weights(tensors: Any) -> str:
    return digest({name: tensor.tolist() for name, tensor in tensors.items()})


def _resumed(attempt: Path) -> Any:
    """Return the checkpoint from which a training would resume, with its tensors."""
    skipped: list[str] = []
    meta = checkpoint.meta_of(attempt / "final")
    found = checkpoint.newest(
        [attempt], lineage=meta["lineage"], code=meta["code"], last_step=6, skipped=lambda _, why: skipped.append(why)
    )
    if skipped:
        raise Said
    if found is None:
        raise Gap
    return found.step, dict(found.meta), _weights(found.weights()), _weights(found.optimizer())


def _best(attempt: Path) -> Any:
    found = kept_checkpoints.best(attempt)
    if found is None:
        raise Gap
    return kept_checkpoints.step_of(found), _weights(checkpoint.load_weights(found))


def _final(attempt: Path) -> Any:
    config = RunConfig.model_validate_json(json.dumps((read_json(attempt / "result.json") or {})["spec"]["config"]))
    return _weights(checkpoint.load_weights(attempt / "final")), [t.sha256 for t in load_tokenizers(config, attempt)]


def _corpus(folder: Path) -> Any:
    encoded._checked.clear()
    found = encoded.open_encoded(folder.parent, folder.name)
    sets = [found.set(name) for name in ("dev", "test")]
    pairs = [[side.pieces.tolist() for side in e.values()] for e in (found.train, *(s.sides for s in sets))]
    texts = [(s.source, s.target, s.facts) for s in sets]
    return digest([pairs, texts, found.facts, [tokenizer.sha256 for tokenizer in found.tokenizers]])


def _read_anew(table: Callable[[], Any]) -> Any:
    """Print the table as a new process does, without cached facts about the corpus."""
    files._seen.clear()
    return table()


def _jobs(store: Store) -> Any:
    """Return the queue's values that determine results.

    These are each job's settings, inputs and evaluations, the settings pinned by its first attempt, and its process.
    """
    work_queue = WorkQueue(store.queue_db, create=False)
    try:
        work_queue.check()
        found = [work_queue.job(row.run_id) for row in work_queue.status()]
        return [(claimed.job.to_json(), claimed.pinned, claimed.ref) for claimed in found]
    finally:
        work_queue.close()


def _context(folder: Path) -> AttemptContext:
    def emit(kind: str, **_: Any) -> None:
        if kind == "checkpoint_skipped":
            raise Said

    return AttemptContext(
        AttemptSpec(RunSpec("0" * 16, {}, {}), str(folder), 1, DeviceSpec()), folder, emit, lambda: False
    )


def _own(folder: Path) -> Any:
    resume = open_folder(_context(folder))
    return None if resume is None else (resume.name, (resume / "state.bin").read_bytes())
