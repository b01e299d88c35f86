"""The search gives the same results on a GPU as on a processor."""

import pytest
import torch

from experiments.device import Device
from experiments.device_spec import DeviceSpec
from experiments.evaluation.beam import SearchSettings
from experiments.evaluation.translate import translate
from model.config import ModelConfig
from model.network import build_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def test_same_text_as_on_cpu_in_fp32() -> None:
    torch.manual_seed(0)
    model = build_model(ModelConfig(num_layers=2, d_model=64, d_ff=128, num_heads=4, d_k=16, d_v=16), 500).eval()
    with torch.no_grad():
        model.target_embedding.weight *= 2
    sources = [[4 + (7 * i * j) % 490 for j in range(1 + i % 20)] for i in range(64)]
    settings = SearchSettings(4, 0.6, 20)
    on_cpu = translate(model, sources, settings, Device(torch.device("cpu"), "fp32", 1))
    on_gpu = translate(model.cuda(), sources, settings, Device.open(DeviceSpec("cuda", 1), "fp32"))
    same = sum(a[0].ids == b[0].ids for a, b in zip(on_cpu, on_gpu, strict=True))
    assert same >= 63  # up to a tie of scores
