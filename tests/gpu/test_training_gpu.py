"""Training on a GPU: exact resumes, compiled layers, saves that do not disturb.

The heads have d_k = 64, so that torch's fused attention is what is tested. Compiled code comes from torch's cache on
disk (`TORCHINDUCTOR_CACHE_DIR`), as in the process of a resumed attempt: one step of a training fills it first.
"""

import pytest
import torch

from experiments.config.training import TrainingConfig
from experiments.training import checkpoint
from tests.small_training import SIZES, losses, run

pytestmark = [
    pytest.mark.usefixtures("every_step"),
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


WIDE = SIZES.model_copy(update={"d_model": 128, "d_ff": 256, "d_k": 64, "d_v": 64})


@pytest.mark.parametrize("compiled", [False, True])
def test_a_resumed_training_equals_an_undisturbed_one_bit_for_bit(tmp_path, compiled):
    settings = TrainingConfig(train_steps=12, warmup_steps=10, checkpoint_steps=4, deterministic=True, compile=compiled)
    options = {"settings": settings, "sizes": WIDE, "kind": "cuda", "precision": "bf16"}
    if compiled:
        run(tmp_path / "cold", **options, stop_at=1)
    found = []
    for name, more in (("straight", {}), ("1", {"stop_at": 5}), ("2", {"earlier": [tmp_path / "1"]})):
        torch.compiler.reset()
        found.append(run(tmp_path / name, **options, **more))
    (_, _, events), _, (_, facts, seen) = found
    assert facts["resumed_from"] == 5
    assert losses(seen) == {step: loss for step, loss in losses(events).items() if step > 5}
    path = "checkpoints/step-00000012"
    for file in ("model.safetensors", "optimizer.safetensors"):
        assert (tmp_path / "2" / path / file).read_bytes() == (tmp_path / "straight" / path / file).read_bytes()


@pytest.mark.parametrize("settings", [{}, {"compile": True}, {"deterministic": True}])
def test_the_gpu_trains_as_the_processor_does(tmp_path, settings):
    still = WIDE.model_copy(update={"dropout": 0.0})
    base = {"train_steps": 12, "warmup_steps": 10, "learning_rate_scale": 0.1}
    _, _, expected = run(tmp_path / "cpu", sizes=still, settings=TrainingConfig(**base))
    _, _, found = run(tmp_path / "cuda", sizes=still, settings=TrainingConfig(**base, **settings), kind="cuda")
    assert losses(found) == pytest.approx(losses(expected), rel=1e-3)  # TF32 is off: products are fp32
    weights = checkpoint.load_weights(tmp_path / "cuda" / "final")
    assert all(tensor.device.type == "cpu" for tensor in weights.values())
