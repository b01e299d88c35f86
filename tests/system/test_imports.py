"""Training and decoding import only torch, numpy, sentencepiece, sacrebleu, safetensors and pydantic."""

import subprocess
import sys

from .conftest import environment

ABSENT = ("mlflow", "optuna", "typer", "rich", "pandas", "psutil", "scipy", "sqlalchemy")


def test_training_and_decoding_need_no_harness() -> None:
    code = f"""
import sys
for name in {ABSENT!r}:
    sys.modules[name] = None  # importing it raises ImportError
import experiments.tasks.translation
import experiments.training.trainer
import experiments.evaluation.likelihood, experiments.evaluation.translate
import experiments.data.encoding.prepare
import experiments.data.batching
import model.network
import benchmarks.gpu.__main__, benchmarks.attention, benchmarks.gpu.training, benchmarks.gpu.packing
import benchmarks.gpu.decoding, benchmarks.gpu.cards, benchmarks.gpu.table3, benchmarks.gpu.command
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr
