"""Bundles from elsewhere are not trusted: nothing is written outside the folder, nothing altered is read."""

import gzip
import hashlib
import io
import json
import os
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from ablations.extras.bundles.archive import Packed, parsed
from ablations.extras.bundles.plan_file import plan_from_json, plan_to_json
from ablations.extras.bundles.read import VERSION, column_to_json, columns_of, read_bundle
from ablations.extras.bundles.write import write_bundle
from ablations.study.study import Study
from experiments.errors import UserError
from experiments.exchange.import_runs import files_of, import_runs, runs_in
from experiments.exchange.redaction import NOTHING
from experiments.store.checksummed import with_checksum, write_json
from experiments.store.layout import Store
from experiments.tasks.translation import PERPLEXITY, TASK

from_hex = "0123456789abcdef"


def archive(path, files, kind=None):
    with tarfile.open(path, "w:gz") as out:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            if kind and name != "bundle.json":
                entry.type, entry.linkname, entry.size = kind, "/etc/passwd", 0
            out.addfile(entry, io.BytesIO(data))
    return path


def unpack(path, folder):
    with path.open("rb") as file:
        packed = Packed(file)
        packed.unpack(packed.head["files"], folder)


def said(data, **more):
    return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data), **more}


def head(files, **more):
    return json.dumps(with_checksum({"bundle": VERSION, "files": files, **more})).encode()


NAME = f"runs/{from_hex}/attempts/0001/log.txt"


@pytest.mark.parametrize(
    "name",
    [
        "../evil",
        "/etc/evil",
        "runs/../../evil",
        f"runs/{from_hex}/attempts/0001/../../x",
        f"runs/{from_hex}/attempts/0001/..",
        f"runs/{from_hex}/attempts/0001/.hidden",
        "queue.db",
        "runs/x/result.json",
    ],
)
def test_no_file_leaves_the_folder(tmp_path, name):
    path = archive(tmp_path / "b.tar.gz", {"bundle.json": head({name: said(b"x")}), name: b"x"})
    with pytest.raises(ValueError, match="cannot be in a bundle"):
        unpack(path, tmp_path / "in")
    with pytest.raises(UserError, match="not a bundle"):
        read_bundle(path, tmp_path / "in")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b.tar.gz", "in"]
    assert not list((tmp_path / "in").iterdir())


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE])
def test_links_and_devices_are_refused(tmp_path, kind):
    path = archive(tmp_path / "b.tar.gz", {"bundle.json": head({NAME: said(b"")}), NAME: b"x"}, kind)
    with pytest.raises(ValueError, match="cannot be in a bundle"):
        unpack(path, tmp_path / "in")


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "b.tar.gz")
    with pytest.raises(UserError, match="not a regular file"):
        read_bundle(tmp_path / "b.tar.gz", tmp_path / "in")


def test_altered_missing_doubled_and_foreign_archives_are_named(tmp_path):
    def refused(error, words, files, manifest):
        path = archive(tmp_path / "b.tar.gz", {"bundle.json": head(manifest), **files})
        with pytest.raises(error, match=words):
            unpack(path, tmp_path / words.replace(" ", "-"))

    refused(UserError, "not the file that was packed", {NAME: b"y"}, {NAME: said(b"x")})
    refused(UserError, "not the file that was packed", {NAME: b"xy"}, {NAME: said(b"x")})
    refused(UserError, "1 file is missing", {}, {NAME: said(b"x")})
    refused(ValueError, "not in its manifest", {NAME: b"x", NAME + "2": b"x"}, {NAME: said(b"x")})
    (tmp_path / "e.tar.gz").write_bytes(b"no archive")
    for path in (tmp_path / "e.tar.gz", tmp_path / "none.tar.gz", tmp_path):
        with pytest.raises(UserError, match=r"not a bundle|cannot be read as a bundle"):
            read_bundle(path, tmp_path / "4")


def test_the_same_file_twice_is_refused(tmp_path):
    path = tmp_path / "b.tar.gz"
    with tarfile.open(path, "w:gz") as out:
        for name, data in (("bundle.json", head({NAME: said(b"x")})), (NAME, b"x"), (NAME, b"x")):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            out.addfile(entry, io.BytesIO(data))
    with pytest.raises(ValueError, match="there twice"):
        unpack(path, tmp_path / "in")


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        ({NAME: said(b"x", bytes=1 << 50)}, "claims to unpack to"),
        ({NAME: said(b"x", bytes=-1)}, "claims a size of -1"),
        ({NAME: said(b"x", bytes="1")}, "claims a size of '1'"),
        ({f"runs/{from_hex}/result.json": said(b"x", bytes=1 << 33)}, "claims a size"),
    ],
)
def test_what_an_archive_claims_is_read_before_it_is_unpacked(tmp_path, manifest, words):
    path = archive(tmp_path / "b.tar.gz", {"bundle.json": head(manifest), NAME: b"x"})
    with pytest.raises(ValueError, match=words):
        unpack(path, tmp_path / "in")
    assert not (tmp_path / "in").exists()


