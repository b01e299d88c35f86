"""Training on a GPU: exact resumes, compiled layers, saves that do not disturb."""

import pytest
import torch

from experiments.config import TrainingConfig
from experiments.training import checkpoint, curve
from tests.small_training import SIZES, losses, run

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@pytest.fixture(autouse=True)
def _every_step(monkeypatch):
    monkeypatch.setattr(curve, "EVERY_STEPS", 1)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_resumed_training_equals_an_undisturbed_one_bit_for_bit(tmp_path, compiled):
    settings = TrainingConfig(train_steps=12, warmup_steps=10, checkpoint_steps=4, deterministic=True, compile=compiled)
    options = {"settings": settings, "kind": "cuda", "precision": "bf16"}
    _, _, events = run(tmp_path / "straight", **options)
    run(tmp_path / "1", **options, stop_at=5)
    _, facts, seen = run(tmp_path / "2", **options, earlier=[tmp_path / "1"])
    assert facts["resumed_from"] == 5
    assert losses(seen) == {step: loss for step, loss in losses(events).items() if step > 5}
    path = "checkpoints/step-00000012"
    for file in ("model.safetensors", "optimizer.safetensors"):
        assert (tmp_path / "2" / path / file).read_bytes() == (tmp_path / "straight" / path / file).read_bytes()


@pytest.mark.parametrize("settings", [{}, {"compile": True}, {"deterministic": True}])
def test_the_gpu_trains_as_the_processor_does(tmp_path, settings):
    still = SIZES.model_copy(update={"dropout": 0.0})
    base = {"train_steps": 12, "warmup_steps": 10, "learning_rate_scale": 0.1}
    _, _, expected = run(tmp_path / "cpu", sizes=still, settings=TrainingConfig(**base))
    _, _, found = run(tmp_path / "cuda", sizes=still, settings=TrainingConfig(**base, **settings), kind="cuda")
    assert losses(found) == pytest.approx(losses(expected), rel=1e-3)  # TF32 is off: products are fp32
    weights = checkpoint.load_weights(tmp_path / "cuda" / "final")
    assert all(tensor.device.type == "cpu" for tensor in weights.values())
