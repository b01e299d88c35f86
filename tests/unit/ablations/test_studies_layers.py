"""Tests of the study `layers`, which replaces one type of layer by others with equal parameters."""

import re

import pytest

from ablations.study.study import load_study
from experiments.config.run_config import RunConfig
from model.cost import num_params
from model.settings import SIDES

NAMED = ("factorised-lstm", "memory-network", "neural-gpu")  # a row each, not one for either side


@pytest.mark.parametrize("profile", ["demo", "paper"])
def test_parameters_are_matched(profile, rows_of):
    rows = rows_of(load_study("layers"), profile=profile)
    counts = {key: num_params(row.config.model, row.config.data.vocab_size) for key, row in rows.items()}
    assert len(rows) == 1 + 5 * 3 + len(NAMED)
    assert all(abs(count / counts["base"] - 1) <= 0.01 for count in counts.values()), counts


@pytest.mark.parametrize("profile", ["demo", "paper"])
def test_a_row_has_its_type_where_it_says_and_as_many_layers_as_base(profile, rows_of):
    convolutions = {"convolution", "dilated", "separable"}
    for key, row in rows_of(load_study("layers"), profile=profile).items():
        if key in NAMED:
            lines = row.config.model.encoder + row.config.model.decoder
            assert key.replace("-", "_") in lines and ("cross_attention" in lines) == (key == "factorised-lstm")
            continue
        kind, _, where = key.partition("-")
        model = row.config.model
        for side in SIDES:
            stack = model.layers(side)
            assert len(stack) == model.num_layers, key
            replaced = kind if where in (side, "both") else "base"
            first = [layer[0] for layer in stack]  # the sub-layer that a row replaces
            expected = {"lstm": "lstm"} | dict.fromkeys(convolutions, "convolution")
            assert {part.kind for part in first} == {expected.get(replaced, "self_attention")}, key
            if replaced in convolutions:
                dilations = {part.options.dilation for part in first}
                assert dilations == ({1, 3, 9} if replaced == "dilated" else {1}), key
                assert {part.options.separable for part in first} == {replaced == "separable"}, key
            if replaced == "lstm":
                above = [part.options.bidirectional for part in first]
                assert above == [side == "encoder", *[False] * (len(above) - 1)], key
            assert all((part.config.window is not None) == (replaced == "restricted") for part in first), key
            attends = [any(part.kind == "cross_attention" for part in layer) for layer in stack]
            assert all(attends) if side == "decoder" else not any(attends), key


def test_plan_shows_lines_that_are_not_the_papers_expanded(rows_of):
    rows = rows_of(load_study("layers"), profile="demo")
    assert rows["base"].config.described() == []
    assert rows["lstm-both"].config.described() == [
        "encoder: 1 × lstm(bidirectional=true); 2 × lstm, feed_forward",
        "decoder: 3 × lstm, cross_attention, feed_forward",
    ]
    (line,) = rows["restricted-encoder"].config.described()
    assert re.fullmatch(r"encoder: 3 × self_attention\(window=4\), feed_forward", line)


def test_plan_says_what_a_token_leaves_unused_of_experts():
    model = {"encoder": "N * (self_attention, experts(count=3, active=2))"}
    described = RunConfig.from_mapping({"model": model}).described()
    expert = 2 * 512 * 2048 + 2048 + 512
    assert described[1:] == [f"experts: of the parameters a token leaves {6 * expert / 1e6:.2f}M unused"]
