"""A branch starts from the parent run's state at a step and continues with its own settings."""

import shutil
from typing import ClassVar

import pytest
import torch

from experiments.config.run_config import RunConfig
from experiments.config.training import TrainingConfig
from experiments.device import Device, mix, seed_everything
from experiments.device_spec import DeviceSpec
from experiments.errors import UserError
from experiments.events.lines import EVENT
from experiments.identity import ParentRun, parent_run_in, run_identity, with_members, with_parent_run, without_runs
from experiments.store.results import TrainingResult
from experiments.store.retention import AT, Keep, at_steps, union
from experiments.training import checkpoint, kept_checkpoints
from experiments.training.checkpoint import Start
from experiments.training.loss import Objective
from experiments.training.optimizers import clip, make_optimizers, set_learning_rate, update
from experiments.training.schedules import make_schedule
from experiments.training.warm_start import digest_of, why_no_branch
from model.network import build_model
from tests.small_training import PIECES, SIZES, kinds, pairs, run

STEP, LAST = 5, 12
PARENT = ParentRun("0123456789abcdef", STEP)
BRANCH = "fedcba9876543210"
INPUTS = {"parent run": PARENT.run_id}  # of the branch, so that its lineage differs from its parent run's


def settings(**given):
    return TrainingConfig(**{"train_steps": LAST, "warmup_steps": 3, "checkpoint_steps": 4, **given})


def parent_run_of(folder, training, **options):
    """Train a parent run that keeps the checkpoint of STEP."""
    return run(folder, settings=training, keeps=at_steps([STEP]), run_id=PARENT.run_id, **options)


def start_in(folder):
    return Start(PARENT, folder / "checkpoints" / f"step-{STEP:08d}")


def branch(folder, parent_run, training, **options):
    return run(folder, settings=training, parent_run=start_in(parent_run), run_id=BRANCH, inputs=INPUTS, **options)


def same(one, other):
    weights = [checkpoint.model_tensors(model) for model in (one, other)]
    return all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def switched(training_of):
    """Train undisturbed without checkpoints, with settings that depend on the step."""
    seed_everything(1)
    model = build_model(SIZES, PIECES)
    first, device = training_of(1), Device.open(DeviceSpec("cpu"), "fp32")
    optimizers = make_optimizers(model, first)
    model.train()
    for step in range(1, training_of(LAST).train_steps + 1):
        now = training_of(step)
        for optimizer in optimizers.values():
            for group in optimizer.param_groups:
                group["betas"] = (now.adam_beta1, now.adam_beta2)
                group["weight_decay"] = now.weight_decay if group["params"][0].ndim >= 2 else 0.0
        objective, batch = Objective(model, now), pairs(step)
        device.seed(mix(1, step))
        loss, _ = objective(*objective.inputs(batch, device))
        set_learning_rate(optimizers, make_schedule(now, SIZES.d_model)(step))
        (loss / batch.num_target_tokens).backward()
        clip(model, now.clip_norm)
        update(optimizers)
    return model


OPTIMIZERS = [
    {}, {"optimizer": "sgd", "learning_rate": 0.1}, {"optimizer": "muon"}, {"optimizer": "lion"},
    {"optimizer": "adafactor", "learning_rate": 0.01}, {"schedule": "constant"},
]  # fmt: skip


