"""The studies of language models: parameters, published numbers, and what rows change."""

import math

import pytest

from ablations.extras.language_models.task import TASK
from ablations.study.study import load_study
from model.cost import num_params

# Shazeer 2020, Table 1, read again from a transcription of the paper: log-perplexity at 65,536 and at 524,288 steps.
PRINTED = """
relu 1.997 1.677
gelu 1.983 1.679
swish 1.994 1.683
glu 1.982 1.663
bilinear 1.960 1.648
geglu 1.942 1.633
swiglu 1.944 1.636
reglu 1.953 1.645
"""
PROFILES = ("paper", "small", "demo")


@pytest.fixture
def rows_of(task, rows_of):
    """The short form of conftest, with the settings of language models."""
    task.config_type, task.columns, task.name = TASK.config_type, TASK.columns, TASK.name
    return rows_of


def parameters(rows):
    return {key: num_params(row.config.model, row.config.data.vocab_size) for key, row in rows.items()}


def test_published_perplexities_are_those_of_the_papers_logarithms():
    study = load_study("glu")
    lines = [line.split() for line in PRINTED.split("\n") if line]
    assert [row.key for row in study.variations] == [key for key, *_ in lines]
    for row, (_, early, late) in zip(study.variations, lines, strict=True):
        assert (row.paper["early"], row.paper["late"]) == (float(early), float(late))
        assert f"{math.log(row.paper['perplexity']):.3f}" == late
        change = math.log(row.paper["perplexity"] / study.variations[0].paper["perplexity"])
        assert f"{change:.3f}" == f"{float(late) - 1.677:.3f}"


@pytest.mark.parametrize("profile", PROFILES)
def test_gated_rows_have_the_parameters_of_the_others(profile, rows_of):
    rows = rows_of(load_study("glu"), profile=profile)
    assert len(set(parameters(rows).values())) == 1
    plain = {"relu", "gelu", "swish"}
    for key, row in rows.items():
        model = row.config.model
        assert model.activation == key and row.variation.group == ("" if key in plain else "gated")
        assert model.d_ff == model.d_model * 4 * (3 if key in plain else 2) // 3


def test_the_papers_network_is_one_stack_of_t5s_base(rows_of):
    """Raffel et al. 2019: 12 layers, 768 = 12 · 64, d_ff 3072, no biases, 32 buckets for each of 12 heads, RMSNorm."""
    rows = rows_of(load_study("glu"), profile="paper")
    layer = 4 * 768 * 768 + 2 * 768 * 3072 + 2 * 768
    assert parameters(rows)["relu"] == 12 * layer + 768 + 32 * 12 + 32_000 * 768


def test_gpt2_has_the_parameters_that_nanogpt_counts(rows_of):
    """nanoGPT prints 124,318,464 decayed and 121,344 other parameters for GPT-2; modded-nanogpt, untied: issue 26."""
    rows = rows_of(load_study("nanogpt"), profile="paper")
    found = parameters(rows)
    assert found["base"] == 124_318_464 + 121_344
    assert round(found["base"] / 1e6) == rows["base"].variation.paper["params"]
    assert found["base"] - found["rotary"] == 1024 * 768
    assert found["untied"] - found["base"] == 50_257 * 768
    assert found["base"] == found["muon"] == found["wsd"] == found["relu2"]
    assert found["qk-norm"] - found["base"] == 12 * 2 * 64


@pytest.mark.parametrize("profile", PROFILES)
def test_the_last_row_has_every_change_and_no_other(profile, rows_of):
    rows = rows_of(load_study("nanogpt"), profile=profile)
    alone = [row.overrides for key, row in rows.items() if key not in ("base", "all")]
    assert rows["base"].variation.is_base and all(alone)
    assert rows["all"].overrides == {name: value for changed in alone for name, value in changed.items()}
    assert sum(map(len, alone)) == len(rows["all"].overrides)
