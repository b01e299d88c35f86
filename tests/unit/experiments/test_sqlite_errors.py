"""SQLite's errors become messages that tell the user what to do. Other errors are not changed."""

import sqlite3

import pytest

from experiments.errors import DiskFull, UserError
from experiments.jobs.queue.sqlite_errors import explain


def told(path, error, **more):
    """Return the message that replaces an error."""
    with pytest.raises(UserError) as found, explain(path, **more):
        raise error
    assert found.value.__cause__ is error
    return found.value


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("attempt to write a readonly database", "cannot be written"),
        ("disk I/O error", "The disk failed"),
        ("file is not a database", "is not the queue, because it is not an SQLite file"),
        ("database is locked", "stayed locked by another process"),
        ("database disk image is malformed", "is damaged, or of another version"),
        ("no such table: jobs", "is damaged, or of another version"),
        ("no such column: x", "is damaged, or of another version"),
        ("table jobs has no column named x", "is damaged, or of another version"),
        ("Could not decode to UTF-8", "is damaged, or of another version"),
        ("unsupported file format", "is damaged, or of another version"),
    ],
)
def test_each_error_says_what_it_means_and_names_the_file(tmp_path, message, words):
    found = told(tmp_path / "queue.db", sqlite3.OperationalError(message))
    assert words in str(found) and str(tmp_path / "queue.db") in str(found) and not isinstance(found, DiskFull)
    other = told(tmp_path / "m.db", sqlite3.OperationalError(message), what="MLflow's database", again="Do it again.")
    assert "ablations queue" not in str(other)


def test_a_full_disk_is_an_error_of_its_own(tmp_path):
    found = told(tmp_path / "queue.db", sqlite3.OperationalError("database or disk is full"))
    assert isinstance(found, DiskFull) and "no space left" in str(found)


@pytest.mark.parametrize(
    ("there", "writable", "inodes", "words"),
    [
        (False, True, 5, "cannot be opened"),
        (True, False, 5, "cannot be written"),  # a journal cannot be made beside it
        (True, True, 0, "no inode"),
        (True, True, 5, "cannot be opened"),
        (False, False, 0, "no inode"),
    ],
)
def test_behind_a_file_that_cannot_be_opened_is_another_cause(tmp_path, monkeypatch, there, writable, inodes, words):
    path = tmp_path / "queue.db"
    if there:
        path.write_text("")
    monkeypatch.setattr("os.access", lambda *_: writable)
    monkeypatch.setattr("os.statvfs", lambda *_: type("Disk", (), {"f_files": 9, "f_favail": inodes}))
    assert words in str(told(path, sqlite3.OperationalError("unable to open database file")))


def test_a_disk_that_counts_no_inodes_and_a_folder_in_place_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr("os.statvfs", lambda *_: type("Disk", (), {"f_files": 0, "f_favail": 0}))
    error = sqlite3.OperationalError("unable to open database file")
    for path in (tmp_path / "queue.db", tmp_path, tmp_path / "missing" / "queue.db"):
        assert "cannot be opened" in str(told(path, error))


def test_errors_that_another_library_wraps_are_seen_through(tmp_path):
    wrapped = RuntimeError("(sqlite3.OperationalError) something")
    wrapped.__cause__ = ValueError("between")
    wrapped.__cause__.__cause__ = sqlite3.DatabaseError("file is not a database")
    assert "not an SQLite file" in str(told(tmp_path / "m.db", wrapped))
    schema = RuntimeError("Detected out-of-date database schema (found version a, but expected b)")
    assert "of another version" in str(told(tmp_path / "m.db", schema))
    assert "is damaged" in str(told(tmp_path / "m.db", UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid")))


@pytest.mark.parametrize(
    "error", [sqlite3.IntegrityError("UNIQUE constraint failed"), ValueError("malformed"), KeyError(1)]
)
def test_other_errors_pass_as_they_are(tmp_path, error):
    with pytest.raises(type(error)) as found, explain(tmp_path / "queue.db"):
        raise error
    assert found.value is error
    mine = UserError("said already")
    with pytest.raises(UserError) as said, explain(tmp_path / "queue.db"):
        raise mine
    assert said.value is mine
