"""Tests of CUDA graphs with a fake recorder on the CPU: when shapes are captured, compared or run eagerly."""

import copy
import logging

import pytest
import torch
from torch import nn

from experiments.config.training import TrainingConfig
from experiments.device import Device
from experiments.training import state
from experiments.training.graphs import EAGER_PASSES, Graphs, unusable
from model.network import build_model
from model.parts.dropout import dropout
from tests.small_training import PIECES, SIZES, losses, pairs, run

CPU = Device(torch.device("cpu"), "fp32", 1)


class FakeRecorder:
    """A recorder that computes at capture and at every replay into the same tensors, as a CUDA graph does."""

    def __init__(self, fails=lambda count: False, wrong=lambda count: False):
        self.captured = self.replayed = 0
        self.at_work = False
        self._fails, self._wrong = fails, wrong

    random_state = staticmethod(torch.get_rng_state)
    set_random_state = staticmethod(torch.set_rng_state)

    def record(self, work):
        self.captured += 1
        if self._fails(self.captured):
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        began, number = torch.get_rng_state(), self.captured
        sums, gradients = self._compute(work)
        torch.set_rng_state(began)

        def replay():
            self.replayed += 1
            now, _ = self._compute(work)
            sums.copy_(now + self._wrong(number))
            return sums, gradients

        return replay

    def _compute(self, work):
        self.at_work = True
        found = work()
        self.at_work = False
        return found


class Both:
    """Computes the same micro-batches with graphs and eagerly, with dropout and a parameter that no loss uses."""

    def __init__(self, recorder=None, rate=0.5, exact=True):
        torch.manual_seed(1)
        self.recorder = recorder or FakeRecorder()
        self.plain = nn.ParameterList([torch.randn(4, 3), torch.randn(3), torch.randn(2)])
        self.model = copy.deepcopy(self.plain)
        self.rate, self.eager_passes = rate, 0
        parameters = list(self.model)
        self.graphs = Graphs(parameters, self._eager, self.recorder, exact=exact)

    def loss_of(self, model, inputs):
        x, share = inputs
        loss = (dropout(x, self.rate) @ model[0] + model[1]).square().sum()
        return loss / share, torch.stack((loss.detach(), x.sum()))

    def _eager(self, inputs):
        self.eager_passes += not self.recorder.at_work
        loss, sums = self.loss_of(self.model, inputs)
        loss.backward()
        return sums

    def step(self, seed, sizes):
        """Run a step with a micro-batch of each size, and check that sums and gradients are bit-identical."""
        shared = torch.tensor(float(sum(sizes)))
        made = torch.Generator().manual_seed(seed)
        batches = [(torch.randn(size, 4, generator=made), shared) for size in sizes]
        torch.manual_seed(seed)
        expected = []
        for batch in batches:
            loss, sums = self.loss_of(self.plain, batch)
            loss.backward()
            expected.append(sums)
        ended = torch.get_rng_state()
        torch.manual_seed(seed)
        found = [self.graphs(batch) for batch in batches]
        assert torch.equal(torch.get_rng_state(), ended)
        assert all(torch.equal(*two) for two in zip(found, expected, strict=True))
        for one, other in zip(self.model, self.plain, strict=True):
            assert (one.grad is None) == (other.grad is None)
            assert one.grad is None or torch.equal(one.grad, other.grad)
            one.grad = other.grad = None


def test_each_shape_is_captured_at_its_third_pass_and_then_replayed():
    both = Both()
    for number, (size, captured, replayed, eager) in enumerate(
        [(5, 0, 0, 1), (5, 0, 0, 2), (5, 1, 1, 3), (5, 1, 2, 3), (6, 1, 2, 4), (5, 1, 3, 4), (6, 1, 3, 5), (6, 2, 4, 6)]
    ):
        both.step(number, [size])
        counts = both.recorder.captured, both.recorder.replayed, both.eager_passes
        assert counts == (captured, replayed, eager), number
    assert EAGER_PASSES == 2


def test_micro_batches_of_one_step_add_up_whatever_computes_each():
    both = Both()
    for step in range(8):  # from replays alone to an eager pass between two replays
        both.step(step, [5, 5, 6, 5, 7][: 2 + step % 4])
    assert both.recorder.replayed > 10


def test_seeds_of_a_step_decide_the_dropout_of_a_replay():
    both = Both()
    for seed in (1, 1, 1, 2, 1, 3):  # `step` compares with eager passes of these seeds
        both.step(seed, [5])
    assert both.recorder.replayed == 4


