"""A switch for tests makes this program, torch and children see a processor with AVX2 only."""

import subprocess
import sys
from pathlib import Path

import pytest

from experiments.processes.processor import SWITCH
from experiments.store.layout import Store

from .conftest import Cli, as_json, environment

ASKED = """
import torch
from experiments.processes.processor import has_bf16
print(torch.backends.cpu.get_cpu_capability(), torch.ops.mkldnn._is_mkldnn_bf16_supported(), has_bf16())
"""
STUDY = """
name = "narrow"
title = "A study for a GPU"

[base]
model = {num_layers = 1, d_model = 8, d_ff = 16, num_heads = 2, d_k = 4, d_v = 4}
data = {vocab_size = 120, builtin_pairs = 100}
training = {train_steps = 3, tokens_per_batch = 300, precision = "bf16"}
evaluation = {beam_size = 1, max_extra_length = 3}

[[variation]]
key = "base"

[[variation]]
key = "any"
set = {training.precision = "auto"}
"""


@pytest.fixture(autouse=True)
def _avx2(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SWITCH.items():
        monkeypatch.setenv(name, value)


def test_the_switch_takes_effect_in_torch() -> None:
    """The test does not use torch.cpu.get_capabilities(), which reads the real processor."""
    done = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, env=environment(), check=True)
    assert done.stdout.split() == ["AVX2", "False", "False"]


@pytest.mark.nightly
def test_a_study_for_a_gpu_is_tried_and_trained_with_a_warning(cli: Cli, tmp_path: Path) -> None:
    study, store = tmp_path / "narrow.toml", tmp_path / "store"
    study.write_text(STUDY)
    asked = (study, "--store", store, "--devices", "cpu:1")
    tried = cli("run", *asked, "--smoke").stderr
    assert 'note: base: the precision is "bf16", for which this processor has no instructions' in tried
    assert "2 of 2 rows passed" in tried
    done = cli("run", *asked, "--json")
    assert done.stderr.count("has no instructions") == 1
    assert {row["row"]: row["n"] for row in as_json(done)} == {"base": 1, "any": 1}
    results = (Store.open(store).result(path.name) for path in (store / "runs").iterdir())
    assert sorted(result.precision or "" for result in results if result) == ["bf16", "fp32"]


def test_half_a_switch_is_a_mistake(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "narrow.toml").write_text(STUDY)
    monkeypatch.setenv("ABLATIONS_TEST_CPU", "avx512")
    said = cli("plan", tmp_path / "narrow.toml", "--store", tmp_path / "store", code=2).stderr
    assert "ABLATIONS_TEST_CPU=avx2 ATEN_CPU_CAPABILITY=avx2" in said and "Traceback" not in said
