"""The store's layout, version, locks and durable writes.

    store.json                       {"version": 1}
    queue.db  mlflow.db              (in --state-dir if one is given)
    artifacts/                       MLflow's
    corpora/<digest>/                tokenizer and encoded arrays, made once
    runs/<run_id>/config.json        the resolved configuration and the inputs' digests
                 /attempts/0001/     events.jsonl, log.txt, checkpoints/, final/: one try, the only place it writes
                 /result.json        written once a try has trained to the end; names that attempt
                 /evaluations/<eval_id>/result.json, translations

No absolute path is kept inside, so a store can be moved. Imports no torch.
"""

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from experiments.errors import Damaged, DiskFull, UserError
from experiments.store import locks
from experiments.store.sealed import seal, unseal

VERSION = 1
MARKER = "store.json"
_IDENTITY = re.compile(r"[0-9a-f]{16}")
_ATTEMPT = re.compile(r"[0-9]{4,9}")
MOST_ATTEMPTS = 10**9


class Store:
    """A folder of runs. `open` checks it; every path inside comes from here."""

    def __init__(self, root: Path, state_dir: Path | None = None) -> None:
        self.root = root
        self.state_dir = state_dir or root

    @classmethod
    def open(cls, root: Path | str, state_dir: Path | str | None = None, *, create: bool = True) -> "Store":
        """Open a store, making it if there is none. With `create=False` a missing store reads as an empty one.

        Raises UserError for a store of another version, and for a folder that cannot be written when `create`.
        """
        store = cls(Path(root).absolute(), Path(state_dir).absolute() if state_dir else None)
        marker = store.root / MARKER
        if marker.exists():
            _check_version(marker)
        elif create:
            _refuse_foreign(store.root)
            with explain_os_errors(f"make the store {store.root}"):
                store.root.mkdir(parents=True, exist_ok=True)
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
        return self.state_dir / "queue.db"

    @property
    def mlflow_db(self) -> Path:
        return self.state_dir / "mlflow.db"

    @property
    def artifacts(self) -> Path:
        return self.root / "artifacts"

    @property
    def corpora(self) -> Path:
        return self.root / "corpora"

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    def run_ids(self) -> list[str]:
        """Of the runs that have a folder, sorted; other names there are nobody's."""
        return sorted(p.name for p in self.runs.iterdir() if _IDENTITY.fullmatch(p.name)) if self.runs.is_dir() else []

    def run_folder(self, run_id: str) -> Path:
        return self.runs / _checked(run_id)

    def attempt_folder(self, run_id: str, attempt: int) -> Path:
        return self.run_folder(run_id) / "attempts" / f"{attempt:04d}"

    def evaluation_folder(self, run_id: str, eval_id: str) -> Path:
        return self.run_folder(run_id) / "evaluations" / _checked(eval_id)

    def attempts(self, run_id: str) -> list[int]:
        """Numbers of the attempts so far, oldest first."""
        folder = self.run_folder(run_id) / "attempts"
        return sorted(int(p.name) for p in folder.iterdir() if _ATTEMPT.fullmatch(p.name)) if folder.is_dir() else []

    def new_attempt(self, run_id: str) -> tuple[int, Path]:
        """The next free attempt and its folder, made here: mkdir decides between two who want the same number."""
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

    def result(self, run_id: str) -> dict[str, Any] | None:
        """What the finished training recorded, or None. Raises Damaged."""
        path = self.run_folder(run_id) / "result.json"
        found = read_named(path, run_id=run_id)
        if found is not None and not (isinstance(found.get("attempt"), int) and 0 < found["attempt"] < MOST_ATTEMPTS):
            raise Damaged(f"{path} is damaged: it names no attempt. Restore it, or delete it to redo this part.")
        return found

    def evaluation(self, run_id: str, eval_id: str) -> dict[str, Any] | None:
        """What a finished evaluation recorded, or None. Raises Damaged."""
        path = self.evaluation_folder(run_id, eval_id) / "result.json"
        return read_named(path, run_id=run_id, eval_id=eval_id)

    def weights_folder(self, run_id: str) -> Path | None:
        """The folder of the attempt that trained to the end, or None."""
        result = self.result(run_id)
        return self.attempt_folder(run_id, int(result["attempt"])) if result else None

    @staticmethod
    def write_json(path: Path, value: Mapping[str, Any]) -> None:
        write_json(path, value)

    def coordinator(self) -> str:
        """Who works on the store at this moment: "process 4711 on host"; "" for nobody. Takes no lock for long."""
        return locks.holder((self.root, self.state_dir))

    @contextlib.contextmanager
    def coordinator_lock(self) -> Iterator[None]:
        """Held by the one process that owns the store's work; raises UserError naming the other holder."""
        with contextlib.ExitStack() as stack:
            with explain_os_errors(f"lock the store {self.root}"):
                stack.enter_context(locks.hold((self.root, self.state_dir)))
            yield


def _checked(identity: str) -> str:
    """An identity becomes a folder's name: nothing but 16 hex digits may."""
    if not _IDENTITY.fullmatch(identity):
        raise ValueError(f"not an identity of 16 hex digits: {identity!r}")
    return identity