@pytest.mark.parametrize("given", OPTIMIZERS)
def test_a_branch_that_changes_nothing_is_the_parent_run_going_on(tmp_path, given):
    parent_run, _, _ = parent_run_of(tmp_path / "parent_run", settings(**given))
    found, facts, events = branch(tmp_path / "branch", tmp_path / "parent_run", settings(**given))
    assert same(parent_run, found)
    assert facts["resumed_from"] == STEP and facts["target_tokens"] == sum(
        pairs(step).num_target_tokens for step in range(1, LAST + 1)
    )
    [told] = kinds(events, "branched")
    assert (told["step"], told["run"], told["changed"]) == (STEP, PARENT.run_id, {})
    EVENT.validate_python({"t": 1.0, **told})
    assert not kinds(events, "resumed")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"label_smoothing": 0.4}),
        ({}, {"label_smoothing": 0.0, "weight_decay": 0.2, "adam_beta2": 0.9}),
        ({"clip_norm": 0.01}, {"clip_norm": 0.0}),
        ({}, {"train_steps": 15}),
        ({"schedule": "constant"}, {"schedule": "warmup_stable_decay", "stable_ratio": 0.5}),
        ({"schedule": "constant", "train_steps": STEP}, {"schedule": "warmup_stable_decay", "stable_ratio": 0.5}),
    ],
)
def test_a_branch_is_an_undisturbed_training_whose_settings_change_there(tmp_path, before, after):
    first, then = settings(**before), settings(**{**before, "train_steps": LAST, **after})
    assert not why_no_branch(RunConfig(training=first), RunConfig(training=then), STEP)
    parent_run_of(tmp_path / "parent_run", first)
    found, _, _ = branch(tmp_path / "branch", tmp_path / "parent_run", then)
    assert same(found, switched(lambda step: first if step <= STEP else then))
    assert not same(found, switched(lambda step: first))


def test_dropout_may_change_there(tmp_path):
    parent_run_of(tmp_path / "parent_run", settings())
    none = SIZES.model_copy(update={"dropout": 0.0})
    kept, _, _ = branch(tmp_path / "kept", tmp_path / "parent_run", settings())
    found, _, _ = branch(tmp_path / "none", tmp_path / "parent_run", settings(), sizes=none)
    assert not same(kept, found)


@pytest.mark.parametrize("stops", [(6,), (7, 9), (10, 11)])
def test_stopped_and_resumed_it_equals_an_undisturbed_one(tmp_path, stops):
    changed = settings(label_smoothing=0.3)
    parent_run_of(tmp_path / "parent_run", settings())
    expected, facts, _ = branch(tmp_path / "straight", tmp_path / "parent_run", changed)
    attempts = []
    for number, stop in enumerate((*stops, None)):
        folder = tmp_path / str(number)
        options = {"stop_at": stop, "earlier": attempts} if attempts else {"stop_at": stop and stop - STEP}
        found, last, events = branch(folder, tmp_path / "parent_run", changed, **options)
        assert bool(kinds(events, "branched")) == (not attempts), "later attempts go on with their own checkpoints"
        attempts = [folder, *attempts]
    assert same(expected, found) and last["parent_run"] == facts["parent_run"]


def test_killed_before_its_first_checkpoint_it_begins_again_with_the_parent_run(tmp_path):
    parent_run_of(tmp_path / "parent_run", settings())
    expected, _, _ = branch(tmp_path / "straight", tmp_path / "parent_run", settings(label_smoothing=0.3))
    branch(tmp_path / "killed", tmp_path / "parent_run", settings(label_smoothing=0.3), stop_at=1)
    for path in kept_checkpoints.all_of(tmp_path / "killed"):
        shutil.rmtree(path)
    found, _, events = run(
        tmp_path / "again",
        settings=settings(label_smoothing=0.3),
        parent_run=start_in(tmp_path / "parent_run"),
        run_id=BRANCH,
        inputs=INPUTS,
        batches=lambda step: [pairs(step)],
    )
    assert same(expected, found) and kinds(events, "branched")


def test_it_knows_the_weights_with_which_it_began(tmp_path):
    parent_run_of(tmp_path / "parent_run", settings())
    _, facts, _ = branch(tmp_path / "branch", tmp_path / "parent_run", settings(label_smoothing=0.3))
    record = TrainingResult.read({"parent_run": facts["parent_run"]}).parent_run
    assert (record.run_id, record.step) == PARENT
    assert record.weights == digest_of(start_in(tmp_path / "parent_run").path)
    parent_run_of(tmp_path / "other", settings(label_smoothing=0.2))
    assert record.weights != digest_of(start_in(tmp_path / "other").path)
    assert TrainingResult.read({}).parent_run.run_id == ""  # of earlier stores, and of trainings from the start


