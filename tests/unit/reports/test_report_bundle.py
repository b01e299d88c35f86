"""Bundles of others are not trusted: nothing is written elsewhere, nothing altered is read."""

import io
import json
import tarfile

import pytest

from ablations.plan_file import plan_from_json, plan_to_json
from experiments.config import RunConfig
from experiments.errors import UserError
from experiments.exchange import runs_in, take_over
from experiments.store import Store
from reports.bundle import read_bundle, write_bundle

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


@pytest.mark.parametrize(
    "name",
    [
        "../evil",
        "/etc/evil",
        "runs/../../evil",
        f"runs/{from_hex}/attempts/0001/../../x",
        "queue.db",
        "runs/x/result.json",
    ],
)
def test_no_file_leaves_the_folder(tmp_path, name):
    head = json.dumps({"bundle": 1, "files": {name: ""}}).encode()
    path = archive(tmp_path / "b.tar.gz", {"bundle.json": head, name: b"x"})
    (tmp_path / "in").mkdir()
    with pytest.raises(UserError, match="no place in a bundle"):
        read_bundle(path, tmp_path / "in")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b.tar.gz", "in"]
    assert not list((tmp_path / "in").iterdir())


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE])
def test_links_and_devices_are_refused(tmp_path, kind):
    name = f"runs/{from_hex}/result.json"
    head = json.dumps({"bundle": 1, "files": {name: ""}}).encode()
    with pytest.raises(UserError, match="no place"):
        read_bundle(archive(tmp_path / "b.tar.gz", {"bundle.json": head, name: b"x"}, kind), tmp_path / "in")


def test_altered_missing_and_foreign_archives_are_named(tmp_path):
    name = f"runs/{from_hex}/result.json"
    head = json.dumps({"bundle": 1, "files": {name: "0" * 64}}).encode()
    with pytest.raises(UserError, match="not the file that was packed"):
        read_bundle(archive(tmp_path / "b.tar.gz", {"bundle.json": head, name: b"x"}), tmp_path / "1")
    with pytest.raises(UserError, match="1 files are missing"):
        read_bundle(archive(tmp_path / "c.tar.gz", {"bundle.json": head}), tmp_path / "2")
    with pytest.raises(UserError, match="version 9"):
        read_bundle(archive(tmp_path / "d.tar.gz", {"bundle.json": b'{"bundle": 9}'}), tmp_path / "3")
    (tmp_path / "e.tar.gz").write_bytes(b"no archive")
    for path in (tmp_path / "e.tar.gz", tmp_path / "none.tar.gz"):
        with pytest.raises(UserError, match="no bundle"):
            read_bundle(path, tmp_path / "4")


def test_a_plan_survives_json(bench):
    bench.study["columns"] = {"model.num_heads": "h", "model.d_k": "d_k"}
    bench.row("base", paper={"bleu": 25.8}).row("B", {"model.num_heads": 4}, group="G", label="four", note="a note")
    plan = bench.plan()
    again = plan_from_json(json.loads(json.dumps(plan_to_json(plan))), RunConfig)
    assert again.runs == plan.runs and again.rows == plan.rows
    assert again.study.model_dump() == plan.study.model_dump()
    assert list(again.study.columns) == list(plan.study.columns)  # the table's columns keep their order


def test_an_unfinished_table_is_not_packed(bench, tmp_path):
    bench.row("base", results=[None])
    with pytest.raises(UserError, match=r"base \(seed 1\)"):
        write_bundle(tmp_path / "b.tar.gz", bench.plan(), Store(tmp_path), (), ())
    assert not list(tmp_path.iterdir())


def make_run(store, run_id, loss, evaluations=("a" * 16,)):
    attempt, folder = store.new_attempt(run_id)
    (folder / "final").mkdir()
    (folder / "final" / "model.safetensors").write_bytes(b"weights")
    (folder / "events.jsonl").write_text("{}\n")
    for path in (folder, store.run_folder(run_id)):
        (path / "result.json").write_text(json.dumps({"attempt": attempt, "loss": loss}))
    for eval_id in evaluations:
        place = store.evaluation_folder(run_id, eval_id)
        place.mkdir(parents=True)
        (place / "result.json").write_text(json.dumps({"metrics": {"bleu": loss}}))


def test_identities_decide_what_is_the_same(tmp_path):
    mine, theirs = (Store.open(tmp_path / name) for name in ("mine", "theirs"))
    same, other, new = ("1" * 16, "2" * 16, "3" * 16)
    make_run(mine, same, 1.0), make_run(theirs, same, 1.0, ("a" * 16, "b" * 16))
    make_run(mine, other, 1.0), make_run(theirs, other, 2.0)
    mine.new_attempt(new)  # begun here, not finished
    make_run(theirs, new, 3.0)
    taken = {item.run_id: item for item in take_over(theirs, mine, runs_in(theirs))}
    assert {key: (item.how, item.evaluations) for key, item in taken.items()} == {
        same: ("had", 1), other: ("other", 0), new: ("taken", 1),
    }  # fmt: skip
    assert mine.result(other)["loss"] == 1.0
    assert mine.result(new)["attempt"] == 2
    assert mine.evaluation(new, "a" * 16)["weights_attempt"] == 2
    assert (mine.attempt_folder(new, 2) / "final" / "model.safetensors").is_file()
    assert [item.how for item in take_over(theirs, mine, [new])] == ["had"]