def _check_version(marker: Path) -> None:
    try:
        version = json.loads(marker.read_text(encoding="utf-8"))["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(
            f"{marker} is damaged: it should say which version of the store this is. If the folder is a store, write "
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
    """A folder full of somebody's files is not made a store by a slip of --store."""
    if root.exists() and not root.is_dir():
        raise UserError(f"--store {root} is a file. Name a folder: it is made if it does not exist.")
    foreign = root.is_dir() and any(not path.name.startswith(f".{MARKER}.") for path in root.iterdir())
    if foreign and not (root / MARKER).exists():  # else another process has made it meanwhile
        raise UserError(
            f"{root} is neither empty nor a store (it has no store.json). Name an empty or new folder with --store."
        )


@contextlib.contextmanager
def explain_os_errors(doing: str) -> Iterator[None]:
    """Turn what a user can mend, such as a full disk or no permission, into one paragraph; other errors pass."""
    remedies = {
        errno.ENOSPC: "there is no space left on the disk, or no inode (`df -i`): free some, or name another place "
        "with --store",
        errno.EDQUOT: "your disk quota is used up: free some space, or name another place with --store",
        errno.EROFS: "the disk is read-only: name another place with --store",
        errno.EACCES: "permission is denied: check the folder's owner and mode, or name another place with --store",
        errno.EPERM: "the operation is not permitted: check the folder's owner and mode, or name another place",
        errno.ENOTDIR: "a part of the path is a file, not a folder: name another place with --store",
        errno.EEXIST: "a file is where a folder should be: move it away, or name another place with --store",
        errno.EISDIR: "a folder is where a file should be: move it away, or name another place with --store",
    }
    try:
        yield
    except OSError as error:
        if error.errno not in remedies:
            raise
        kind = DiskFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else UserError
        where = f" ({error.filename})" if error.filename else ""
        raise kind(f"Could not {doing}: {remedies[error.errno]}{where}. Nothing that was finished is lost.") from error


def write_json(path: Path, value: Mapping[str, Any], *, sealed: bool = True) -> None:
    """Write durably: a temporary name beside, fsync, rename, fsync of the folder. Readers see old or new.

    The record carries its checksum (experiments/store/sealed.py) unless other programs are to read it.
    """
    value = seal(value) if sealed else value
    write_bytes(path, (json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True) + "\n").encode())


def write_bytes(path: Path, data: bytes) -> None:
    """As write_json, for bytes."""
    with whole_or_not(path) as stream:
        stream.write(data)


@contextlib.contextmanager
def whole_or_not(path: Path, *, private: bool = False) -> Iterator[IO[bytes]]:
    """Write a file under a temporary name beside, which becomes `path` when all of it is on the disk.

    Its mode is what the umask leaves of rw-rw-rw-; `private`: for its owner alone, from the first byte.
    """
    name = _beside(path.parent, f".{path.name}.")
    try:
        with os.fdopen(os.open(name, _NEW, 0o600 if private else 0o666), "wb") as stream:
            _mark_as_in_use(stream.fileno())
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            name.replace(path)  # before the lock goes with the stream
    except BaseException:
        name.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)


def name_new(made: Path, path: Path) -> None:
    """Give a file its name, unless there is one of that name by now: then that one stays."""
    try:
        path.hardlink_to(made)
    except FileExistsError:
        return
    except OSError:  # a disk without hard links
        if path.exists():
            return
        made.replace(path)
    fsync_folder(path.parent)


@contextlib.contextmanager
def folder_beside(parent: Path, prefix: str, suffix: str = "") -> Iterator[Path]:
    """A folder of a new name, gone afterwards unless it was renamed. Its mode is the umask's; tempfile's is 0700."""
    folder = _beside(parent, prefix, suffix)
    folder.mkdir()
    handle = os.open(folder, os.O_RDONLY)
    try:
        _mark_as_in_use(handle)
        yield folder
    finally:
        remove_folder(folder)
        os.close(handle)


def _mark_as_in_use(handle: int) -> None:
    """As long as it is open: what nobody has locked was left by a process that was killed (leftovers.py)."""
    with contextlib.suppress(OSError):  # a disk without locks
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def _beside(parent: Path, prefix: str, suffix: str = "") -> Path:
    return parent / f"{prefix}{secrets.token_hex(8)}{suffix}"


def fsync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_json(path: Path) -> dict[str, Any] | None:
    """What `write_json` wrote, or None if there is no such file. Raises Damaged."""
    try:
        return unseal(json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, RecursionError) as error:
        raise Damaged(
            f"{path} is damaged ({error}). Restore it from a backup, or delete it to redo this part."
        ) from None
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror}. Check what lies there and who may read it."
        ) from None


def read_named(path: Path, **names: str) -> dict[str, Any] | None:
    """As read_json; raises Damaged for the record of another run or evaluation too."""
    record = read_json(path)
    for key, name in names.items():
        if record is not None and record.get(key, name) != name:
            raise Damaged(
                f"{path} is the record of another {key}: {record[key]}. Put the right one back, or delete it."
            )
    return record


def remove_folder(folder: Path) -> None:
    """Delete a folder that may be half gone."""
    shutil.rmtree(folder, ignore_errors=True)
