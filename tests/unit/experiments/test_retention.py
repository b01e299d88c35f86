"""A training keeps the checkpoints that evaluations of all studies that share the run need."""

from itertools import product

import pytest
import torch

from experiments.config.evaluation import EvaluationConfig
from experiments.config.training import TrainingConfig
from experiments.errors import Damaged
from experiments.evaluation.load_network import kept_average
from experiments.store import retention as demands
from experiments.store.checksummed import write_json
from experiments.store.layout import Store
from experiments.store.retention import BEST, SPACED, Keep, keeps_of, spaced_steps, union
from experiments.training import checkpoint, kept_checkpoints
from tests.small_training import kinds, run

STEPS = 12
SCORES = dict(enumerate([9.0, 8.0, 5.0, 7.0, 6.0, 6.5, 5.5, 4.0, 6.0, 4.5, 7.0, 8.0], start=1))


def settings(**given):
    return TrainingConfig(train_steps=STEPS, warmup_steps=10, **given)


def train(folder, training, **options):
    return run(folder, settings=training, evaluate=lambda step: {"perplexity": SCORES[step]}, **options)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One training for three studies: averages of two spacings, the best of two, and settings of its own."""
    folder = tmp_path_factory.mktemp("shared")
    asked = [Keep(SPACED, 3, 3, 3), Keep(SPACED, 2, 4, 4), Keep(BEST, 3, 1, 1), Keep(BEST, 4, 1, 1)]
    train(folder, settings(checkpoint_steps=5, keep_checkpoints=1), keeps=asked)
    return folder


@pytest.mark.parametrize(("every", "count"), [(3, 3), (3, 2), (2, 4), (2, 1)])
def test_an_average_is_that_of_a_training_of_its_own(shared, tmp_path, every, count):
    run(tmp_path, settings=settings(checkpoint_steps=every, keep_checkpoints=count))
    assert kept_checkpoints.serves(shared, f"average:{count}", every)
    alone, together = (kept_average(folder, count, every) for folder in (tmp_path, shared))
    assert all(torch.equal(alone[name], together[name]) for name in alone)


@pytest.mark.parametrize("every", [3, 4])
def test_the_best_is_the_best_of_the_measurements_that_were_asked_for(shared, tmp_path, every):
    train(tmp_path, settings(eval_steps=every))
    best = min((SCORES[step], step) for step in range(every, STEPS + 1, every))[1]
    assert kept_checkpoints.step_of(kept_checkpoints.best(shared, every)) == best
    assert kept_checkpoints.serves(shared, "best", every)
    weights = [checkpoint.load_weights(kept_checkpoints.best(folder, every)) for folder in (tmp_path, shared)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_what_nobody_asks_for_goes(shared):
    kept = {kept_checkpoints.step_of(path) for path in kept_checkpoints.all_of(shared)}
    averages, best, own = {6, 8, 9, 10, 12}, {3, 8}, {10}  # of 3, 6, 9, 12 and of 4, 8, 12; the last multiple of 5
    assert kept == averages | best | own
    assert not kept_checkpoints.serves(shared, "average:5", 2) and not kept_checkpoints.serves(shared, "average:3", 5)
    assert not kept_checkpoints.serves(shared, "best", 2), "measured at 4 and 8, but not at 2 and 10"


def test_the_union_serves_each():
    some = [
        Keep(what, every, kept, needed) for what, every, kept, needed in product((SPACED, BEST), (2, 3), (1, 4), (0, 1))
    ]
    for one, other in product(some, some):
        both = union([one], [other])
        assert both == union([other], [one]) == union(both, [one], [list(other)])
        for keep in (one, other):
            [found] = [each for each in both if (each.what, each.every) == (keep.what, keep.every)]
            assert found.kept >= keep.kept and found.needed >= keep.needed


@pytest.mark.parametrize(("choice", "needed"), [("last", 0), ("average:3", 3), ("best", 0)])
def test_a_configuration_asks_for_what_it_evaluates(choice, needed):
    training = settings(checkpoint_steps=2, keep_checkpoints=5, eval_steps=3)
    spaced, best = keeps_of(training, EvaluationConfig(checkpoint=choice))
    assert spaced == Keep(SPACED, 2, 5, needed)
    assert best == Keep(BEST, 3, 1, choice == "best")
    assert spaced.steps(STEPS) == (spaced_steps(STEPS, 2, 3) if needed else [])


class TestGoingOn:
    """A training that started with lower requirements resumes only if it can still meet the present ones."""

    def begin(self, folder, stop_at, **given):
        train(folder, settings(**{"checkpoint_steps": 2, "keep_checkpoints": 1, **given}), stop_at=stop_at)

    @pytest.mark.parametrize(
        ("stop_at", "asked", "resumed"),
        [
            (5, Keep(SPACED, 2, 4, 4), 5),  # all four lie ahead: 6, 8, 10, 12
            (9, Keep(SPACED, 2, 4, 4), None),  # 6 was not kept
            (9, Keep(SPACED, 2, 3, 3), 9),  # 8 was
            (9, Keep(SPACED, 2, 9, 3), 9),  # more than needed is kept
            (3, Keep(BEST, 4, 1, 1), 3),  # no measurement was due yet
            (9, Keep(BEST, 4, 1, 1), None),
            (9, Keep(BEST, 4, 1, 0), 9),  # a curve, and no evaluation
        ],
    )
    def test_from_a_stop(self, tmp_path, stop_at, asked, resumed):
        self.begin(tmp_path / "1", stop_at)
        _, facts, events = train(
            tmp_path / "2",
            settings(checkpoint_steps=2, keep_checkpoints=1),
            keeps=[asked],
            earlier=[tmp_path / "1"],
        )
        assert facts["resumed_from"] == resumed
        assert bool(kinds(events, "checkpoint_skipped")) == (resumed is None)
        if asked.what == SPACED:
            assert kept_checkpoints.serves(tmp_path / "2", f"average:{asked.needed}", asked.every)
        elif asked.needed:
            assert kept_checkpoints.step_of(kept_checkpoints.best(tmp_path / "2", asked.every)) == 8

    def test_once_it_keeps_what_is_asked_it_goes_on_as_ever(self, tmp_path):
        asked = [Keep(SPACED, 2, 4, 4), Keep(BEST, 4, 1, 1)]
        training = settings(checkpoint_steps=2, keep_checkpoints=1)
        train(tmp_path / "1", training, keeps=asked, stop_at=9)
        _, facts, _ = train(tmp_path / "2", training, keeps=asked, earlier=[tmp_path / "1"])
        assert facts["resumed_from"] == 9
        assert kept_checkpoints.serves(tmp_path / "2", "average:4", 2) and kept_checkpoints.serves(
            tmp_path / "2", "best", 4
        )


# --- What may be deleted of a store, and runs that are put aside

RUN, OTHER = "a" * 16, "b" * 16
CHECKPOINTS, AGAIN, KILLED = "checkpoints", "weights of an attempt that was done again", "files left by a kill"


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "store")


def filled(store, run_id, *attempts, result=None):
    """Make a run with such files of one byte each in the folders of its attempts."""
    for files in attempts:
        _, folder = store.new_attempt(run_id)
        for name in files:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("1")
    if result is not None:
        write_json(store.run_folder(run_id) / "result.json", {"run_id": run_id, "attempt": result})


def found_in(store, **more):
    return {(str(one.path.relative_to(store.runs)), one.what) for one in demands.removable(store, **more)}


def test_of_a_finished_run_all_but_its_final_weights_may_go(store):
    parts = ("checkpoints/step-4/model.pt", "final/model.pt", ".final.x.partial/model.pt", "events.jsonl")
    filled(store, RUN, parts, parts, ("final/model.pt",), result=2)
    one, two, three = (f"{RUN}/attempts/000{n}" for n in (1, 2, 3))
    assert found_in(store) == {
        (f"{one}/checkpoints", CHECKPOINTS), (f"{one}/final", AGAIN), (f"{one}/.final.x.partial", KILLED),
        (f"{two}/checkpoints", CHECKPOINTS), (f"{two}/.final.x.partial", KILLED),
        (f"{three}/final", AGAIN),
    }  # fmt: skip
    assert {one.run_id for one in demands.removable(store)} == {RUN}


def test_a_run_that_goes_on_keeps_its_checkpoints(store):
    filled(store, RUN, ("checkpoints/step-4/model.pt", "checkpoints/.step-5.x.partial/model.pt", ".final.x.partial/a"))
    assert found_in(store) == {(f"{RUN}/attempts/0001/checkpoints/.step-5.x.partial", KILLED)}


def test_busy_and_damaged_runs_are_left_alone(store):
    for run_id in (RUN, OTHER):
        filled(store, run_id, ("checkpoints/step-4/model.pt",), result=1)
    (store.run_folder(OTHER) / "result.json").write_text("{")
    assert found_in(store) == {(f"{RUN}/attempts/0001/checkpoints", CHECKPOINTS)}
    assert found_in(store, busy=[RUN]) == set()


def test_a_file_that_is_linked_elsewhere_frees_nothing(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir(), there.mkdir()
    (here / "own").write_bytes(b"x" * 100_000)
    (here / "shared").write_bytes(b"y" * 50_000)
    (there / "shared").hardlink_to(here / "shared")
    blocks = {name: (here / name).stat().st_blocks * 512 for name in ("own", "shared")}
    assert 100_000 <= blocks["own"] <= 110_000
    assert demands.size([here]) == blocks["own"]
    assert demands.size([there]) == demands.size([]) == 0
    assert demands.size([here, there]) == blocks["own"] + blocks["shared"]
    demands.remove([here])
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_a_run_is_put_aside_as_it_is_and_each_that_is_trained_again_has_its_own_place(store):
    for content in ("1", "2", "3"):
        filled(store, RUN, (f"final/{content}",))
        demands.put_aside(store, RUN)
        assert store.run_ids() == []
    home = store.root / demands.FOLDER
    assert [path.name for path in sorted(home.iterdir())] == [RUN, f"{RUN}.1", f"{RUN}.2"]
    assert (home / f"{RUN}.1" / "attempts/0001/final/2").exists()
    (home / f"{RUN}.1").rename(store.run_folder(RUN))
    assert (store.attempt_folder(RUN, 1) / "final/2").exists()


def test_what_is_not_there_is_not_put_aside(store):
    demands.put_aside(store, RUN)
    assert not (store.root / demands.FOLDER).exists()
    with pytest.raises(ValueError, match="not an identity"):
        demands.put_aside(store, "../x")


def test_a_branch_asks_for_the_step_at_which_it_begins():
    (at,) = demands.at_steps([5])
    assert at == Keep(demands.AT, 5, 1, 1)
    assert (at.steps(4), at.steps(5), at.steps(9), at._replace(needed=0).steps(9)) == ([], [5], [5], [])
    assert Keep(BEST, 2, 1, 1).steps(9) == []
    assert spaced_steps(0, 2, 3) == [] and spaced_steps(7, 3, 2) == [6, 7] and spaced_steps(6, 3, 9) == [3, 6]


# --- Which checkpoints are of one training


def written(folder, step, **meta):
    path = folder / "checkpoints" / f"step-{step:08d}"
    path.mkdir(parents=True)
    write_json(path / "meta.json", {"step": step, "files": {}, "format": 1, "lineage": "l", "code": "c", **meta})
    return path


def test_a_checkpoint_is_of_the_same_training_by_format_lineage_and_code(tmp_path):
    first = kept_checkpoints.meta_of(written(tmp_path, 1))
    for step, other, same in (
        (2, {}, True),
        (3, {"code": "d"}, False),
        (4, {"lineage": "m"}, False),
        (5, {"format": 2}, False),
    ):
        assert kept_checkpoints.same_training(written(tmp_path, step, **other), first) is same
    assert not kept_checkpoints.same_training(tmp_path / "checkpoints" / "step-00000009", first), "it is not there"
    assert [kept_checkpoints.step_of(path) for path in kept_checkpoints.all_of(tmp_path)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("damage", ["{", '{"step": 1}', '{"files": [], "step": 1}', '{"files": {}, "step": 2}', None])
def test_a_checkpoint_without_its_description_is_damaged(tmp_path, damage):
    path = written(tmp_path, 1)
    (path / "meta.json").unlink()
    if damage is not None:
        (path / "meta.json").write_text(damage)
    with pytest.raises(Damaged):
        kept_checkpoints.meta_of(path)
    assert not kept_checkpoints.same_training(path, {})
    assert not kept_checkpoints.serves(tmp_path, "best", 1) and kept_checkpoints.serves(tmp_path, "last", 1)


def test_pruning_keeps_the_newest_and_what_each_demand_names(tmp_path):
    for step in range(1, 11):
        written(tmp_path, step, dev_perplexity=abs(step - 4.0) + 1, best_steps={"2": 4})
    kept_checkpoints.prune(tmp_path, [Keep(SPACED, 3, 2), Keep(demands.AT, 5), Keep(BEST, 2)])
    assert [kept_checkpoints.step_of(path) for path in kept_checkpoints.all_of(tmp_path)] == [4, 5, 6, 9, 10]
    assert (
        kept_checkpoints.step_of(kept_checkpoints.best(tmp_path))
        == 4
        == kept_checkpoints.step_of(kept_checkpoints.best(tmp_path, 2))
    )
    kept_checkpoints.prune(tmp_path, [])
    assert [kept_checkpoints.step_of(path) for path in kept_checkpoints.all_of(tmp_path)] == [10]
    with pytest.raises(Damaged, match="lacks its best checkpoint, of step 4"):
        kept_checkpoints.best(tmp_path, 2)
    written(tmp_path, 11, best_steps={"2": 4})
    kept_checkpoints.prune(tmp_path, [Keep(BEST, 2), Keep(SPACED, 99, 1)])
    assert len(kept_checkpoints.all_of(tmp_path)) == 2, "the best is unknown, so all stay"
