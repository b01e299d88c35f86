"""The store's layout, version and locks, and the description of a run.

    store.json                       {"version": 1}
    queue.db  mlflow.db  mlflow.jsonl    (in the folder of --state-dir if the option is given)
    artifacts/                       artifacts of MLflow
    corpora/<digest>/                tokenizer and encoded arrays, prepared once
    runs/<run_id>/config.json        the resolved configuration, digests of the inputs, and the first row of the run
                 /rows.json          all rows, if several rows share the run
                 /attempts/0001/     events.jsonl, log.txt, checkpoints/, final/: an attempt writes only here
                                       alive: the time of the last heartbeat of the attempt
                                       watch/: absolute paths of files that a user's trainer imported
                 /result.json        written when an attempt has finished training; contains the number of this attempt
                 /evaluations/<eval_id>/result.json, translations

The program does not use absolute paths to find files in a store, so a store can be moved. This module does not import
torch.
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
LOG = "log.txt"  # name of the log in an attempt's folder
_IDENTITY = re.compile(r"[0-9a-f]{16}")
_ATTEMPT = re.compile(r"[0-9]{4,9}")


class Store:
    """A store: a folder that contains runs. This class returns all paths in a store. `open` checks the folder."""

    def __init__(self, root: Path, state_dir: Path | None = None) -> None:
        self.root = root
        self.state_dir = state_dir or root

    @classmethod
    def open(cls, root: Path | str, state_dir: Path | str | None = None, *, create: bool = True) -> "Store":
        """Open a store, and create it if it is missing. With `create=False`, a missing store counts as an empty store.

        Raises UserError for a store of another version and, with `create`, for a folder that cannot be written.
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
                except FileNotFoundError:  # /proc and /sys refuse new folders with this error
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
        """Return the sorted run_ids of all runs that have a folder. Folders with other names are ignored."""
        return sorted(p.name for p in self.runs.iterdir() if _IDENTITY.fullmatch(p.name)) if self.runs.is_dir() else []

    def run_folder(self, run_id: str) -> Path:
        """Return the folder of a run. Raise ValueError if the text is not a run_id."""
        return self.runs / _checked(run_id)

    def attempt_folder(self, run_id: str, attempt: int) -> Path:
        """Return the folder of an attempt."""
        return self.run_folder(run_id) / "attempts" / f"{attempt:04d}"

    def evaluation_folder(self, run_id: str, eval_id: str) -> Path:
        """Return the folder of an evaluation. Raise ValueError if a text is not a run_id or eval_id."""
        return self.run_folder(run_id) / "evaluations" / _checked(eval_id)

    def attempts(self, run_id: str) -> list[int]:
        """Return the numbers of a run's attempts, oldest first."""
        folder = self.run_folder(run_id) / "attempts"
        return sorted(int(p.name) for p in folder.iterdir() if _ATTEMPT.fullmatch(p.name)) if folder.is_dir() else []

    def new_attempt(self, run_id: str) -> tuple[int, Path]:
        """Create the folder of the next attempt and return its number and path.

        Concurrent callers get different numbers.
        """
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
        """Return the record of a run's finished training; None if there is none. Raise Damaged if it is damaged."""
        path = self.run_folder(run_id) / RESULT_FILE
        found = TrainingResult.load(path, run_id=run_id)
        if found is not None and not found.attempt:
            raise Damaged(f"{path} is damaged: it names no attempt. Restore it, or rename it to make it again.")
        return found

    def evaluation(self, run_id: str, eval_id: str) -> EvaluationResult | None:
        """Return the record of a finished evaluation; None if there is none. Raise Damaged if it is damaged."""
        path = self.evaluation_folder(run_id, eval_id) / RESULT_FILE
        return EvaluationResult.load(path, run_id=run_id, eval_id=eval_id)

    def weights_folder(self, run_id: str) -> Path | None:
        """Return the folder of the attempt that finished training; None if no attempt has."""
        result = self.result(run_id)
        return self.attempt_folder(run_id, result.attempt) if result else None

    def coordinator(self) -> str:
        """Return the store's present coordinator, such as "process 4711 on host"; "" if there is none.

        This method takes the coordinator's lock for an instant.
        """
        return locks.holder((self.root, self.state_dir))

    @contextlib.contextmanager
    def coordinator_lock(self) -> Iterator[None]:
        """Hold the coordinator's lock during a `with` block.

        Raises UserError, which names the holder, if another process holds the lock.
        """
        with contextlib.ExitStack() as stack:
            with explain_os_errors(f"lock the store {self.root}"):
                stack.enter_context(locks.hold((self.root, self.state_dir)))
            yield


