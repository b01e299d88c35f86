"""Every row of the study `history` trains and decodes.

An LSTM with attention learns to reverse sequences. An LSTM that encodes the source in one vector does not.
"""

import json
from pathlib import Path

import pytest

from ablations.study.selectors import selection
from ablations.study.study import load_study
from experiments.config.training import TrainingConfig
from experiments.device import Device
from experiments.device_spec import DeviceSpec
from experiments.evaluation.beam import SearchSettings
from experiments.evaluation.translate import translate
from tests import small_training
from tests.slow import OF_SEEDS, mostly_slow

from .conftest import Cli, as_json


def _rows() -> dict[str, dict[str, object]]:
    """Return the settings of the study's rows with networks of width 8."""
    from ablations.planning.resolve import resolve
    from experiments.tasks.translation import TASK

    small = {"d_model": 8, "d_ff": 8, "d_k": 8, "d_v": 8, "max_length": 32}
    sets = [f"model.{name}={value}" for name, value in small.items()]
    rows = resolve(load_study("history"), selection(profile="demo", sets=sets), TASK)
    return {row.variation.key: row.config.model for row in rows}


@pytest.mark.parametrize(("key", "sizes"), mostly_slow(_rows().items(), 4, OF_SEEDS), ids=_rows())
def test_a_row_trains_two_steps_and_decodes(key: str, sizes: object, tmp_path: Path) -> None:
    settings = TrainingConfig(train_steps=2, warmup_steps=2, learning_rate=0.01)
    model, facts, _ = small_training.run(tmp_path, settings=settings, sizes=sizes)
    assert facts is not None and all(parameter.isfinite().all() for parameter in model.parameters()), key
    found = translate(model.eval(), [[4, 5, 3], [6, 3]], SearchSettings(2, 0.6, 4), Device.open(DeviceSpec(), "fp32"))
    assert all(len(best[0].ids) <= length + 4 + 1 for best, length in zip(found, (3, 2), strict=True))


REVERSAL = """
name = "reversal"
title = "Reversal by one vector and by attention"
task = "algorithmic"

[base.model]
d_model = 48
num_heads = 1
d_k = 48
d_v = 48
dropout = 0
positions = "none"
norm = "none"
encoder = "lstm(bidirectional=true, residual=false)"
decoder = "lstm(residual=false), cross_attention(compatibility=additive), lstm(residual=false)"

[base.data]
algorithm = "reverse"
symbols = 32
train_lengths = "3-16"
dev_lengths = "3-16"
test_lengths = ["3-5", "6-10", "11-16"]

[base.training]
train_steps = 900
warmup_steps = 100
tokens_per_batch = 500
learning_rate = 0.007
label_smoothing = 0
precision = "fp32"

[[variation]]
key = "attention"

[[variation]]
key = "last-state"
set = {model.decoder = "last_state, 2 * lstm(residual=false)"}
"""
SETS = ("3-5", "6-10", "11-16")


@pytest.mark.nightly
@pytest.mark.extra("algorithmic")
@pytest.mark.extra("attention_analysis")
def test_attention_reverses_long_inputs_along_the_anti_diagonal_and_one_vector_does_not(
    cli: Cli, tmp_path: Path
) -> None:
    study, store = tmp_path / "reversal.toml", tmp_path / "store"
    study.write_text(REVERSAL)
    evaluated = ("--set", "evaluation.sets=dev,test")
    done = cli("run", study, "--store", store, "--devices", "cpu:2", "--json", *evaluated)
    attention, vector = ([row[f"pieces_{name}"] for name in SETS] for row in as_json(done))
    assert min(attention) > 80  # for the longest set: 95.5 on a Xeon, 89.5 on an EPYC, which rounds differently
    assert vector[0] > vector[1] > vector[2]
    assert vector[2] < attention[2] - 30
    for length in (6, 12):
        mass = _mass_on_the_anti_diagonal(cli, study, store, [str(7 * place % 31) for place in range(length)])
        assert mass > 0.4  # uniform attention would give 1 / (length + 1)


def _mass_on_the_anti_diagonal(cli: Cli, study: Path, store: Path, symbols: list[str]) -> float:
    """Return the mean attention weight of output t on the symbol that it must copy, the t-th from the end."""
    asked = ("--row", "attention", "--target", " ".join(reversed(symbols)), "--store", store)
    found = json.loads(cli("attention", study, " ".join(symbols), *asked, "--json").stdout)
    (weights,) = found["maps"]["cross"][0]
    last = len(symbols) - 1
    return float(sum(weights[t][last - t] for t in range(len(symbols))) / len(symbols))
