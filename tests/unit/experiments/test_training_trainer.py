"""Tests of the training loop: losses of a plain loop, exact resumes, micro-batches and failures."""

import math
from itertools import pairwise

import pytest
import torch
from torch.nn import functional as F

from experiments.config.run_config import RunConfig
from experiments.config.training import TrainingConfig
from experiments.device import Device, mix, seed_everything
from experiments.device_spec import DeviceSpec
from experiments.errors import Diverged, OutOfMemory, UserError
from experiments.store.checksummed import read_json, write_json
from experiments.training import checkpoint, curve, kept_checkpoints
from experiments.training.schedules import learning_rate
from experiments.training.state import Training
from experiments.training.trainer import train
from model.network import build_model
from tests.small_training import PIECES, SIZES, batch_of, context_of, kinds, losses, pairs, run

pytestmark = pytest.mark.usefixtures("every_step")


def test_the_curve_of_fifty_steps_is_a_plain_loops(tmp_path):
    settings = TrainingConfig(train_steps=50, warmup_steps=20, learning_rate_scale=0.5)
    sizes = SIZES.model_copy(update={"dropout": 0.0})
    _, _, events = run(tmp_path, settings=settings, sizes=sizes)

    seed_everything(1)
    model = build_model(sizes, PIECES)
    adam = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9, foreach=False)
    expected = {}
    for step in range(1, 51):
        batch = pairs(step)
        logits = model.logits(model(batch.source, batch.source != 0, batch.target_input)).flatten(0, 1)
        # torch spreads epsilon over all pieces, tensor2tensor over the others: a factor
        loss = F.cross_entropy(
            logits, batch.target_output.flatten(), ignore_index=0, label_smoothing=0.1 * PIECES / (PIECES - 1)
        )
        adam.param_groups[0]["lr"] = learning_rate(step, 8, 20, 0.5)
        adam.zero_grad()
        loss.backward()
        adam.step()
        expected[step] = loss.item()
    assert losses(events) == pytest.approx(expected, rel=2e-4)
    assert expected[50] < 0.8 * expected[1], "it learns"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_training_stopped_three_times_equals_an_undisturbed_one_bit_for_bit(tmp_path, precision):
    _, facts, events = run(tmp_path / "straight", precision=precision)
    attempts, disturbed = [], {}
    for number, stop in enumerate((3, 4, 9, None)):
        folder = tmp_path / str(number)
        _, ended, seen = run(folder, precision=precision, stop_at=stop, earlier=attempts)
        attempts = [folder, *attempts]
        disturbed |= losses(seen)
        assert (ended is None) == (stop is not None)
        assert [e["step"] for e in kinds(seen, "resumed")] == ([] if number == 0 else [(3, 4, 9)[number - 1]])
    assert disturbed == losses(events), "every loss, every bit"
    assert ended["resumed_from"] == 9
    assert ended["target_tokens"] == facts["target_tokens"]
    for file in ("model.safetensors", "optimizer.safetensors"):
        path = f"checkpoints/step-00000012/{file}"
        assert (tmp_path / "straight" / path).read_bytes() == (folder / path).read_bytes()
    weights = [checkpoint.load_weights(p / "final") for p in (tmp_path / "straight", folder)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_run_that_version_0_1_trained_in_replicas_goes_on_from_its_checkpoint(tmp_path):
    run(tmp_path / "1", stop_at=5)
    path = tmp_path / "1/checkpoints/step-00000005/meta.json"
    write_json(path, {**read_json(path), "replicas": 2})
    _, facts, _ = run(tmp_path / "2", earlier=[tmp_path / "1"])
    assert (facts["resumed_from"], facts["step"]) == (5, 12)


def test_a_resume_knows_how_often_each_layer_was_updated(tmp_path):
    sizes = SIZES.model_copy(update={"num_layers": 3, "layer_drop": 0.5})
    _, _, events = run(tmp_path / "straight", sizes=sizes)
    run(tmp_path / "1", sizes=sizes, stop_at=5)
    kept = checkpoint.Checkpoint.open(tmp_path / "1/checkpoints/step-00000005").optimizer()
    fewer = {int(count) for name, count in kept.items() if name.startswith("step/")}
    assert fewer and max(fewer) < 5
    _, _, seen = run(tmp_path / "2", sizes=sizes, earlier=[tmp_path / "1"])
    assert losses(seen) == {step: loss for step, loss in losses(events).items() if step > 5}


def test_a_longer_run_goes_on_from_a_shorter_one(tmp_path):
    def settings(steps):
        return TrainingConfig(train_steps=steps, warmup_steps=10, checkpoint_steps=5)

    run(tmp_path / "short", settings=settings(7))
    _, facts, events = run(tmp_path / "long", settings=settings(11), earlier=[tmp_path / "short"])
    _, _, straight = run(tmp_path / "straight", settings=settings(11))
    assert facts["resumed_from"] == 7
    assert losses(events) == {s: v for s, v in losses(straight).items() if s > 7}
    assert [p.name for p in kept_checkpoints.last(tmp_path / "long", 2, 5)] == ["step-00000010", "step-00000011"]


def test_a_damaged_checkpoint_costs_steps_and_nothing_else(tmp_path):
    run(tmp_path / "1", stop_at=10)
    torn = tmp_path / "1/checkpoints/step-00000010/optimizer.safetensors"
    torn.write_bytes(torn.read_bytes()[:-1])
    _, facts, events = run(tmp_path / "2", earlier=[tmp_path / "1"])
    assert facts["resumed_from"] == 8
    assert [e["path"] for e in kinds(events, "checkpoint_skipped")] == ["1/checkpoints/step-00000010"]
    run(tmp_path / "straight")
    name = "final/model.safetensors"
    assert (tmp_path / "2" / name).read_bytes() == (tmp_path / "straight" / name).read_bytes()


def test_a_resume_says_what_changed_and_refuses_another_configuration(tmp_path):
    run(tmp_path / "1", stop_at=5)
    path = tmp_path / "1/checkpoints/step-00000005/meta.json"
    write_json(path, {**read_json(path), "threads": 7})
    _, _, events = run(tmp_path / "2", earlier=[tmp_path / "1"], stop_at=6)
    assert kinds(events, "resumed")[0]["changed"] == {"threads": [7, 1]}
    with pytest.raises(UserError, match="another configuration"):
        run(tmp_path / "3", earlier=[tmp_path / "1"], inputs={"corpus": "other"})
    assert not list((tmp_path / "3").iterdir()), "nothing was written"
    _, facts, _ = run(tmp_path / "4", earlier=[tmp_path / "1"], code_digest="edited")
    assert facts["resumed_from"] is None, "never mixes old and new code"


@pytest.mark.parametrize("cuts", [(0, 2, 6), (0, 1, 3, 6)])
def test_micro_batches_have_the_gradient_of_the_whole(tmp_path, cuts):
    model = build_model(SIZES.model_copy(update={"dropout": 0.0}), PIECES)
    training = Training(model, RunConfig(), context_of(tmp_path), Device.open(DeviceSpec(), "fp32"))

    def gradients(batches):
        model.zero_grad()
        training.accumulate_gradients(1, batches)
        return [p.grad.clone() for p in model.parameters()]

    whole = pairs(1)
    sides = (whole.source, whole.target_input, whole.target_output)
    parts = [batch_of(*(side[a:b] for side in sides)) for a, b in pairwise(cuts)]
    assert len({part.num_target_tokens for part in parts}) > 1, "uneven parts"
    for a, b in zip(gradients(parts), gradients([whole]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_no_steps_leave_the_model_as_initialised(tmp_path):
    _, facts, _ = run(tmp_path, settings=TrainingConfig(train_steps=0))
    seed_everything(1)
    expected = checkpoint.model_tensors(build_model(SIZES, PIECES))
    weights = checkpoint.load_weights(tmp_path / "final")
    assert facts["step"] == 0
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


def test_other_seeds_drop_other_units(tmp_path):
    def first_loss(number, seed):
        seed_everything(1)
        start = build_model(SIZES, PIECES).state_dict()
        folder = tmp_path / str(number)
        folder.mkdir()
        model = build_model(SIZES, PIECES)
        model.load_state_dict(start)
        events = []
        config = RunConfig(model=SIZES, training=TrainingConfig(train_steps=1), seed=seed)
        context = context_of(folder, emit=lambda kind, **fields: events.append({"kind": kind, **fields}))
        train(Training(model, config, context, Device.open(DeviceSpec(), "fp32")), lambda step: [pairs(step)])
        return losses(events)[1]

    assert first_loss(1, 1) == first_loss(2, 1) != first_loss(3, 2)
    assert mix(1, 1) != mix(2, 1)


def test_a_loss_that_is_no_number_ends_the_run_before_a_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(curve, "EVERY_STEPS", 100)  # seen at the checkpoint, named by its own step
    accumulate = Training.accumulate_gradients

    def poisoned(self, step, batches):
        if step == 6:
            self.model.output_weight.data[5, 0] = math.nan
        accumulate(self, step, batches)

    monkeypatch.setattr(Training, "accumulate_gradients", poisoned)
    with pytest.raises(Diverged, match=r"loss of step 6 is nan.*learning_rate_scale"):
        run(tmp_path, settings=TrainingConfig(train_steps=8, checkpoint_steps=4))
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step-00000004"]
    assert not (tmp_path / "final").exists()


def test_weights_that_the_last_update_broke_are_not_saved(tmp_path):
    settings = TrainingConfig(train_steps=1, warmup_steps=1, learning_rate_scale=1e38 * 10)
    with pytest.raises(Diverged, match="after step 1"):
        run(tmp_path, settings=settings)
    assert not (tmp_path / "final").exists()


def test_evaluation_on_the_way_and_the_best_step(tmp_path):
    scores = {3: 9.0, 6: 5.0, 9: 7.0, 12: 8.0}
    settings = TrainingConfig(train_steps=12, warmup_steps=10, checkpoint_steps=4, keep_checkpoints=1, eval_steps=3)
    _, _, events = run(tmp_path / "1", settings=settings, evaluate=lambda step: {"perplexity": scores[step]})
    points = [(e["step"], e["metrics"]) for e in kinds(events, "metrics")]
    dev = {step: metrics["dev_perplexity"] for step, metrics in points if "dev_perplexity" in metrics}
    assert dev == scores
    assert kept_checkpoints.step_of(kept_checkpoints.best(tmp_path / "1")) == 6
    assert [p.name[-2:] for p in sorted((tmp_path / "1/checkpoints").iterdir())] == ["06", "12"]
    _, _, plain = run(tmp_path / "2", settings=settings)
    assert losses(plain) == losses(events), "looking changes nothing"


def test_events_tell_losses_rates_and_speeds(tmp_path):
    _, facts, events = run(tmp_path)
    assert events[0]["kind"] == "pinned"
    assert events[0]["precision"] == "fp32"
    point = kinds(events, "metrics")[4]
    assert point["step"] == 5
    metrics = point["metrics"]
    assert metrics["learning_rate"] == learning_rate(5, 8, 10)
    assert metrics["perplexity"] == pytest.approx(math.exp(metrics["nll"]))
    assert metrics["target_tokens_per_s"] > 0
    batch = pairs(5)
    real = batch.num_target_tokens + batch.num_source_tokens
    assert metrics["padding"] == pytest.approx(1 - real / 72, abs=1e-4)
    assert [(e["step"], e["path"]) for e in kinds(events, "checkpoint")] == [
        (s, f"checkpoints/step-{s:08d}") for s in (4, 8, 12)
    ]
    assert facts["target_tokens"] == sum(pairs(step).num_target_tokens for step in range(1, 13))
    assert facts["step"] == 12
    assert facts["peak_memory_bytes"] > 0
    assert 0 < facts["steps_cpu_s"] < 60 and 0 < facts["steps_s"] <= facts["seconds"]


def test_running_out_of_memory_has_its_own_name(tmp_path):
    def batches(step):
        torch.empty(2**60)

    with pytest.raises(OutOfMemory):
        run(tmp_path, batches=batches)
