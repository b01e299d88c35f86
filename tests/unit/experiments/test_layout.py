"""Tests of a store's folders: which folders are stores, which are refused, and the names of their content."""

import json

import pytest

from experiments.errors import Damaged, UserError
from experiments.run_spec import RunSpec, TrainerSpec
from experiments.store.checksummed import write_json
from experiments.store.layout import CONFIG, ROWS, Store, TableRow, keep_row, rows_of


@pytest.mark.parametrize("content", ["", "{", "[]", '{"versions": 1}', "[" * 100_000])
def test_a_marker_that_is_damaged_is_no_store_of_another_version(tmp_path, content):
    Store.open(tmp_path / "s")
    (tmp_path / "s" / "store.json").write_text(content)
    with pytest.raises(UserError, match="is damaged"):
        Store.open(tmp_path / "s")


def test_a_store_of_another_version_and_one_that_cannot_be_read(tmp_path):
    Store.open(tmp_path / "s")
    marker = tmp_path / "s" / "store.json"
    write_json(marker, {"version": json.loads(marker.read_text())["version"] + 1})
    with pytest.raises(UserError, match="written by another version"):
        Store.open(tmp_path / "s")
    marker.unlink(), marker.mkdir()
    with pytest.raises(UserError, match="cannot be read"):
        Store.open(tmp_path / "s")


def test_a_folder_with_other_files_does_not_become_a_store(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / ".store.json.0.partial").write_text("")  # of a process that makes one at this moment
    Store.open(tmp_path / "mine")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "notes.txt").write_text("")
    with pytest.raises(UserError, match="neither empty nor a store"):
        Store.open(tmp_path / "theirs")
    with pytest.raises(UserError, match="is a file"):
        Store.open(tmp_path / "theirs" / "notes.txt")
    assert [path.name for path in (tmp_path / "theirs").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("name", ["", "a" * 15, "a" * 17, "A" * 16, "../" + "a" * 13, "g" * 16, "a" * 16 + "\n"])
def test_only_identities_become_folders(tmp_path, name):
    store = Store.open(tmp_path / "s")
    with pytest.raises(ValueError, match="not an identity"):
        store.run_folder(name)
    with pytest.raises(ValueError, match="not an identity"):
        store.evaluation_folder("a" * 16, name)


def test_attempts_are_counted_from_the_last_one_and_other_folders_are_none(tmp_path):
    store, run_id = Store.open(tmp_path / "s"), "a" * 16
    assert store.attempts(run_id) == [] and store.run_ids() == []
    assert [store.new_attempt(run_id)[0] for _ in range(3)] == [1, 2, 3]
    (store.attempt_folder(run_id, 2)).rmdir()
    (store.attempt_folder(run_id, 1).parent / "x0007").mkdir()
    assert store.new_attempt(run_id) == (4, store.attempt_folder(run_id, 4)) and store.attempts(run_id) == [1, 3, 4]
    (store.runs / "other").mkdir()
    assert store.run_ids() == [run_id] and store.weights_folder(run_id) is None
    write_json(store.run_folder(run_id) / "result.json", {"run_id": run_id, "attempt": 3})
    assert store.weights_folder(run_id) == store.attempt_folder(run_id, 3)
    write_json(store.run_folder(run_id) / "result.json", {"run_id": run_id})
    with pytest.raises(Damaged, match="names no attempt"):
        store.result(run_id)


def test_who_makes_the_next_attempt_at_the_same_moment_gets_another_number(tmp_path, monkeypatch):
    store, run_id = Store.open(tmp_path / "s"), "a" * 16
    store.new_attempt(run_id)
    monkeypatch.setattr(Store, "attempts", lambda self, run_id: [])  # as seen before the other one made its folder
    assert store.new_attempt(run_id)[0] == 2


def test_a_row_has_its_trees_apart_from_its_settings_also_one_of_version_0_1_0(tmp_path):
    store, run_id = Store.open(tmp_path / "s"), "a" * 16
    store.run_folder(run_id).mkdir(parents=True)
    spec = RunSpec(run_id, {"task": "command", "seed": 1, "lr": 0.1}, {}, trainer=TrainerSpec("train {lr}"))
    write_json(store.run_folder(run_id) / CONFIG, spec.to_json())
    old = {"lr": 0.2, "command": "train --lr {lr}", "code_tree": "b" * 40, "code_base": "c" * 40, "code_lines": 3}
    member = ["study", "exact", "", "low", ""]
    row = {"member": member, "evaluations": {"dev": "e" * 16}, "settings": old}
    write_json(store.run_folder(run_id) / ROWS, {"rows": [row]})
    converted = TableRow(tuple(member), {"dev": "e" * 16}, {"lr": 0.2}, ("b" * 40, "c" * 40))
    assert rows_of(store, run_id) == [converted]
    new = TableRow(("study", "exact", "", "high", ""), {}, {"lr": 0.3, "code_tree": "a setting of this name"})
    keep_row(store, run_id, new)
    assert rows_of(store, run_id) == [converted, new]
