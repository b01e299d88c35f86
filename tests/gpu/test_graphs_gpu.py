"""CUDA graphs: replayed passes are eager passes bit for bit, and a capture that fails does no harm."""

import pytest
import torch

from experiments.config.training import TrainingConfig
from experiments.device import GraphRecorder
from tests.small_training import SIZES, losses, pairs, run

pytestmark = [
    pytest.mark.usefixtures("every_step"),
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

WIDE = SIZES.model_copy(update={"d_model": 128, "d_ff": 256, "d_k": 64, "d_v": 64})


def _batches(step):
    """Three shapes that return; every second step has two micro-batches."""
    return [pairs(step % 3), pairs(step % 3 + 3, 4)][: 1 + step % 2]


def _settings(graphs, **more):
    return TrainingConfig(train_steps=30, warmup_steps=10, checkpoint_steps=10, graphs=graphs, **more)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_training_with_graphs_is_the_training_without_them_bit_for_bit(tmp_path, caplog, monkeypatch, precision):
    replayed = []
    replay = torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: (replayed.append(1), replay(graph))[1])
    options = {"batches": _batches, "sizes": WIDE, "kind": "cuda", "precision": precision}
    _, facts, events = run(tmp_path / "1", settings=_settings(True, deterministic=True), **options)
    assert facts["graphs"] is True and len(replayed) > 20 and not caplog.records
    _, _, expected = run(tmp_path / "2", settings=_settings(False, deterministic=True), **options)
    run(tmp_path / "3", settings=_settings(True, deterministic=True), stop_at=15, **options)
    run(tmp_path / "4", settings=_settings(False, deterministic=True), earlier=[tmp_path / "3"], **options)
    assert losses(events) == losses(expected)
    path = "checkpoints/step-00000030"
    for file in ("model.safetensors", "optimizer.safetensors"):
        found = {(tmp_path / name / path / file).read_bytes() for name in ("1", "2", "4")}
        assert len(found) == 1, file


def test_without_deterministic_kernels_graphs_are_used_as_well(tmp_path, caplog):
    _, facts, _ = run(tmp_path, settings=_settings(True), batches=_batches, sizes=WIDE, kind="cuda", precision="bf16")
    assert facts["graphs"] is True and not caplog.records


def test_draws_of_a_replay_follow_the_seed_and_a_failed_capture_leaves_the_device_usable():
    device = torch.device("cuda", 0)
    recorder, x = GraphRecorder(device), torch.ones(1000, device=device)

    def draw():
        return torch.nn.functional.dropout(x, 0.5)

    draw()  # before the capture, as a training does
    replay = recorder.record(draw)
    with pytest.raises(RuntimeError):
        recorder.record(lambda: draw().sum().item())
    second = recorder.record(lambda: draw() + draw())
    for seed in (1, 2, 1):
        torch.cuda.manual_seed(seed)
        expected = draw(), draw(), draw() + draw(), draw()
        torch.cuda.manual_seed(seed)
        found = replay().clone(), draw(), second().clone(), replay().clone()
        assert all(torch.equal(*two) for two in zip(found, expected, strict=True))
