"""Files of a store have the mode that the umask leaves; what may hold secrets is private from its first byte."""

import os
import stat
from pathlib import Path

import pytest

from experiments.data.folders import make_folder
from experiments.events import EventWriter
from experiments.jobs.engines.base import Launch
from experiments.jobs.engines.cluster import ClusterEngine
from experiments.jobs.engines.remote import LAUNCH
from experiments.jobs.slots import Slot
from experiments.store import Store, whole_or_not, write_json


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o002, 0o027, 0o077])
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_the_umask_decides_who_reads_a_store(tmp_path, umask):
    store = Store.open(tmp_path / "store")
    with store.coordinator_lock():
        attempt, folder = store.new_attempt("a" * 16)
    EventWriter(folder).close()
    write_json(folder / "result.json", {"attempt": attempt})
    make_folder(store.corpora / "corpus", "corpus", lambda part: (part / "pieces").write_bytes(b"1"))
    made = list(store.root.rglob("*"))
    assert {path.name for path in made} >= {"result.json", "events.jsonl", "corpus", "pieces", "coordinator.lock"}
    for path in made:
        assert mode(path) == (0o777 if path.is_dir() else 0o666) & ~umask, path


def test_a_private_file_never_is_anything_else(tmp_path, umask):
    with whole_or_not(tmp_path / "secret", private=True) as file:
        assert mode(next(tmp_path.iterdir())) == 0o600
        file.write(b"secret")
    assert mode(tmp_path / "secret") == 0o600


class Cluster(ClusterEngine):
    name = "none"

    def _submit(self, folders, launches):
        self.modes = [mode(folder / LAUNCH) for folder in folders]
        return ["1" for _ in folders]

    def _holds(self, name):
        return False

    def terminate(self, handle):
        raise NotImplementedError

    def kill(self, handle):
        raise NotImplementedError


def test_a_childs_environment_is_for_its_owner_alone(tmp_path, umask):
    seen = []
    cluster = Cluster()
    chmod, Path.chmod = Path.chmod, lambda *a: seen.append(a)  # no file is made public first and closed then
    try:
        cluster.start(Launch(["true"], {"TOKEN": "secret"}, tmp_path / "log.txt", Slot("cpu.0", "cpu")))
    finally:
        Path.chmod = chmod
    assert cluster.modes == [0o600] and not seen
