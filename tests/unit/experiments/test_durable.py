"""Files and folders are written completely or not at all, whenever the writer is killed."""

import fcntl
import os
import re
import stat
from pathlib import Path

import pytest

from experiments.store import durable


class Killed(BaseException):
    """An exception that `except Exception` does not catch."""


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("there", [None, b"old"])
def test_a_file_is_the_old_or_the_new_one_wherever_its_writer_ends(tmp_path, monkeypatch, call, there):
    path = tmp_path / "record.json"
    if there is not None:
        path.write_bytes(there)

    def ends(*_, **__):
        raise Killed

    monkeypatch.setattr(*((os, "fsync", ends) if call == "fsync" else (Path, "replace", ends)))
    with pytest.raises(Killed):
        durable.write_bytes(path, b"new")
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ([] if there is None else [path.name])
    assert there is None or path.read_bytes() == there
    durable.write_bytes(path, b"new")
    assert path.read_bytes() == b"new" and len(list(tmp_path.iterdir())) == 1


def test_a_file_is_on_the_disk_before_it_has_its_name_and_its_name_afterwards(tmp_path, monkeypatch):
    """Without this order, a power cut may leave an empty file of that name."""
    seen, fsync, replace = [], os.fsync, Path.replace
    monkeypatch.setattr(
        os, "fsync", lambda handle: (seen.append(stat.S_ISDIR(os.fstat(handle).st_mode)), fsync(handle))
    )
    monkeypatch.setattr(Path, "replace", lambda path, to: (seen.append("named"), replace(path, to))[1])
    durable.write_bytes(tmp_path / "a", b"x")
    assert seen == [False, "named", True]
    seen.clear()
    monkeypatch.setattr(Path, "rename", lambda path, to: (seen.append("named"), replace(path, to))[1])
    with durable.whole_folder(tmp_path / "f") as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "x").write_text("1")
    named = seen.index("named")
    assert seen[:named].count(False) == 1 and seen[:named].count(True) == 2, "the file, and both folders"
    assert seen[-1] is True and len(seen) > named + 1


def test_a_temporary_name_is_new_each_time_and_hidden(tmp_path):
    names = set()
    for _ in range(3):
        with durable.folder_beside(tmp_path, ".x.", durable.PARTIAL) as folder:
            names.add(folder.name)
            assert folder.is_dir() and re.fullmatch(r"\.x\.[0-9a-f]{16}\.partial", folder.name)
    assert len(names) == 3 and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("links", [True, False], ids=["hard links", "a disk without hard links"])
def test_the_first_file_of_a_name_is_kept(tmp_path, monkeypatch, links):
    if not links:
        monkeypatch.setattr(Path, "hardlink_to", _no_links)
    one, other, name = tmp_path / "one", tmp_path / "other", tmp_path / "name"
    one.write_text("1"), other.write_text("2")
    durable.name_new(one, name)
    durable.name_new(other, name)
    assert name.read_text() == "1" and other.read_text() == "2"
    durable.link(name, tmp_path / "third")
    assert (tmp_path / "third").read_text() == "1"
    assert ((tmp_path / "third").stat().st_ino == name.stat().st_ino) is links


def _no_links(*_):
    raise PermissionError(1, "Operation not permitted")


def test_what_a_killed_maker_left_goes_before_the_next_makes_it(tmp_path):
    """Its own unfinished folders, beside and within; not those of other names."""
    for name in (".corpus.1.partial", "corpus/.shard.2.partial", ".other.3.partial", ".corpus.4"):
        (tmp_path / name).mkdir(parents=True)
    with durable.locked(tmp_path, "corpus"):
        left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert left == {"corpus", ".other.3.partial", ".corpus.4", "corpus.lock"}


def test_without_locks_the_first_who_is_ready_makes_it(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", none)
    made = []
    for number in (1, 2):
        durable.make_once(tmp_path / "f", lambda folder, n=number: (made.append(n), (folder / "x").write_text(str(n))))
    assert made == [1] and (tmp_path / "f" / "x").read_text() == "1"
    with durable.whole_folder(tmp_path / "f") as folder:
        (folder / "x").write_text("3")
    assert (tmp_path / "f" / "x").read_text() == "1", "the first stays"


def test_only_files_that_can_be_read_without_harm_are_listed(tmp_path):
    (tmp_path / "b").mkdir()
    for name in ("z", "a", "b/c"):
        (tmp_path / name).write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    os.mkfifo(tmp_path / "pipe")
    assert [str(path.relative_to(tmp_path)) for path in durable.regular_files(tmp_path)] == ["a", "z", "b/c"]
    durable.fsync_tree(tmp_path)


def test_a_discarded_folder_never_looks_complete(tmp_path, monkeypatch):
    (tmp_path / "f").mkdir()
    monkeypatch.setattr(durable, "remove_folder", lambda folder: None)  # killed in the middle
    durable.discard(tmp_path / "f")
    assert [path.name for path in tmp_path.iterdir()] == [".f.partial"]