def test_a_shape_that_cannot_be_captured_stays_eager_and_others_do_not(caplog):
    both = Both(FakeRecorder(fails=lambda count: count == 1))
    for step in range(5):
        both.step(step, [5, 6])
    assert (both.recorder.captured, both.recorder.replayed) == (2, 3)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "((5, 4), ()) cannot be captured" in record.message and "not permitted" in record.message
    assert "\n" not in record.message


@pytest.mark.parametrize("exact", [True, False])
def test_a_replay_that_differs_ends_all_graphs_of_the_run_with_one_line(caplog, exact):
    both = Both(FakeRecorder(wrong=lambda number: number == 2), exact=exact)
    for step in range(6):
        both.step(step, [5])
    for step in range(6, 12):
        both.step(step, [6, 5])
    assert both.recorder.captured == 2
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and "differs from the eager pass" in record.message


def test_a_replay_that_leaves_the_generator_elsewhere_is_a_difference(caplog):
    both = Both()
    both.recorder.record = lambda work: lambda: (work(), torch.rand(1))[0]
    for _ in range(3):
        both.graphs((torch.ones(5, 4), torch.tensor(1.0)))
    assert "differs" in caplog.text


@pytest.mark.parametrize(("off", "agrees"), [(0.0, True), (1e-4, True), (0.1, False)])
def test_gradients_may_differ_by_their_order_of_adding_up_only_where_kernels_have_none(off, agrees):
    one = [torch.ones(3), None, torch.full((2,), 2.0)]
    other = [one[0] * (1 + off), None, one[2]]
    for exact in (True, False):
        assert Both(exact=exact).graphs._agree(one, other) == (agrees and (off == 0 or not exact))
    assert not Both(exact=False).graphs._agree(one, [one[0], one[0], one[2]])


def _settings(**more):
    return TrainingConfig(train_steps=12, warmup_steps=10, checkpoint_steps=4, graphs=True, **more)


def test_a_training_with_graphs_is_the_training_without_them(tmp_path, monkeypatch):
    recorders = []
    monkeypatch.setattr(state, "unusable", lambda *_: "")
    monkeypatch.setattr(state, "GraphRecorder", lambda device: recorders.append(FakeRecorder()) or recorders[-1])
    monkeypatch.setattr(Device, "number", lambda self, value: torch.tensor(value))

    def parts(step):
        return [pairs(step % 3, 6), pairs(step % 3 + 3, 4)]

    options = {"batches": parts, "settings": _settings(deterministic=True)}
    model, facts, events = run(tmp_path / "1", **options)
    assert facts["graphs"] is True and recorders[0].replayed >= 10
    run(tmp_path / "2", stop_at=5, **options)
    resumed, _, _ = run(tmp_path / "3", earlier=[tmp_path / "2"], **options)
    options["settings"] = options["settings"].model_copy(update={"graphs": False})
    plain, facts, plain_events = run(tmp_path / "4", **options)
    assert facts["graphs"] is False and losses(events) == losses(plain_events)
    for one, other, third in zip(*(m.parameters() for m in (model, plain, resumed)), strict=True):
        assert torch.equal(one, other) and torch.equal(one, third)
    torch.use_deterministic_algorithms(False)


def test_on_a_processor_graphs_are_ignored_with_one_line(tmp_path, caplog):
    _, facts, _ = run(tmp_path, settings=_settings())
    assert facts["graphs"] is False
    assert [record.message for record in caplog.records] == ["training.graphs is ignored: the device is a processor"]


@pytest.mark.parametrize(
    ("sizes", "settings", "ranks", "reason"),
    [
        ({}, {}, 1, ""),
        ({}, {"compile": True}, 1, ""),
        ({}, {}, 2, "several processes"),
        ({}, {"gleu_samples": 2}, 1, "gleu_samples"),
        ({"layer_drop": 0.1}, {}, 1, "layer_drop"),
        ({"softmax": "sampled"}, {}, 1, "sampled"),
        ({"encoder": "N * (self_attention, experts(count=2))"}, {}, 1, "experts"),
        ({"encoder": "N * lstm", "positions": "none"}, {}, 1, "lstm"),
    ],
)
def test_what_decides_in_every_step_anew_has_no_graph(monkeypatch, sizes, settings, ranks, reason):
    monkeypatch.setattr(Device, "is_cuda", True)
    model = build_model(SIZES.model_copy(update=sizes), PIECES)
    found = unusable(model, TrainingConfig(**settings), CPU, ranks)
    assert found == "" if not reason else reason in found
