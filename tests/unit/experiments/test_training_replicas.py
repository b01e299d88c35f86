"""Micro-batches computed in parallel: the same gradients, reproducible steps, no lost errors."""

import threading
from itertools import product

import pytest
import torch

from experiments.config import DeviceSpec, TrainingConfig
from experiments.device import Device
from experiments.training import curve
from experiments.training.parallel import LARGEST, Group, Replicas, replicas_for
from model.parts.dropout import dropout
from tests.lines import random_config
from tests.slow import mostly_slow
from tests.small_training import SIZES, losses, pairs, run

PLAIN = SIZES.model_copy(update={"dropout": 0.0})


def parts(step):
    """Three micro-batches of unequal size: the second replica has one."""
    return [pairs(10 * step + part, count) for part, count in enumerate((6, 4, 2))]


@pytest.fixture(autouse=True)
def _every_step(monkeypatch):
    monkeypatch.setattr(curve, "EVERY_STEPS", 1)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_two_replicas_train_as_one_does_up_to_rounding(tmp_path, positions):
    sizes = PLAIN.model_copy(update={"positions": positions})
    one, facts, events = run(tmp_path / "1", sizes=sizes, batches=parts)
    two, other, replica_events = run(tmp_path / "2", sizes=sizes, batches=parts, replicas=2)
    assert (facts["replicas"], other["replicas"]) == (1, 2)
    assert losses(replica_events) == pytest.approx(losses(events), rel=1e-5)
    for (name, expected), actual in zip(one.named_parameters(), two.parameters(), strict=True):
        if name.endswith(("qkv.bias", "key_value.bias")):
            continue  # a key's bias changes no softmax: its gradient is rounding, and Adam walks with it
        torch.testing.assert_close(actual, expected, atol=2e-5, rtol=1e-4, msg=lambda m, name=name: f"{name}: {m}")


def test_with_dropout_replicas_repeat_every_bit_and_a_resume_too(tmp_path):
    straight, _, events = run(tmp_path / "1", batches=parts, replicas=2)
    again, _, _ = run(tmp_path / "2", batches=parts, replicas=2)
    run(tmp_path / "3", batches=parts, replicas=2, stop_at=5)
    resumed, facts, _ = run(tmp_path / "4", batches=parts, replicas=2, earlier=[tmp_path / "3"])
    assert facts["resumed_from"] == 5
    for expected, *others in zip(*(model.parameters() for model in (straight, again, resumed)), strict=True):
        assert all(torch.equal(other, expected) for other in others)
    assert len(set(losses(events).values())) == 12


@pytest.mark.parametrize(("seed", "replicas"), mostly_slow([(0, 2), (1, 2), (0, 1), *product(range(2, 10), (1, 2))], 3))
def test_in_any_architecture_a_resume_repeats_every_bit(tmp_path, seed, replicas):
    options = {"sizes": random_config(seed, dropout=0.1), "batches": parts, "precision": ("fp32", "bf16")[seed % 2]}
    straight, _, _ = run(tmp_path / "1", replicas=replicas, **options)
    run(tmp_path / "2", replicas=replicas, stop_at=5, **options)
    resumed, facts, _ = run(tmp_path / "3", replicas=replicas, earlier=[tmp_path / "2"], **options)
    assert facts["resumed_from"] == 5
    for (name, expected), found in zip(straight.named_parameters(), resumed.parameters(), strict=True):
        assert torch.equal(found, expected), name


def test_replicas_draw_other_bits_than_each_other_and_the_same_ones_again():
    model = torch.nn.Linear(4, 4)
    replicas = Replicas(model, 2, 2)
    both_at_work = threading.Barrier(2, timeout=120)

    def loss_of(size):
        drawn = dropout(torch.ones(size), 0.5)
        both_at_work.wait()
        return model.weight.sum(), drawn

    def draw(seed):
        replicas.seed(seed)
        return replicas.backward(loss_of, [1000, 1000])

    first, second = draw(3)
    assert not torch.equal(first, second)
    assert all(torch.equal(*two) for two in zip(draw(3), (first, second), strict=True))
    assert not torch.equal(draw(4)[0], first)
    assert torch.equal(model.weight.grad, torch.full((4, 4), 2.0))
    assert model.bias.grad is None, "no loss depends on it"
    replicas.close()


def test_an_error_in_a_replica_is_raised_when_the_other_is_done():
    model, done = torch.nn.Linear(2, 2), []

    def loss_of(what):
        if what == "bad":
            raise ValueError("this replica fails")
        done.append(what)
        return model.weight.sum(), torch.zeros(2)

    replicas = Replicas(model, 2, 2)
    with pytest.raises(ValueError, match="this replica fails"):
        replicas.backward(loss_of, ["bad", "good", "never seen", "good"])
    replicas.close()
    assert done == ["good", "good"]


def test_gradients_lie_in_memory_as_their_parameters_do():
    weight = torch.nn.Parameter(torch.randn(3, 5))
    model = torch.nn.ParameterList([weight])
    replicas = Replicas(model, 2, 2)
    x = torch.arange(3.0)
    replicas.backward(lambda _: ((weight.T @ x).sum(), torch.zeros(2)), [0, 1])
    replicas.close()
    assert weight.grad.stride() == weight.stride()
    assert torch.equal(weight.grad, 2 * x[:, None].expand(3, 5))


def test_who_has_replicas():
    model, settings = torch.nn.Linear(4, 4), TrainingConfig()
    two, one = (Device.open(DeviceSpec("cpu", threads), "fp32") for threads in (2, 1))
    assert replicas_for(model, settings, two, Group()) == 2
    assert replicas_for(model, settings, one, Group()) == 1
    assert replicas_for(model, settings, two, Group(0, 2)) == 1
    assert replicas_for(model, TrainingConfig(compile=True), two, Group()) == 1
    with torch.device("meta"):
        assert replicas_for(torch.nn.Linear(LARGEST, 1), settings, two, Group()) == 1
