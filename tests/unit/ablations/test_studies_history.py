"""Tests of the study `history`: from recurrence to attention, with equal parameters and steps in its miniatures."""

import pytest

from ablations.study.study import load_study
from experiments.tasks.translation import TASK
from model.cost import num_params
from model.settings import SIDES

CHARACTERS = {"demo": 66, "small": 150}  # pieces of ByteNet's vocabulary: the generated corpus, about those of a text


def pieces(config, profile):
    return CHARACTERS[profile] if config.data.units == "char" else config.data.vocab_size


@pytest.mark.parametrize("profile", ["demo", "small"])
def test_parameters_are_matched_and_steps_equal(profile, rows_of, task, monkeypatch):
    monkeypatch.setattr(task, "num_params", lambda config: num_params(config.model, pieces(config, profile)))
    rows = rows_of(load_study("history"), profile=profile)
    counts = {key: task.num_params(row.config) for key, row in rows.items()}
    assert all(abs(count / counts["transformer"] - 1) <= 0.01 for count in counts.values()), counts
    assert len({row.config.training.train_steps for row in rows.values()}) == 1
    rates = {}  # one of those with a recurrent layer, one of those without
    for row in rows.values():
        recurrent = {"rnn", "gru", "lstm"} & _parts(row.config.model, "encoder")
        rates.setdefault(bool(recurrent), set()).add(row.config.training.learning_rate)
    assert [len(found) for found in rates.values()] == [1, 1]


def test_characters_of_the_generated_corpus_are_as_many_as_the_sizes_were_chosen_for(rows_of):
    row = rows_of(load_study("history"), profile="demo", rows="bytenet")["bytenet"]
    assert TASK.vocab_sizes(row.config) == (CHARACTERS["demo"],) * 2


@pytest.mark.parametrize("profile", ["demo", "small", "paper"])
def test_each_step_has_the_layers_that_it_is_named_after(profile, rows_of):
    rows = rows_of(load_study("history"), profile=profile)
    kinds = {key: [_parts(row.config.model, side) for side in SIDES] for key, row in rows.items()}
    for key in ("rnn", "gru", "lstm"):
        assert kinds[key] == [{key}, {key, "last_state"}], key
    assert kinds["lstm-reversed"] == kinds["lstm"]
    for key in ("lstm-attention", "gnmt", "deep-att"):
        assert kinds[key] == [{"lstm"}, {"lstm", "cross_attention"}], key
    for name in ("dot", "general", "concat"):
        assert kinds[f"luong-{name}"] == [{"lstm"}, {"lstm", "attentional_lstm"}], name
    assert kinds["convs2s"] == [{"convolution"}, {"convolution", "cross_attention"}]
    assert kinds["bytenet"] == [{"convolution", "feed_forward"}, {"same_position", "convolution", "feed_forward"}]
    assert kinds["moe"] == [{"lstm", "experts"}, {"lstm", "cross_attention", "experts"}]
    assert rows["transformer"].variation.is_base
    dilations = {
        part.options.dilation
        for side in SIDES
        for layer in rows["bytenet"].config.model.layers(side)
        for part in layer
        if part.kind == "convolution"
    }
    assert dilations == {1, 2, 4, 8, 16}


def _parts(model, side):
    return {part.kind for layer in model.layers(side) for part in layer} - {"projection"}


def test_the_papers_depths(rows_of):
    rows = rows_of(load_study("history"), profile="paper")
    depths = {
        key: [
            sum(part.kind in ("lstm", "attentional_lstm", "convolution") for part in _all(row.config.model, side))
            for side in SIDES
        ]
        for key, row in rows.items()
    }
    assert depths["lstm"] == depths["luong-dot"] == [4, 4]
    assert (depths["gnmt"], depths["deep-att"]) == ([8, 8], [9, 7])
    assert (depths["convs2s"], depths["bytenet"], depths["moe"]) == ([15, 15], [30, 30], [2, 2])


def _all(model, side):
    return [part for layer in model.layers(side) for part in layer]