def test_more_than_the_disk_holds_is_said_before(tmp_path, monkeypatch):
    monkeypatch.setattr("ablations.extras.bundles.archive.shutil.disk_usage", lambda _: SimpleNamespace(free=10))
    path = archive(tmp_path / "b.tar.gz", {"bundle.json": head({NAME: said(b"x" * 11)}), NAME: b"x" * 11})
    with pytest.raises(UserError, match="GB free"):
        unpack(path, tmp_path / "in")


def test_an_extended_header_of_any_length_is_not_read(tmp_path):
    """tarfile reads such a header into memory as a whole, and a gigabyte of zeros is a packed megabyte."""
    path = tmp_path / "b.tar.gz"
    with gzip.open(path, "wb", compresslevel=9) as out:
        first = tarfile.TarInfo("bundle.json")
        first.type, first.size = tarfile.XHDTYPE, 1 << 32
        out.write(first.tobuf())
        for _ in range(64):
            out.write(bytes(1 << 20))
    with pytest.raises(ValueError, match="larger than any"):
        unpack(path, tmp_path / "in")


@pytest.mark.parametrize("depth", [70, 2_000, 100_000])
def test_depth_is_bounded(tmp_path, depth):
    deep = b'{"a": ' + b"[" * depth + b"]" * depth + b"}"
    name = f"runs/{from_hex}/result.json"
    with pytest.raises(ValueError, match="nested"):
        unpack(archive(tmp_path / "a.tar.gz", {"bundle.json": deep}), tmp_path / "1")
    with pytest.raises(ValueError, match="nested"):
        unpack(archive(tmp_path / "b.tar.gz", {"bundle.json": head({name: said(deep)}), name: deep}), tmp_path / "2")
    assert parsed(b'{"a": [[1]]}') == {"a": [[1]]}


def test_every_byte_is_checked_to_the_end(tmp_path):
    path = archive(tmp_path / "b.tar.gz", {"bundle.json": head({NAME: said(b"x")}), NAME: b"x"})
    unpack(path, tmp_path / "whole")
    data = path.read_bytes()
    (tmp_path / "c.tar.gz").write_bytes(data[:-6] + bytes([data[-6] ^ 1]) + data[-5:])  # in gzip's checksum, at its end
    with pytest.raises(OSError, match="CRC"):
        unpack(tmp_path / "c.tar.gz", tmp_path / "1")
    (tmp_path / "d.tar.gz").write_bytes(data + gzip.compress(b"more"))
    with pytest.raises(ValueError, match="data follows"):
        unpack(tmp_path / "d.tar.gz", tmp_path / "2")


def test_a_plan_survives_json(bench):
    bench.study["columns"] = {"model.num_heads": "h", "model.d_k": "d_k"}
    bench.row("base", paper={"bleu": 25.8}).row("B", {"model.num_heads": 4}, group="G", label="four", note="a note")
    plan = bench.plan()
    again = plan_from_json(json.loads(json.dumps(plan_to_json(plan))))
    assert again.runs == plan.runs and again.rows == plan.rows
    assert again.study.model_dump() == plan.study.model_dump()
    assert list(again.study.columns) == list(plan.study.columns)  # the table's columns keep their order


def test_a_plan_of_a_guarded_study_is_read(bench):
    """As earlier versions bundled it: each study had [guard], and runs the evaluations of sealed sets."""
    plan = bench.row("base").plan()
    written = json.loads(json.dumps(plan_to_json(plan)))
    written["study"]["guard"] = {"sealed": ["test"], "settings": [], "files": []}
    for run in written["runs"]:
        run["sealed"] = run["evaluations"][-1:]
    again = plan_from_json(written)
    assert again.runs == plan.runs and again.study.model_dump() == plan.study.model_dump()


def test_an_unfinished_table_is_not_packed(bench, tmp_path):
    bench.row("base", results=[None])
    with pytest.raises(UserError, match=r"base \(seed 1\)"):
        write_bundle(tmp_path / "b.tar.gz", bench.plan(), Store(tmp_path), (), (), NOTHING)
    assert not list(tmp_path.iterdir())


def make_run(store, run_id, loss, evaluations=("a" * 16,)):
    attempt, folder = store.new_attempt(run_id)
    (folder / "final").mkdir()
    (folder / "final" / "model.safetensors").write_bytes(b"weights")
    (folder / "events.jsonl").write_text("{}\n")
    for path in (folder, store.run_folder(run_id)):
        write_json(path / "result.json", {"attempt": attempt, "loss": loss})
    for eval_id in evaluations:
        place = store.evaluation_folder(run_id, eval_id)
        place.mkdir(parents=True)
        write_json(place / "result.json", {"metrics": {"bleu": loss}})


