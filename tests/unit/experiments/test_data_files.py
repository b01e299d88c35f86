"""Tests of lines and fingerprints of data files, and of messages for unusable files."""

import gzip
import os
import shutil
from pathlib import Path

import pytest

from experiments.data.corpora import files
from experiments.data.corpora.files import FileFacts, Fingerprints, inspect, read_lines
from experiments.errors import UserError


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("name", ["a.en", "a.en.gz"])
def test_lines_end_at_newlines_only(tmp_path: Path, name: str) -> None:
    odd = "one\u2028two\x85three\x0bfour\x0cfive\x1csix\rseven"
    path = write(tmp_path / name, f"\ufeff{odd}\nwindows\r\n\nlast".encode())
    assert list(read_lines(path)) == [odd, "windows", "", "last"]
    assert inspect(path).lines == 4


def test_a_file_and_its_gzip_are_one_content(tmp_path: Path) -> None:
    text = b"eins\nzwei\n"
    assert inspect(write(tmp_path / "a.de", text)) == inspect(write(tmp_path / "a.de.gz", text))
    assert inspect(tmp_path / "a.de").lines == 2


@pytest.mark.parametrize("block", [1, 2, 3, 1 << 20])
def test_a_byte_that_is_not_utf8_is_named_by_file_and_line(
    tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BLOCK", block)  # lines and characters cut anywhere
    path = write(tmp_path / "train.de", "Größe\nÄpfel 漢字\n".encode() + "Käse\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"train\.de, line 3: not UTF-8 \(byte 0xe4\)"):
        inspect(path)
    with pytest.raises(UserError, match=r"train\.de, line 3: not UTF-8"):
        list(read_lines(path))


def test_a_character_cut_off_at_the_end_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.en, line 2: not UTF-8"):
        inspect(write(tmp_path / "a.en", "x\nä".encode()[:-1]))


def test_empty_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"empty\.en is empty"):
        inspect(write(tmp_path / "empty.en", b""))
    with pytest.raises(UserError, match=r"none\.en does not exist"):
        list(read_lines(tmp_path / "none.en"))
    whole = gzip.compress(b"line\n" * 1000)
    (tmp_path / "cut.en.gz").write_bytes(whole[:-12])
    with pytest.raises(UserError, match=r"cut\.en\.gz cannot be unpacked"):
        inspect(tmp_path / "cut.en.gz")
    (tmp_path / "plain.en.gz").write_bytes(b"line\n")
    with pytest.raises(UserError, match=r"plain\.en\.gz cannot be unpacked"):
        inspect(tmp_path / "plain.en.gz")
    with pytest.raises(UserError, match="cannot be read"):
        inspect(tmp_path)


def old_file(path: Path) -> Path:
    path.write_bytes(b"one\ntwo\n")
    os.utime(path, (1_500_000_000, 1_500_000_000))
    return path


def test_a_known_file_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "RECENT_S", -1.0)
    path = old_file(tmp_path / "a.en")
    with Fingerprints(tmp_path) as first:
        facts = first.facts(path)
    monkeypatch.setattr(files, "_seen", {})  # as in another process
    monkeypatch.setattr(files, "inspect", lambda path: pytest.fail("read again"))
    assert Fingerprints(tmp_path).facts(path) == facts == FileFacts(facts.sha256, 2)
    assert str(tmp_path) not in (tmp_path / "fingerprints.json").read_text()


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = old_file(tmp_path / "a.en")
    known = Fingerprints(tmp_path)
    before = known.facts(path)
    path.write_bytes(b"one\nTWO\n")  # as long as before, changed later
    assert known.facts(path) != before


@pytest.mark.parametrize("fresh_process", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
def test_other_content_of_the_same_size_and_time_is_seen(
    tmp_path: Path, in_place: bool, fresh_process: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "RECENT_S", -1.0)
    path, other = old_file(tmp_path / "a.en"), tmp_path / "other.en"
    with Fingerprints(tmp_path) as known:
        known.facts(path)
    other.write_bytes(b"one\nTWO\n")
    if in_place:
        path.write_bytes(other.read_bytes())
    else:
        shutil.copy2(other, tmp_path / "copy")  # as `cp -p` and a rename
        (tmp_path / "copy").replace(path)
    os.utime(path, (1_500_000_000, 1_500_000_000))
    if fresh_process:
        monkeypatch.setattr(files, "_seen", {})
    assert Fingerprints(tmp_path).facts(path) == inspect(other)


@pytest.mark.parametrize("name", ["a.en", "a.en.gz"])
def test_lines_of_other_content_than_expected_are_refused_at_their_end(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, "eins\nzwei \u2028\n".encode() * 5000)
    sha256 = inspect(path).sha256
    assert list(read_lines(path, sha256)) == list(read_lines(path))
    write(path, "eins\nzwei \u2028\n".encode() * 5000 + b"drei")
    found = []
    with pytest.raises(UserError, match=f"{name} was changed after it was hashed"):
        for line in read_lines(path, sha256):
            found.append(line)
    assert found[-1] == "drei"


def test_a_file_changed_just_now_is_not_remembered_on_disk(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_bytes(b"one\n")
    with Fingerprints(tmp_path) as known:
        known.facts(tmp_path / "a.en")
    assert not (tmp_path / "fingerprints.json").exists()


@pytest.mark.parametrize("damage", ["{", "[]", ""])
def test_a_damaged_memory_is_forgotten(tmp_path: Path, damage: str) -> None:
    (tmp_path / "fingerprints.json").write_text(damage)
    assert Fingerprints(tmp_path).facts(old_file(tmp_path / "a.en")).lines == 2


def test_without_a_folder_nothing_is_kept(tmp_path: Path) -> None:
    path = old_file(tmp_path / "a.en")
    for known in (Fingerprints(None), Fingerprints(tmp_path / "missing")):
        with known:
            assert known.facts(path).lines == 2
    assert sorted(tmp_path.iterdir()) == [path]
