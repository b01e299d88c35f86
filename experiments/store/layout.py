"""The store's layout, version and locks, and the description of a run.

    store.json                       {"version": 1}
    queue.db  mlflow.db  mlflow.jsonl    (in --state-dir if one is given)
    artifacts/                       MLflow's
    corpora/<digest>/                tokenizer and encoded arrays, made once
    runs/<run_id>/config.json        the resolved configuration, the inputs' digests, and the row it was queued for
                 /rows.json          all rows, where several share the run
                 /attempts/0001/     events.jsonl, log.txt, checkpoints/, final/: an attempt writes only here
                                       alive: the time of its last heartbeat
                                       watch/: what a user's trainer imported, by absolute paths
                 /result.json        written when an attempt has finished training; names that attempt
                 /evaluations/<eval_id>/result.json, translations

Nothing in a store is found by an absolute path, so a store can be moved. Imports no torch.
"""

import contextlib
import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from experiments.errors import Damaged, UserError, explain_os_errors
from experiments.records import Member
from experiments.run_spec import RunSpec, recorded_spec, separate
from experiments.store import locks
from experiments.store.checksummed import read_json, write_json
from experiments.store.durable import read_regular
from experiments.store.results import RESULT_FILE, EvaluationResult, TrainingResult

VERSION = 1
MARKER = "store.json"
LOG = "log.txt"  # in an attempt's folder
_IDENTITY = re.compile(r"[0-9a-f]{16}")
_ATTEMPT = re.compile(r"[0-9]{4,9}")