def folders_in(folder: Path) -> list[str]:
    """Return the sorted names of the visible folders in a folder; [] if the folder does not exist."""
    if not folder.is_dir():
        return []
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _checked(identity: str) -> str:
    """Return an identity. Raise ValueError unless it has exactly 16 hex digits, because it becomes a folder's name."""
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
    """Raise UserError if the folder contains other files, for example because of a typing error in --store."""
    if root.exists() and not root.is_dir():
        raise UserError(f"--store {root} is a file. Name a folder; it is created if missing.")
    foreign = root.is_dir() and any(not path.name.startswith(f".{MARKER}.") for path in root.iterdir())
    if foreign and not (root / MARKER).exists():  # if the marker exists now, another process has just created the store
        raise UserError(
            f"{root} is neither empty nor a store (it has no store.json). Name a new or empty folder with --store."
        )


# config.json is written when a run is queued or imported for the first time. It contains the first row of the run.
# Several rows, of one table or of several tables, may share a run and differ only in the evaluation. rows.json is
# written as soon as a second row uses the run, or the first row changes. rows.json lists all rows in the order in which
# they were first queued or imported.


CONFIG = "config.json"
ROWS = "rows.json"


@dataclass(frozen=True)
class TableRow:
    """A table row to which a run belongs.

    A TableRow contains only the evaluations and settings of this row, and not those of other rows that share the run.
    """

    member: Member
    evaluations: Mapping[str, str] = field(default_factory=dict)  # set → eval_id
    settings: Mapping[str, Any] = field(default_factory=dict)  # settings whose values differ from those in config.json
    trees: tuple[str, ...] = ()  # trees of the row's code and of base's code, if rows of the study change code


def description_of(store: Store, run_id: str, *, forgiving: bool = False) -> dict[str, Any]:
    """Return the record config.json; {} if it is missing.

    If the record is damaged, return {} with `forgiving`, and raise UserError without it.
    """
    try:
        return read_json(store.run_folder(run_id) / CONFIG) or {}
    except UserError:
        if not forgiving:
            raise
        return {}


def spec_of(store: Store, run_id: str, *, forgiving: bool = False) -> RunSpec | None:
    """Return the run as config.json describes it; None if this record is missing. See `description_of` for damage."""
    record = description_of(store, run_id, forgiving=forgiving)
    try:
        return recorded_spec(record) if record else None
    except ValueError as error:
        if forgiving:
            return None
        place = store.run_folder(run_id) / CONFIG
        raise Damaged(f"{place} does not describe its run ({error}). Restore it from a backup.") from None


def config_of(store: Store, run_id: str, *, forgiving: bool = False) -> Mapping[str, Any]:
    """Return the nested settings in config.json; {} if there are none. See `description_of` for damage."""
    spec = spec_of(store, run_id, forgiving=forgiving)
    return spec.config if spec else {}


def rows_of(store: Store, run_id: str) -> list[TableRow]:
    """Return the rows to which a run belongs, oldest first; [] if they are not recorded or cannot be read.

    A row whose names are not Unicode is left out, because no study can have such a row.
    """
    try:
        recorded = (read_json(store.run_folder(run_id) / ROWS) or {}).get("rows")
    except UserError:
        recorded = None
    rows = []
    for one in recorded or [description_of(store, run_id, forgiving=True).get("row")]:
        with contextlib.suppress(KeyError, TypeError, ValueError):
            study, profile, corpus, row, group = map(str, one["member"])
            f"{study}{profile}{corpus}{row}{group}".encode()  # raises ValueError for an unpaired surrogate
            settings, trees = dict(one["settings"]), tuple(map(str, one.get("trees", ())))
            if settings and "trees" not in one:  # version 0.1.0 stored facts of the trainer among the settings
                settings, trees = _without_facts(store, run_id, settings)
            rows.append(TableRow((study, profile, corpus, row, group), dict(one["evaluations"]), settings, trees))
    return rows


def _without_facts(store: Store, run_id: str, settings: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return (settings, trees) of a row that version 0.1.0 recorded. The settings exclude the facts of the trainer.

    Raises ValueError for facts of wrong types.
    """
    spec = spec_of(store, run_id, forgiving=True)
    own, trainer = separate(settings, spec.task if spec else "")
    return own, trainer.trees


def keep_row(store: Store, run_id: str, row: TableRow) -> None:
    """Record that a run belongs to a row.

    If the row had an evaluation of the same set before, the new evaluation replaces it.
    """
    # the group is not part of the key, because a row may move to another group
    rows = {known.member[:4]: known for known in rows_of(store, run_id)}
    known = rows.get(row.member[:4])
    new = replace(row, evaluations={**(known.evaluations if known else {}), **row.evaluations})
    if new != known:
        rows[row.member[:4]] = new
        path = store.run_folder(run_id) / ROWS
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"rows": [asdict(one) for one in rows.values()]})
