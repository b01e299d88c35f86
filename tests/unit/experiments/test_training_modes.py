"""Deterministic and compiled training give the same numbers, and a clear message if a mode is not available."""

import contextlib
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from experiments.config.training import TrainingConfig
from experiments.data.collate import Batch
from experiments.device import Device
from experiments.device_spec import DeviceSpec
from experiments.errors import Preempted, UserError
from experiments.training import compiled_layers, ranks, state
from model.network import EncoderDecoder as Network
from model.network import build_model
from tests.small_training import PIECES, SIZES, kinds, losses, pairs, run

pytestmark = pytest.mark.usefixtures("every_step")

DETERMINISTIC = TrainingConfig(train_steps=12, warmup_steps=10, checkpoint_steps=4, deterministic=True)


def test_deterministic_mode_is_switched_on_recorded_and_off_again(tmp_path):
    _, facts, _ = run(tmp_path, settings=DETERMINISTIC)
    assert torch.are_deterministic_algorithms_enabled()
    assert facts["deterministic"] is True
    Device.open(DeviceSpec(), "fp32")
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_kernel_that_cannot_be_deterministic_is_named_and_nothing_is_written(tmp_path, monkeypatch):
    decode = Network.decode

    def careless(self, target, memory, mask=None):
        torch.zeros(3).put_(torch.tensor([1]), torch.ones(1))  # has no deterministic kernel
        return decode(self, target, memory, mask)

    monkeypatch.setattr(Network, "decode", careless)
    with pytest.raises(UserError, match=r"training\.deterministic is set, but put_ has no deterministic .* to false"):
        run(tmp_path, settings=DETERMINISTIC)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow  # torch's compiler takes seconds to import
def test_compiled_layers_train_alike_share_their_graphs_and_score_eagerly(tmp_path, monkeypatch):
    monkeypatch.setattr(state, "compile_layers", partial(state.compile_layers, backend="aot_eager"))
    from torch._dynamo.utils import counters

    counters.clear()
    sizes = SIZES.model_copy(update={"dropout": 0.0, "num_layers": 3})
    settings = {"train_steps": 6, "warmup_steps": 10, "eval_steps": 2}
    _, _, eager = run(tmp_path / "eager", settings=TrainingConfig(**settings), sizes=sizes)

    models, scored = [], []
    monkeypatch.setattr(
        "tests.small_training.build_model", lambda *a, **k: models.append(build_model(*a, **k)) or models[-1]
    )

    def evaluate(step):
        text = torch.randint(1, PIECES, (step, 3 + step))  # a shape of its own every time
        models[-1](text, None, text)
        scored.append(step)
        return {"perplexity": 3.0}

    _, facts, events = run(
        tmp_path / "compiled", settings=TrainingConfig(**settings, compile=True), sizes=sizes, evaluate=evaluate
    )
    assert facts["compiled"] is True
    assert losses(events) == pytest.approx(losses(eager), rel=1e-5)
    assert scored == [2, 4, 6]
    assert counters["stats"]["unique_graphs"] == 2, "one for the encoder's layers, one for the decoder's"
    assert list(models[-1].state_dict()) == list(build_model(sizes, PIECES).state_dict())


@pytest.mark.slow
def test_more_graphs_than_planned_end_a_compiled_training(tmp_path, monkeypatch):
    """A batch of one sentence needs a separate graph. Larger batches share one."""
    monkeypatch.setattr(state, "compile_layers", partial(state.compile_layers, backend="eager"))
    monkeypatch.setattr(compiled_layers, "GRAPHS", 1)
    torch._dynamo.reset()

    def batches(step):
        whole = pairs(step)
        sides = (whole.source, whole.target_input, whole.target_output)
        cut = [side[: max(1, 6 - step)] for side in sides]
        return [Batch(*cut, int((cut[0] != 0).sum()), int((cut[2] != 0).sum()))]

    settings = TrainingConfig(train_steps=6, compile=True, checkpoint_steps=1)
    with pytest.raises(UserError, match="more than 1 graphs"):
        run(tmp_path, settings=settings, batches=batches)
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2, "what was saved before stays, the newest two"


def test_a_resume_says_that_modes_changed(tmp_path):
    run(tmp_path / "1", stop_at=5)
    _, _, events = run(tmp_path / "2", settings=DETERMINISTIC, earlier=[tmp_path / "1"])
    assert kinds(events, "resumed")[0]["changed"] == {"deterministic": [False, True]}


def test_a_compiled_training_compiles_on_the_threads_of_its_slot(monkeypatch):
    monkeypatch.setattr(torch._inductor.config, "compile_threads", 32)
    state.compile_layers(build_model(SIZES, PIECES), backend="eager", threads=3)
    assert torch._inductor.config.compile_threads == 3


@pytest.mark.parametrize(
    ("error", "aborted"),
    [(RuntimeError("NCCL error"), [1]), (KeyboardInterrupt(), [1]), (Preempted(3), []), (None, [])],
)
def test_a_rank_that_fails_ends_what_runs_on_its_gpu(monkeypatch, error, aborted):
    """NCCL's kernels wait for the other ranks. After an agreed stop, all ranks end without being interrupted."""
    found = []
    world = SimpleNamespace(abort=lambda: found.append(1))
    calls = dict.fromkeys(("init_process_group", "new_group", "destroy_process_group"), lambda *_, **__: None)
    monkeypatch.setattr(ranks, "dist", SimpleNamespace(**calls, group=SimpleNamespace(WORLD=world)))
    ends = contextlib.suppress(RuntimeError, KeyboardInterrupt, Preempted)
    with ends, ranks.joined(DeviceSpec("cuda", count=2), 0, 0, None):
        if error:
            raise error
    assert found == aborted