def test_of_the_plateau_only_a_branch_that_has_it_takes_its_halvings(tmp_path):
    plateau = settings(schedule="plateau", plateau_patience=0, eval_steps=1)
    worse = {"evaluate": lambda step: {"perplexity": 1.0 + step}}
    parent_run, _, _ = parent_run_of(tmp_path / "parent_run", plateau, **worse)
    found, _, _ = branch(tmp_path / "branch", tmp_path / "parent_run", plateau, **worse)
    assert same(parent_run, found)


class TestTheCheckpoint:
    def test_is_kept_with_the_optimizers_state_whatever_else_goes(self, tmp_path):
        parent_run_of(tmp_path, settings(keep_checkpoints=1))
        kept = {
            path.name: meta["files"]
            for path in kept_checkpoints.all_of(tmp_path)
            if (meta := kept_checkpoints.meta_of(path))
        }
        assert list(kept) == ["step-00000005", "step-00000012"]
        assert all(kept_checkpoints.OPTIMIZER in files for files in kept.values())

    def test_a_parent_run_that_did_not_keep_it_does_not_resume_after_it(self, tmp_path):
        run(tmp_path / "1", settings=settings(checkpoint_steps=2), stop_at=9)
        options = {"keeps": at_steps([STEP]), "earlier": [tmp_path / "1"]}
        _, facts, events = run(tmp_path / "2", settings=settings(checkpoint_steps=2), **options)
        assert facts["resumed_from"] is None
        assert "the checkpoint of step 5, needed for a branch" in kinds(events, "checkpoint_skipped")[0]["reason"]
        assert start_in(tmp_path / "2").open().step == STEP

    def test_before_it_the_parent_run_resumes_as_ever(self, tmp_path):
        run(tmp_path / "1", settings=settings(checkpoint_steps=2), stop_at=4)
        options = {"keeps": at_steps([STEP, 20]), "earlier": [tmp_path / "1"]}
        _, facts, _ = run(tmp_path / "2", settings=settings(checkpoint_steps=2), **options)
        assert facts["resumed_from"] == 4

    def test_demands_join(self):
        assert union(at_steps([5]), at_steps([9, 5])) == (Keep(AT, 5, 1, 1), Keep(AT, 9, 1, 1))
        assert Keep(AT, 5, 1, 1).steps(4) == [] and Keep(AT, 5, 1, 1).steps(5) == [5]

    @pytest.mark.parametrize("harm", ["missing", "damaged"])
    def test_without_it_a_branch_does_not_begin_at_step_0(self, tmp_path, harm):
        parent_run_of(tmp_path / "parent_run", settings())
        there = start_in(tmp_path / "parent_run")
        if harm == "damaged":
            file = there.path / "model.safetensors"
            file.write_bytes(file.read_bytes()[:-1] + b"\xff")
        with pytest.raises(UserError) as caught:
            start = there._replace(path=None if harm == "missing" else there.path)
            run(tmp_path / "branch", settings=settings(), run_id=BRANCH, inputs=INPUTS, parent_run=start)
        text = str(caught.value)
        assert f"branches from run {PARENT.run_id} after step {STEP}" in text and "\n" not in text
        assert "trains the parent run again" in text


class TestItsName:
    INPUTS: ClassVar = {"corpus": "0" * 16}

    def test_follows_from_parent_run_step_and_settings(self):
        config, other = RunConfig(), RunConfig(training=TrainingConfig(label_smoothing=0.3))
        names = [
            run_identity(of, with_parent_run(self.INPUTS, parent_run))
            for of in (config, other)
            for parent_run in (PARENT, PARENT._replace(step=6), PARENT._replace(run_id="f" * 16))
        ]
        assert len({*names, run_identity(config, self.INPUTS), run_identity(other, self.INPUTS)}) == 8

    def test_is_read_back(self):
        inputs = with_parent_run(self.INPUTS, PARENT)
        assert parent_run_in(inputs) == PARENT and parent_run_in(self.INPUTS) is None
        assert without_runs(inputs) == without_runs(with_members(self.INPUTS, ["a"])) == self.INPUTS

    @pytest.mark.parametrize("theirs", [{"parent_run": "a file"}, {"parent_run": "f" * 16}, {"parent run steps": "5"}])
    def test_other_inputs_of_these_names_are_data(self, theirs):
        assert parent_run_in(theirs) is None and without_runs(theirs) == theirs


