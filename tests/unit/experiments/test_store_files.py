"""Files of a store have the umask's mode. Files that may contain secrets are private from the first byte."""

import os
import stat
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from experiments.errors import UserError
from experiments.events.event_log import EventWriter
from experiments.jobs.devices.slots import Slot
from experiments.jobs.engines.cluster import ClusterEngine
from experiments.jobs.engines.engine import Launch
from experiments.jobs.engines.keeper import LAUNCH, Keeper
from experiments.jobs.queue.queue import Queue
from experiments.store.checksummed import read_json, write_json
from experiments.store.durable import whole_file, whole_folder
from experiments.store.layout import Store, TableRow, keep_row, rows_of


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o002, 0o027, 0o077])
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc")
def test_a_place_where_no_folder_can_be_made_is_a_mistake():
    with pytest.raises(UserError, match="/proc/runs cannot be made there"):
        Store.open(Path("/proc/runs"))


def test_the_umask_decides_who_reads_a_store(tmp_path, umask):
    store = Store.open(tmp_path / "store")
    with store.coordinator_lock():
        attempt, folder = store.new_attempt("a" * 16)
    EventWriter(folder).close()
    write_json(folder / "result.json", {"attempt": attempt})
    with whole_folder(store.corpora / "corpus") as part:
        (part / "pieces").write_bytes(b"1")
    made = list(store.root.rglob("*"))
    assert {path.name for path in made} >= {"result.json", "events.jsonl", "corpus", "pieces", "coordinator.lock"}
    for path in made:
        assert mode(path) == (0o777 if path.is_dir() else 0o666) & ~umask, path


def test_a_private_file_never_is_anything_else(tmp_path, umask):
    with whole_file(tmp_path / "secret", private=True) as file:
        assert mode(next(tmp_path.iterdir())) == 0o600
        file.write(b"secret")
    assert mode(tmp_path / "secret") == 0o600


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("there", [False, True])
def test_a_folder_appears_whole_and_the_first_stays_unless_it_is_replaced(tmp_path, replace, there):
    path = tmp_path / "home" / "made"
    with whole_folder(path, replace=replace) as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "file").write_text("second")
        assert not path.exists() and folder.parent == path.parent
        if there:
            path.mkdir()
            (path / "first").touch()
    kept = {"first"} if there and not replace else {"inner", "inner/file"}
    assert {str(found.relative_to(path)) for found in path.rglob("*")} == kept
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("replace", [False, True])
def test_a_folder_that_fails_leaves_what_was_there(tmp_path, replace):
    path = tmp_path / "made"
    path.mkdir()
    with pytest.raises(KeyError), whole_folder(path, replace=replace) as folder:
        (folder / "file").touch()
        raise KeyError
    assert list(tmp_path.rglob("*")) == [path]


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


@pytest.mark.parametrize("damage", ["[1]", "3", "null", "[" * 100_000, "\0", None])
def test_a_record_that_is_no_object_or_no_file(tmp_path, damage):
    path = tmp_path / "result.json"
    if damage is None:
        path.mkdir()
    else:
        path.write_text(damage)
    with pytest.raises(UserError, match=str(path)):
        read_json(path)


@pytest.mark.parametrize("name", ["queue.db", "store.json", "runs", "coordinator.lock"])
def test_a_folder_in_place_of_a_file_and_a_file_in_place_of_a_folder(tmp_path, name):
    odd = Store.open(tmp_path / "store").root / name
    if odd.is_dir():
        odd.rmdir()
        odd.touch()
    else:
        odd.unlink(missing_ok=True)
        odd.mkdir()
    with pytest.raises(UserError, match=str(odd)):
        store = Store.open(tmp_path / "store")
        with store.coordinator_lock():
            Queue(store.queue_db)


@pytest.mark.parametrize("create", [True, False])
def test_an_empty_file_is_no_queue(tmp_path, create):
    (tmp_path / "queue.db").touch()
    with pytest.raises(UserError, match="is damaged: it is empty"):
        Queue(tmp_path / "queue.db", create=create)


@pytest.mark.process
def test_a_childs_environment_does_not_stay_in_the_store(tmp_path):
    write = "import os; open('said', 'w').write(os.environ['TOKEN'])"
    launch = Launch([sys.executable, "-c", write], {"TOKEN": "s3cret"}, tmp_path / "log.txt", Slot("cpu.0", "cpu"))
    cluster = Cluster()
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(tmp_path)
        cluster.start(launch)
    assert "s3cret" in (tmp_path / LAUNCH).read_text()
    assert Keeper(tmp_path).wait() == 0
    assert (tmp_path / "said").read_text() == "s3cret"
    assert not [path for path in tmp_path.iterdir() if path.name != "said" and "s3cret" in path.read_text()]


@pytest.mark.parametrize("name", ["--user=me", "-u", "", "1; true", "1 2"])
def test_a_child_of_a_name_that_is_an_option_is_nobodys(tmp_path, name, monkeypatch):
    cluster = Cluster()
    monkeypatch.setattr(cluster, "_holds", lambda _: True)
    assert cluster.adopt({"engine": "none", "id": name, "folder": str(tmp_path)}) is None
    assert cluster.adopt({"engine": "none", "id": "4711_3", "folder": str(tmp_path)}) is not None


def test_rows_of_a_run_are_kept_in_the_order_of_their_queueing(tmp_path):
    store, run_id = Store.open(tmp_path / "store"), "a" * 16
    first, second = (TableRow(("study", "demo", "builtin", key, "A"), {"dev": "1" * 16}) for key in ("base", "greedy"))
    described = store.run_folder(run_id) / "config.json"
    described.parent.mkdir(parents=True)
    write_json(described, {"config": {}, "row": asdict(first)})
    keep_row(store, run_id, first)
    assert rows_of(store, run_id) == [first] and [path.name for path in described.parent.iterdir()] == ["config.json"]
    keep_row(store, run_id, second)
    moved = TableRow((*first.member[:4], "B"), {"test": "2" * 16}, {"evaluation.beam_size": 1})
    keep_row(store, run_id, moved)
    assert rows_of(store, run_id) == [replace(moved, evaluations={"dev": "1" * 16, "test": "2" * 16}), second]
    (described.parent / "rows.json").write_text("{}")  # damaged
    assert rows_of(store, run_id) == [first]
