"""Tests of ensembles that real children evaluate, and of the notes about them."""

import shutil
from dataclasses import replace

import pytest

from experiments.dotted import flatten
from experiments.jobs.queue.queue import Queue
from experiments.store.checksummed import read_json, write_json
from experiments.store.layout import Store
from tests.unit.reports.real import Made, said, train, write

DECODED = "translations.txt"


def runs(made: Made) -> dict[str, str]:
    """Return run_ids by row, and by row and seed for an ensemble's members."""
    plan = made.chosen().plan
    return {run.row: run.run_id for run in plan.runs} | {f"{run.row}:{run.seed}": run.run_id for run in plan.members}


def decoded(made: Made, row: str) -> list[str]:
    outcome = made.rows()[row].outcomes[0]
    folders = [
        made.store / "runs" / outcome.run.run_id / "evaluations" / s.spec.eval_id for s in outcome.scored.values()
    ]
    return [(folder / DECODED).read_text() for folder in folders]


def test_an_ensemble_of_one_training_is_that_training(small):
    rows = small["ensembles"].rows()
    assert decoded(small["ensembles"], "alone") == decoded(small["ensembles"], "base")
    one, base = (rows[key].measures["ppl"].mean for key in ("alone", "base"))
    assert one == pytest.approx(base, rel=1e-6)
    assert rows["pair"].measures["ppl"].mean != pytest.approx(base, rel=1e-4)
    assert rows["alone"].outcomes[0].run.run_id != rows["base"].outcomes[0].run.run_id


def test_parameters_and_training_cost_are_those_of_all_members(small):
    made = small["ensembles"]
    store, named = Store.open(made.store), runs(made)
    one, two = (store.result(named[name]) for name in ("base", "base:2"))
    pair = made.rows()["pair"]
    record = pair.outcomes[0].record
    assert named["base"] == named["base:1"] and pair.num_params == one.num_params + two.num_params == record.num_params
    assert record.flops == one.flops + two.flops and record.target_tokens == one.target_tokens + two.target_tokens
    assert record.train_s == pytest.approx(one.train_s + two.train_s, abs=2e-3)
    assert (record.device, record.precision, record.step) == (one.device, one.precision, one.step)
    assert [member.seed for member in record.ensemble] == [
        store.result(member.run_id).config["seed"] for member in record.ensemble
    ]


def test_members_are_the_rows_own_runs_and_trained_once(small):
    """Also those of another study in the store; two rows of the same members are one run, decoded twice."""
    made, named = small["ensembles"], runs(small["ensembles"])
    assert named["base"] == small["translation"].rows()["base"].outcomes[0].run.run_id
    assert named["pair"] == named["greedy"] != named["alone"]
    store = Store.open(made.store)
    assert all(store.attempts(run_id) == [1] for run_id in named.values())
    assert decoded(made, "greedy") != decoded(made, "pair")
    assert not list((made.store / "runs" / named["base:2"]).glob("evaluations/*"))


def test_it_is_one_entry_without_a_seed(small):
    made = small["ensembles"]
    table = made.table(seeds=2)
    assert [len(row.outcomes) for row in table.rows] == [2, 1, 1, 1]
    assert said(table, "n = 2 seeds.")
    assert said(table, "pair: ensemble of base, seeds 1, 2", "is one entry and has no seed")
    assert said(table, "alone: ensemble of base, seed 1,")
    assert not said(table, "seed 0")


@pytest.fixture
def copy(small, tmp_path) -> Made:
    return small["ensembles"].copied(tmp_path / "copy")


@pytest.mark.process
def test_without_a_member_there_is_no_number_and_a_note_names_it(copy):
    before = copy.table()
    shutil.rmtree(copy.store / "runs" / runs(copy)["base:2"])
    rows, table = copy.rows(), copy.table()
    assert {key: row.measures["ppl"].mean is None for key, row in rows.items()} == {
        "base": False, "alone": False, "pair": True, "greedy": True,
    }  # fmt: skip
    assert rows["pair"].measures["ppl"].missing and rows["pair"].state == "missing"
    assert said(table, "pair has no number", "base (seed 2) is not trained")
    assert not said(table, "alone has no number")
    copy.run()
    assert [row.measures for row in copy.table().rows] == [row.measures for row in before.rows]
    assert not said(copy.table(), "has no number")


@pytest.mark.process
def test_a_member_that_did_not_finish_fails_the_ensemble_and_is_named(copy):
    named = runs(copy)
    for name in ("base:2", "pair"):
        shutil.rmtree(copy.store / "runs" / named[name])
    copy.queue()
    with Queue(copy.store / "queue.db") as queue:
        assert {row.doing for row in queue.status() if row.run_id == named["pair"]} == {"waits for its members"}
        assert queue.cancel([named["base:2"]]) == 1
    train(copy.store)
    with Queue(copy.store / "queue.db") as queue:
        (failed,) = [row for row in queue.status() if row.state.value == "failed"]
    assert failed.run_id == named["pair"] and "seed 2" in failed.error and "is not trained" in failed.error
    assert copy.rows()["pair"].state == "failed" and copy.rows()["pair"].measures["ppl"].mean is None
    assert said(copy.table(), "pair has no number", "base (seed 2)")
    copy.run()
    assert copy.rows()["pair"].state == "finished" and not said(copy.table(), "has no number")


@pytest.mark.process
def test_members_that_kept_too_few_checkpoints_are_trained_again(copy):
    """The members' own scores stay, because the weights are identical."""
    about = """
name = "averages"
title = "Averages together"
extends = "small.toml"

[base]
training.checkpoint_steps = 2

[[variation]]
key = "base"

[[variation]]
key = "mean"
ensemble = {of = "base", seeds = [1, 2]}
set = {evaluation.checkpoint = "average:3", training.keep_checkpoints = 3}
"""
    before, named = copy.rows()["base"].measures, runs(copy)
    write(copy.study.parent, {"averages.toml": about})
    averages = replace(copy, study=copy.study.parent / "averages.toml")
    assert {run.seed: run.state for run in averages.chosen().plan.members} == {1: "missing", 2: "missing"}
    averages.run()
    store = Store.open(copy.store)
    assert [store.result(named[name]).attempt for name in ("base:1", "base:2")] == [2, 2]
    rows = averages.rows()
    assert rows["mean"].state == "finished" and rows["mean"].measures["ppl"].mean is not None
    assert copy.rows()["base"].measures == before


def test_other_weights_of_a_member_are_noticed(copy):
    """A member trained again, elsewhere or by other code: the ensemble's number is marked as made before."""
    named = runs(copy)
    meta = copy.store / "runs" / named["base:2"] / "attempts" / "0001" / "final" / "meta.json"
    files = read_json(meta)
    files["files"] = {name: {**about, "sha256": "0" * 64} for name, about in files["files"].items()}
    write_json(meta, files)
    assert {key: row.stale for key, row in copy.rows().items()} == {
        "base": False, "alone": False, "pair": True, "greedy": True,
    }  # fmt: skip


def test_the_members_are_planned_when_their_row_is_not_selected(small):
    plan = small["ensembles"].chosen(rows="pair").plan
    assert [run.row for run in plan.runs] == ["pair"]
    assert [(run.row, run.seed, run.state) for run in plan.trainings] == [
        ("pair", 0, "finished"), ("base", 1, "finished"), ("base", 2, "finished"),
    ]  # fmt: skip
    settings = dict(flatten(plan.members[0].config))
    assert settings["seed"] == 1 and settings["model.d_model"] == 8
