"""Where a study and a corpus lie that a printed table names without their folders: what this user queued tells it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ablations.service.selected import Selectors
from experiments.errors import Damaged
from experiments.jobs.queue.job import Job
from experiments.jobs.queue.queue import Queue

MOST = 500  # of the queue's jobs that are looked at


def study_queued(selectors: Selectors, name: str) -> str:
    """The path of a study file: in this folder, else where it was queued from; the name if it is in neither."""
    if Path(name).is_file():
        return name
    folders = dict.fromkeys(Path(job.folder) for job in _jobs(selectors) if job.folder)
    return next((str(folder / name) for folder in folders if (folder / name).is_file()), name)


def with_corpus(selectors: Selectors) -> Selectors:
    """The selectors with the folder of a corpus, where they have only its name."""
    name = selectors.corpus
    if name in (None, "builtin") or Path(str(name)).expanduser().exists():
        return selectors
    found = dict.fromkeys(str((job.config.get("data") or {}).get("corpus", "")) for job in _jobs(selectors))
    folder = next((path for path in found if Path(path).name == name and Path(path).is_dir()), None)
    return replace(selectors, corpus=folder) if folder else selectors


def _jobs(selectors: Selectors) -> Iterator[Job]:
    """Jobs of the store that this user signed: their folders may be read, and their code imported."""
    store = selectors.open()
    if not store.queue_db.exists():
        return
    with Queue(store.queue_db, create=False) as queue:
        for row in queue.status()[:MOST]:
            try:
                claimed = queue.job(row.run_id)
            except Damaged:
                continue
            if claimed.signed:
                yield claimed.job
