"""The GPU benchmarks in miniature on a processor, so that they run unattended on a GPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import environment

pytestmark = pytest.mark.slow
MINIATURE = ("--tiny", "--device", "cpu")


def script(name: str, out: Path, *words: object) -> dict[str, object]:
    command = [sys.executable, "-m", f"benchmarks.{name}", *MINIATURE, "--out", str(out), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(out.read_text(encoding="utf-8")))


def test_training(tmp_path: Path) -> None:
    report = script("gpu_training", tmp_path / "out.json", "--rows", "base,big", "--steps", 2, "--warm", 1)
    assert "base" in json.dumps(report)


def test_training_of_a_language_model(tmp_path: Path) -> None:
    words = ("--study", "nanogpt", "--rows", "base,rotary", "--steps", 2, "--warm", 1)
    report = script("gpu_training", tmp_path / "out.json", *words)
    rows = report["rows"]
    assert isinstance(rows, dict) and set(rows) == {"base", "rotary"}
    assert rows["base"]["num_params"] == rows["rotary"]["num_params"] + 64 * 48  # learned positions
    assert rows["base"]["target_tokens_per_step"] > 0 and rows["base"]["mfu"] > 0


def test_table3(tmp_path: Path) -> None:
    work, out = tmp_path / "work", tmp_path / "out.json"
    report = script("gpu_table3", out, "--rows", "base,E", "--work", work, "--together", 2, "--threads", 1)
    assert "base" in json.dumps(report)
    assert "base" in out.with_suffix(".txt").read_text(encoding="utf-8")


def test_decoding(tmp_path: Path) -> None:
    report = script("gpu_decoding", tmp_path / "out.json")
    assert report["as_on_cpu"] == {"sentences": 20, "same": 20}
    assert report["best_s"]