class Store:
    """A folder of runs. `open` checks it; all paths inside come from this class."""

    def __init__(self, root: Path, state_dir: Path | None = None) -> None:
        self.root = root
        self.state_dir = state_dir or root

    @classmethod
    def open(cls, root: Path | str, state_dir: Path | str | None = None, *, create: bool = True) -> "Store":
        """Open a store, creating it if missing. With `create=False` a missing store reads as an empty one.

        Raises UserError for a store of another version, and, with `create`, for a folder that cannot be written.
        """
        store = cls(Path(root).absolute(), Path(state_dir).absolute() if state_dir else None)
        marker = store.root / MARKER
        if marker.exists():
            _check_version(marker)
        elif create:
            _refuse_foreign(store.root)
            with explain_os_errors(f"make the store {store.root}"):
                try:
                    store.root.mkdir(parents=True, exist_ok=True)
                except FileNotFoundError:  # in /proc, /sys
                    raise UserError(f"{store.root} cannot be made there. Name another folder with --store.") from None
                write_json(marker, {"version": VERSION})
        if create:
            with explain_os_errors(f"write to the store {store.root}"):
                for folder in (store.state_dir, store.artifacts, store.corpora, store.runs):
                    folder.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryFile(dir=store.root):
                    pass
        return store

    @property
    def queue_db(self) -> Path:
        """The queue's SQLite file."""
        return self.state_dir / "queue.db"

    @property
    def mlflow_db(self) -> Path:
        """MLflow's SQLite file."""
        return self.state_dir / "mlflow.db"

    @property
    def artifacts(self) -> Path:
        """The folder of MLflow's artifacts."""
        return self.root / "artifacts"

    @property
    def corpora(self) -> Path:
        """The folder of encoded corpora."""
        return self.root / "corpora"

    @property
    def runs(self) -> Path:
        """The folder of all runs."""
        return self.root / "runs"

    def run_ids(self) -> list[str]:
        """Sorted run_ids of the runs that have a folder; folders with other names are ignored."""
        return sorted(p.name for p in self.runs.iterdir() if _IDENTITY.fullmatch(p.name)) if self.runs.is_dir() else []

    def run_folder(self, run_id: str) -> Path:
        """The folder of a run. Raises ValueError for text that is no identity."""
        return self.runs / _checked(run_id)

    def attempt_folder(self, run_id: str, attempt: int) -> Path:
        """The folder of an attempt."""
        return self.run_folder(run_id) / "attempts" / f"{attempt:04d}"

    def evaluation_folder(self, run_id: str, eval_id: str) -> Path:
        """The folder of a valid evaluation. Raises ValueError for text that is no identity."""
        return self.run_folder(run_id) / "evaluations" / _checked(eval_id)

    def attempts(self, run_id: str) -> list[int]:
        """Numbers of the attempts, oldest first."""
        folder = self.run_folder(run_id) / "attempts"
        return sorted(int(p.name) for p in folder.iterdir() if _ATTEMPT.fullmatch(p.name)) if folder.is_dir() else []

    def new_attempt(self, run_id: str) -> tuple[int, Path]:
        """Create the next attempt's folder and return its number and path; safe against concurrent callers."""
        number = max(self.attempts(run_id), default=0) + 1
        while True:
            folder = self.attempt_folder(run_id, number)
            folder.parent.mkdir(parents=True, exist_ok=True)
            try:
                folder.mkdir()
            except FileExistsError:
                number += 1
            else:
                return number, folder

    def result(self, run_id: str) -> TrainingResult | None:
        """The record of the finished training, or None. Raises Damaged."""
        path = self.run_folder(run_id) / RESULT_FILE
        found = TrainingResult.load(path, run_id=run_id)
        if found is not None and not found.attempt:
            raise Damaged(f"{path} is damaged: it names no attempt. Restore it, or rename it to make it again.")
        return found

    def evaluation(self, run_id: str, eval_id: str) -> EvaluationResult | None:
        """The record of a finished evaluation, or None. Raises Damaged."""
        path = self.evaluation_folder(run_id, eval_id) / RESULT_FILE
        return EvaluationResult.load(path, run_id=run_id, eval_id=eval_id)

    def weights_folder(self, run_id: str) -> Path | None:
        """The folder of the attempt that finished training, or None."""
        result = self.result(run_id)
        return self.attempt_folder(run_id, result.attempt) if result else None

    def coordinator(self) -> str:
        """The store's coordinator at this moment, "process 4711 on host", or "". Takes the lock only for an instant."""
        return locks.holder((self.root, self.state_dir))

    @contextlib.contextmanager
    def coordinator_lock(self) -> Iterator[None]:
        """Hold the store as its coordinator. Raises UserError naming the process that holds it."""
        with contextlib.ExitStack() as stack:
            with explain_os_errors(f"lock the store {self.root}"):
                stack.enter_context(locks.hold((self.root, self.state_dir)))
            yield


def folders_in(folder: Path) -> list[str]:
    """The sorted names of the folders in one, without hidden ones; [] if it is not there."""
    if not folder.is_dir():
        return []
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _checked(identity: str) -> str:
    """Check that an identity is exactly 16 hex digits before it becomes a folder's name."""
    if not _IDENTITY.fullmatch(identity):
        raise ValueError(f"not an identity of 16 hex digits: {identity!r}")
    return identity


def _check_version(marker: Path) -> None:
    try:
        version = json.loads(read_regular(marker))["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(
            f"{marker} is damaged: it should contain the version of the store. If the folder is a store, write "
            f'{{"version": {VERSION}}} into it; if not, name another folder with --store.'
        ) from None
    except OSError as error:
        raise UserError(f"{marker} cannot be read: {error.strerror}. Check its permissions.") from None
    if version != VERSION:
        raise UserError(
            f"The store {marker.parent} was written by another version of this program (store version {version}; this "
            f"program reads {VERSION}). Use that version, or another folder with --store. Nothing was changed."
        )


def _refuse_foreign(root: Path) -> None:
    """Refuse to turn a folder with other files into a store, for example after a typing mistake in --store."""
    if root.exists() and not root.is_dir():
        raise UserError(f"--store {root} is a file. Name a folder; it is created if missing.")
    foreign = root.is_dir() and any(not path.name.startswith(f".{MARKER}.") for path in root.iterdir())
    if foreign and not (root / MARKER).exists():  # otherwise another process has just created the store
        raise UserError(
            f"{root} is neither empty nor a store (it has no store.json). Name a new or empty folder with --store."
        )


