"""Decide whose commands a queue may run: a store may come from another user, and its queue names commands and modules.

A user who queues a job signs it with a personal key, kept outside of every store (`key_file`). A coordinator runs a job
that executes a user's code only if its own user's key signed it; others are held until `ablations work --trust STUDY`
signs them. So a signature moves with the queue, is valid on every machine with the same home folder, and is worthless
to another user. Tasks of this program and of installed packages execute no text of a queue: their jobs need none.
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
    """The user's key: $XDG_STATE_HOME/ablations/queue.key, else below ~/.local/state."""
    state = os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()
    return Path(state) / "ablations" / "queue.key"


def sign(spec: str) -> str:
    """The signature of a job's text."""
    return hmac.new(_key_in(key_file()), spec.encode(), "sha256").hexdigest()


def signed(spec: str, signature: str) -> bool:
    """Return whether this user queued exactly this text."""
    return hmac.compare_digest(sign(spec).encode(), str(signature).encode())


def executes(job: Job) -> str:
    """The user's code that a job executes, as text; "" for a built-in task."""
    spec = job.spec
    if spec.task == "command":
        return f"the command {spec.trainer.command!r} in {spec.folder or 'this folder'}"
    if spec.task in named_tasks():
        return ""
    by = f" with {spec.python}" if spec.python else ""
    return f"the task {spec.task} from {spec.folder or 'the installed packages'}{by}"


def why_held(job: Job) -> str:
    """Text for `status`: what the job would execute, and how to allow it."""
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
    """The key; b"" if there is none or it is incomplete."""
    try:
        key = read_regular(path)
    except FileNotFoundError:
        return b""
    return key if len(key) == _KEY_BYTES else b""


def _make(path: Path) -> bytes:
    """Create a key. If two processes do so at once, the first one's key is used."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        with whole_file(draft, private=True) as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
        name_new(draft, path)
        if not _read(path):  # one that was there, and is incomplete
            draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return _read(path)