def config(model=None, data=None, evaluation=None, **training):
    parts = {"model": model, "data": data, "evaluation": evaluation, "training": training}
    return RunConfig.from_mapping({name: part for name, part in parts.items() if part})


@pytest.mark.parametrize(
    "changed",
    [
        {}, {"label_smoothing": 0.0}, {"weight_decay": 0.1, "clip_norm": 1.0}, {"tokens_per_batch": 100},
        {"model": {"dropout": 0.3, "layer_drop": 0.1}}, {"precision": "bf16"}, {"train_steps": 200_000},
        {"data": {"max_pieces": 100}}, {"adam_beta2": 0.999}, {"evaluation": {"beam_size": 1}},
        {"data": {"dev": ("other",)}}, {"checkpoint_steps": 7}, {"eval_steps": 7},
    ],
)  # fmt: skip
def test_what_acts_step_by_step_may_differ(changed):
    assert why_no_branch(config(), config(**changed), 80_000) == ""


@pytest.mark.parametrize(
    ("changed", "part"),
    [
        ({"model": {"d_model": 256}}, "differs from its parent run in model.d_model, which acts before step 80,000"),
        ({"model": {"norm": "pre", "d_ff": 8}}, "model.d_ff, model.norm, which act before"),
        ({"data": {"vocab_size": 1000}}, "data.vocab_size, which acts before"),
        ({"data": {"units": "char"}}, "data.units"),
        ({"data": {"builtin_pairs": 9}}, "only a branch with data.units = byte may read another"),
        ({"warmup_steps": 8000}, "the learning rate differs already at step 1 (1.75e-07, and 6.18e-08 here)"),
        ({"learning_rate_scale": 2.0}, "learning rate differs already at step 1"),
        ({"schedule": "constant"}, "learning rate differs already at step 4,001"),
        ({"schedule": "plateau", "eval_steps": 5}, "training.schedule, training.eval_steps, which act before"),
        ({"optimizer": "lion"}, "continues with the state of the parent run's optimizer"),
        (
            {"evaluation": {"checkpoint": "average:5"}, "keep_checkpoints": 5, "checkpoint_steps": 5000},
            "would need the checkpoint of step 80,000, which belongs to the parent run",
        ),
        ({"evaluation": {"checkpoint": "best"}, "eval_steps": 60_000}, "would need the checkpoint of step 60,000"),
    ],
)
def test_what_acts_before_may_not(changed, part):
    parent_run = {"data": {"units": "bpe"}}
    assert part in why_no_branch(config(**parent_run), config(**changed), 80_000)


def test_checkpoints_of_its_own_are_enough():
    several = {"evaluation": {"checkpoint": "average:4"}, "keep_checkpoints": 5, "checkpoint_steps": 5000}
    assert why_no_branch(config(), config(**several), 80_000) == ""
    assert why_no_branch(config(), config(evaluation={"checkpoint": "best"}, eval_steps=50_001), 50_000) == ""


def test_bytes_may_be_of_another_text():
    one, other = ({"data": {"units": "byte", "builtin_pairs": pairs}} for pairs in (100, 200))
    assert why_no_branch(config(**one), config(**other), 5) == ""
    assert "pieces come from the parent run" in why_no_branch(config(), config(**other), 5)


def test_a_schedules_end_may_differ_from_the_step_on():
    stable = {"schedule": "warmup_stable_decay", "train_steps": 1000, "warmup_steps": 100}
    constant = config(schedule="constant", train_steps=800, warmup_steps=100)
    assert why_no_branch(constant, config(**stable, stable_ratio=0.8), 800) == ""
    assert "already at step 701" in why_no_branch(constant, config(**stable, stable_ratio=0.7), 800)
    assert why_no_branch(constant, config(**stable, stable_ratio=0.7), 700) == ""
    cosine = {"schedule": "cosine", "warmup_steps": 100}
    assert "already at step 101" in why_no_branch(config(**cosine), config(**cosine, min_lr_ratio=0.1), 800)


def test_the_seed_is_the_parent_runs_and_no_difference():
    assert why_no_branch(config(), config().model_copy(update={"seed": 3}), 5) == ""
