"""Trials of a row are determined by its file, a budget is used once, and better settings are found."""

import math

import pytest

from experiments.store.layout import Store
from experiments.tuning import COMPLETE, FAILED, Range, Search, Space

pytestmark = pytest.mark.slow

RANGES = {"rate": Range(0.001, 10.0, log=True), "width": Range(1, 6), "kind": Range(choices=("a", "b"))}


def space(**more):
    return Space(**{"ranges": RANGES, "metric": "loss", "set": "dev", "minimize": True, **more})


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "store")


def loss(params):
    return abs(math.log10(params["rate"])) + abs(params["width"] - 3) + (params["kind"] == "b")


def run(store, number, reload=False, about="row", **more):
    search = Search(store, space(**more), about)
    while len(search.trials) < number:
        trial = search.ask()
        if reload:  # as after a kill between asking and telling
            search = Search(store, space(**more), about)
            assert [t.number for t in search.running] == [trial.number]
        search.tell(trial.number, COMPLETE, loss(trial.params))
    return search


def test_trials_are_in_range_and_of_the_right_types(store):
    for trial in run(store, 8, sampler="random").trials:
        assert 0.001 <= trial.params["rate"] <= 10 and trial.params["width"] in range(1, 7)
        assert isinstance(trial.params["width"], int) and trial.params["kind"] in ("a", "b")


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_restart_changes_no_trial(store, tmp_path, sampler):
    """One process or ten processes get the same trials, because the file holds the sampler's state."""
    whole = run(store, 10, sampler=sampler).trials
    other = Store.open(tmp_path / "other")
    for number in (3, 4, 9, 10):
        resumed = run(other, number, reload=True, sampler=sampler)
    assert resumed.trials == whole
    assert len({tuple(trial.params.items()) for trial in whole}) == 10


def test_tpe_finds_better_than_its_first_guesses(store):
    values = [trial.value for trial in run(store, 24).trials]
    assert min(values[4:]) < min(values[:4])


def test_best_knows_the_direction_and_leaves_out_what_has_no_number(store):
    search = run(store, 6)
    assert search.best.value == min(trial.value for trial in search.trials)
    up = run(store, 6, minimize=False)
    assert up.best.value == max(trial.value for trial in up.trials)
    search.tell(search.ask().number, FAILED)
    assert search.best.number < 6 and search.counted(FAILED) == 1
    assert search.ask().number == 7  # Optuna accepts the file as it is now


def test_a_trial_is_told_once(store):
    search = run(store, 1)
    search.tell(0, FAILED)
    assert search.trials[0].state == COMPLETE


def test_other_rows_ranges_or_samplers_are_other_searches(store):
    run(store, 3)
    assert Search(store, space(), "another row").trials == []
    assert Search(store, space(sampler="random"), "row").trials == []
    assert len(Search(store, space(), "row").trials) == 3


def test_the_file_is_in_the_store_and_holds_no_path(store):
    run(store, 2)
    (path,) = (store.root / "tuning").iterdir()
    assert str(store.root) not in path.read_text()
