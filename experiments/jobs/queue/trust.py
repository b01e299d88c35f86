"""Decide whether a coordinator may run the commands and modules that a queue names.

A store and its queue may come from another user. When a user queues a job, the program signs the job with the user's
key, which is stored outside of every store (`key_file`). If a job executes a user's code, a coordinator runs the job
only if the coordinator's user has signed it. If another user has signed it, the job is held until `ablations work
--trust STUDY` signs it. The signature is stored in the queue and is valid on every machine with the same home folder,
but only for the user who signed. Built-in tasks and tasks that installed packages register need no signature, because
their jobs execute no code that the queue names.
"""

import functools
import hmac
import logging
import os
import secrets
from pathlib import Path

from experiments.jobs.queue.job import Job
from experiments.store.durable import name_new, read_regular, whole_file
from experiments.tasks.load import named_tasks

_KEY_BYTES = 32
log = logging.getLogger(__name__)


def key_file() -> Path:
    """Return the file of the user's key: ablations/queue.key below $XDG_STATE_HOME (or ~/.local/state)."""
    state = os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()
    return Path(state) / "ablations" / "queue.key"


def sign(spec: str) -> str:
    """Return the signature of a job's text."""
    return hmac.new(_key_in(key_file()), spec.encode(), "sha256").hexdigest()


def signed(spec: str, signature: str) -> bool:
    """Return whether this user has signed exactly this text of a job."""
    return hmac.compare_digest(sign(spec).encode(), str(signature).encode())


def executes(job: Job) -> str:
    """Return a description of the user's code that a job executes; "" for a built-in or registered task."""
    spec = job.spec
    if spec.task == "command":
        return f"the command {spec.trainer.command!r} in {spec.folder or 'this folder'}"
    if spec.task in named_tasks():
        return ""
    by = f" with {spec.python}" if spec.python else ""
    return f"the task {spec.task} from {spec.folder or 'the installed packages'}{by}"


def why_held(job: Job) -> str:
    """Return the text for `status` that names the code of the job and the command that allows it."""
    study = job.members[0].study if job.members else job.run_id
    return (
        f"held: it executes {executes(job)}, which you have not queued here. Allow it with `ablations work --trust "
        f"{study}`"
    )


@functools.cache
def _key_in(path: Path) -> bytes:
    try:
        key = _read(path) or _make(path)
    except OSError as error:
        log.warning(
            "%s cannot be written (%s): other processes need `ablations work --trust STUDY` to run the commands "
            "queued now",
            path,
            error.strerror,
        )
        return secrets.token_bytes(_KEY_BYTES)
    return key


def _read(path: Path) -> bytes:
    """Return the key; b"" if it is missing or incomplete."""
    try:
        key = read_regular(path)
    except FileNotFoundError:
        return b""
    return key if len(key) == _KEY_BYTES else b""


def _make(path: Path) -> bytes:
    """Create a key and return it. If two processes create a key at the same time, both return the first one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        with whole_file(draft, private=True) as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
        name_new(draft, path)
        if not _read(path):  # replace an incomplete key
            draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return _read(path)