def test_identities_decide_what_is_the_same(tmp_path):
    mine, theirs = (Store.open(tmp_path / name) for name in ("mine", "theirs"))
    same, other, new = ("1" * 16, "2" * 16, "3" * 16)
    make_run(mine, same, 1.0), make_run(theirs, same, 1.0, ("a" * 16, "b" * 16))
    make_run(mine, other, 1.0), make_run(theirs, other, 2.0)
    mine.new_attempt(new)  # begun here, not finished
    make_run(theirs, new, 3.0)
    taken = {item.run_id: item for item in import_runs(theirs, mine, runs_in(theirs))}
    assert {key: (item.how, item.evaluations) for key, item in taken.items()} == {
        same: ("had", 1), other: ("other", 0), new: ("taken", 1),
    }  # fmt: skip
    assert mine.result(other).content["loss"] == 1.0
    assert mine.result(new).attempt == 2
    assert mine.evaluation(new, "a" * 16).weights_attempt == 2
    assert (mine.attempt_folder(new, 2) / "final" / "model.safetensors").is_file()
    assert [item.how for item in import_runs(theirs, mine, [new])] == ["had"]


def test_an_import_that_is_killed_and_repeated_copies_each_run_once(tmp_path, monkeypatch):
    """Killed in the middle of each file: no attempt is there twice, and none is half a file."""

    class Killed(BaseException):
        pass

    def files(store):
        found = (path for path in store.runs.rglob("*") if path.is_file())
        return {str(path.relative_to(store.root)): path.read_bytes() for path in found}

    theirs, undisturbed = Store.open(tmp_path / "theirs"), Store.open(tmp_path / "undisturbed")
    make_run(theirs, "1" * 16, 1.0, ("a" * 16, "b" * 16))
    (theirs.run_folder("1" * 16) / "config.json").write_text('{"run_id": "1"}')
    list(import_runs(theirs, undisturbed, runs_in(theirs)))
    whole_write, written = Path.write_bytes, os.fdopen
    for moment in range(100):
        count = iter(range(moment + 1))

        def opened(*given, count=count, **options):
            if next(count, None) is None:
                raise Killed
            return written(*given, **options)

        def copied(source, target, count=count):
            half = next(count, None) is None
            whole_write(Path(target), Path(source).read_bytes()[: 3 if half else None])
            if half:
                raise Killed

        mine = Store.open(tmp_path / f"mine{moment}")
        with monkeypatch.context() as patched:
            patched.setattr(os, "fdopen", opened)
            patched.setattr(shutil, "copyfile", copied)
            try:
                list(import_runs(theirs, mine, runs_in(theirs)))
            except Killed:
                pass
            else:
                break
        list(import_runs(theirs, mine, runs_in(theirs)))
        assert files(mine) == files(undisturbed), f"killed at its file {moment + 1}"
    assert moment > 5


@pytest.mark.parametrize("what", ["attempts/0001/events.jsonl", "attempts/0001/final/model.safetensors", "config.json"])
def test_links_out_of_a_store_are_not_followed(tmp_path, what):
    store, mine = Store.open(tmp_path / "theirs"), Store.open(tmp_path / "mine")
    make_run(store, "1" * 16, 1.0)
    (tmp_path / "secret").write_text("of the reader's")
    place = store.run_folder("1" * 16) / what
    place.unlink(missing_ok=True)
    place.symlink_to(tmp_path / "secret")
    with pytest.raises(UserError, match="leads out of the store"):
        files_of(store, "1" * 16, weights=True)
    with pytest.raises(UserError, match="leads out of the store"):
        list(import_runs(store, mine, runs_in(store)))
    assert mine.result("1" * 16) is None
    assert not [p for p in mine.root.rglob("*") if p.is_file() and "reader" in p.read_text(errors="replace")]


def test_a_folder_that_leads_out_is_not_followed_and_one_inside_is(tmp_path):
    store = Store.open(tmp_path / "theirs")
    make_run(store, "1" * 16, 1.0)
    attempts = store.run_folder("1" * 16) / "attempts"
    attempts.rename(store.root / "kept")
    attempts.symlink_to(store.root / "kept")
    assert any(path.name == "events.jsonl" for path in files_of(store, "1" * 16))
    (store.root / "kept").rename(tmp_path / "outside")
    attempts.unlink()
    attempts.symlink_to(tmp_path / "outside")
    with pytest.raises(UserError, match="leads out of the store"):
        files_of(store, "1" * 16)


def test_columns_are_compared_as_their_maker_compared_them():
    now = [column_to_json(column) for column in TASK.columns]
    theirs = Study.model_validate({"name": "s", "title": "", "task": "mine:TASK", "variation": [{"key": "base"}]})
    own = replace(PERPLEXITY, metric="nats", about="", counts=None)
    assert columns_of([column_to_json(own)], theirs) == (own,)
    plain = columns_of([{**each, "logarithmic": False} for each in now], theirs)
    assert not any(column.logarithmic or column.counts for column in plain)


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1, None])
def test_a_bundle_of_another_version_is_refused(tmp_path, version):
    path = archive(tmp_path / "b.tar.gz", {"bundle.json": head({}, bundle=version)})
    with pytest.raises(UserError, match=f"bundle of version {version}; this program reads {VERSION}"):
        read_bundle(path, tmp_path / "in")
