"""The base class of engines for several machines.

Children see the store under the same path as the coordinator. Children continue if the coordinator ends. A later
coordinator adopts the children by the names that the cluster gave them, or finds that they have ended.
"""

import json
import os
import re
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from experiments.jobs.engines.engine import Engine, Exit, Handle, Launch
from experiments.jobs.engines.keeper import LAUNCH, recorded_exit
from experiments.store.checksummed import with_checksum
from experiments.store.durable import whole_file

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")  # a name from another user's queue must not be an option of scancel
LOOK_EVERY_S = 1.0
LATE_S = 10.0  # longest time in seconds from a job's end until a network disk shows the file that records this end


class ClusterEngine(Engine):
    """An engine whose children run on a cluster. Subclasses submit them and check whether they still exist."""

    outlives: ClassVar[bool] = True

    def __init__(self) -> None:
        self.setup: Sequence[str] = ()  # shell lines that a node runs before each child
        self._ended: dict[str, Exit] = {}
        self._gone_since: dict[str, float] = {}
        self._looked_at: dict[str, float] = {}

    @abstractmethod
    def _submit(self, folders: Sequence[Path], launches: Sequence[Launch]) -> list[str]:
        """Submit attempts and return the cluster's names for them. Raise UserError if the cluster refuses."""

    @abstractmethod
    def _holds(self, name: str) -> bool:
        """Return whether the cluster still has the child, running or waiting; True if the cluster does not answer."""

    def start(self, launch: Launch) -> Handle:
        [handle] = self.start_all([launch])
        if isinstance(handle, OSError):
            raise handle
        return handle

    def start_all(self, launches: Sequence[Launch]) -> list[Handle | OSError]:
        if not launches:
            return []
        folders = [launch.log.parent for launch in launches]
        for folder, launch in zip(folders, launches, strict=True):
            told = {"argv": list(launch.argv), "environment": dict(launch.environment), "log": str(launch.log)}
            told["setup"] = list(self.setup)
            with whole_file(folder / LAUNCH, private=True) as file:  # an environment may contain secrets
                file.write(json.dumps(with_checksum({**told, "cwd": str(Path.cwd())})).encode())
        names = self._submit(folders, launches)
        return [Handle(self._ref(name, folder)) for name, folder in zip(names, folders, strict=True)]

    def _ref(self, name: str, folder: Path) -> dict[str, Any]:
        return {"engine": self.name, "id": name, "folder": str(folder)}

    def adopt(self, ref: Mapping[str, Any]) -> Handle | None:
        if ref.get("engine") != self.name or not _NAME.fullmatch(str(ref.get("id"))):
            return None
        ended = recorded_exit(Path(ref["folder"])) is not None
        return Handle(dict(ref)) if ended or self._holds(str(ref["id"])) else None

    def poll(self, handle: Handle) -> Exit | None:
        name, now = str(handle.ref["id"]), time.monotonic()
        if name in self._ended:
            return self._ended[name]
        if now - self._looked_at.get(name, -LOOK_EVERY_S) < LOOK_EVERY_S:
            return None
        self._looked_at[name] = now
        ended = recorded_exit(Path(handle.ref["folder"]))
        if ended is None and self._holds(name):
            self._gone_since.pop(name, None)
            return None
        if ended is None and now - self._gone_since.setdefault(name, now) < LATE_S:
            return None
        self._ended[name] = ended or Exit(None)
        return self._ended[name]

    def wait(self, timeout_s: float) -> None:
        time.sleep(timeout_s)

    def close(self) -> None:
        """Do nothing, because this class has no resources to free. Children continue."""


def user() -> str:
    """Return the id of this user, for the commands that list this user's jobs on a cluster."""
    return str(os.getuid())