# --- The description of a run: config.json, written when it was first queued or imported, and its rows
# Rows of one table, and of several, may share a training and differ in its evaluation. The run is named for the first,
# which is in config.json. Once there are several, or the first has changed, rows.json has all of them, in the order in
# which they were queued.


CONFIG = "config.json"
ROWS = "rows.json"


@dataclass(frozen=True)
class TableRow:
    """A row of a table that a run belongs to, with the row's own decoding, whatever was decoded besides."""

    member: Member
    evaluations: Mapping[str, str] = field(default_factory=dict)  # set → eval_id
    settings: Mapping[str, Any] = field(default_factory=dict)  # by dotted name, where config.json has others
    trees: tuple[str, ...] = ()  # of its code, and of base's, if its study has rows that change code


def description_of(store: Store, run_id: str, *, forgiving: bool = False) -> dict[str, Any]:
    """The record config.json; {} if there is none. Raises UserError for a damaged one; forgiving: {} for that too."""
    try:
        return read_json(store.run_folder(run_id) / CONFIG) or {}
    except UserError:
        if not forgiving:
            raise
        return {}


def spec_of(store: Store, run_id: str, *, forgiving: bool = False) -> RunSpec | None:
    """The run as config.json describes it; None if there is no such record. See `description_of`."""
    record = description_of(store, run_id, forgiving=forgiving)
    try:
        return recorded_spec(record) if record else None
    except ValueError as error:
        if forgiving:
            return None
        place = store.run_folder(run_id) / CONFIG
        raise Damaged(f"{place} does not describe its run ({error}). Restore it from a backup.") from None


def config_of(store: Store, run_id: str, *, forgiving: bool = False) -> Mapping[str, Any]:
    """The settings in the record, nested; {} if there are none. See `description_of`."""
    spec = spec_of(store, run_id, forgiving=forgiving)
    return spec.config if spec else {}


def rows_of(store: Store, run_id: str) -> list[TableRow]:
    """The rows that a run belongs to, the first one first; [] where that is not recorded, or cannot be read.

    A row whose names are not Unicode is left out: no study has one.
    """
    try:
        recorded = (read_json(store.run_folder(run_id) / ROWS) or {}).get("rows")
    except UserError:
        recorded = None
    rows = []
    for one in recorded or [description_of(store, run_id, forgiving=True).get("row")]:
        with contextlib.suppress(KeyError, TypeError, ValueError):
            study, profile, corpus, row, group = map(str, one["member"])
            f"{study}{profile}{corpus}{row}{group}".encode()  # ValueError for half a surrogate pair
            settings, trees = dict(one["settings"]), tuple(map(str, one.get("trees", ())))
            if settings and "trees" not in one:  # of version 0.1.0, which had facts of the trainer among the settings
                settings, trees = _without_facts(store, run_id, settings)
            rows.append(TableRow((study, profile, corpus, row, group), dict(one["evaluations"]), settings, trees))
    return rows


def _without_facts(store: Store, run_id: str, settings: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The settings of a row of version 0.1.0 without facts of its trainer, and its trees. Raises ValueError."""
    spec = spec_of(store, run_id, forgiving=True)
    own, trainer = separate(settings, spec.task if spec else "")
    return own, trainer.trees


def keep_row(store: Store, run_id: str, row: TableRow) -> None:
    """Record that a run belongs to a row. Its decoding of a set takes the place of an earlier one of the same row."""
    rows = {known.member[:4]: known for known in rows_of(store, run_id)}  # a row may come to another group
    known = rows.get(row.member[:4])
    new = replace(row, evaluations={**(known.evaluations if known else {}), **row.evaluations})
    if new != known:
        rows[row.member[:4]] = new
        path = store.run_folder(run_id) / ROWS
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"rows": [asdict(one) for one in rows.values()]})
