"""Rows of the study `how-much-attention` have the layers that Domhan 2018 defines (Tables 3 to 5)."""

import pytest

from ablations.study.study import load_study
from model.settings import SIDES

PROFILES = ["paper", "small", "demo"]
LETTERS = {"self_attention": "s", "cross_attention": "c", "feed_forward": "f", "lstm": "r", "convolution": "k"}
# Sub-layers of encoder and decoder with six layers, by letter.
SEQUENCES = {
    "transformer": ("sf" * 6, "scf" * 6),
    "rnn": ("r" * 6, "r" * 6 + "cf"),
    "rnn-multi-att": ("r" * 6, "rc" * 6 + "f"),
    "rnn-ff": ("rf" * 6, "rcf" * 6),
    "cnn-glu": ("k" * 6, "kc" * 6),
    "cnn-relu-ff": ("kf" * 6, "kcf" * 6),
    "dec-rnn": ("sf" * 6, "rcf" * 6),
    "dec-cnn": ("sf" * 6, "kcf" * 6),
    "enc-rnn": ("rf" * 6, "scf" * 6),
    "enc-cnn": ("kf" * 6, "scf" * 6),
    "dec-combined": ("sf" * 6, "scfrcfkcf" * 2),
    "dec-none": ("sf" * 6, "cf" * 6),
}


@pytest.fixture(scope="module")
def study():
    return load_study("how-much-attention")


def parts(model, side):
    return [part for layer in model.layers(side) for part in layer]


def test_six_layers_as_defined(study, rows_of):
    rows = rows_of(study, profile="paper")
    found = {
        key: tuple("".join(LETTERS[part.kind] for part in parts(rows[key].config.model, side)) for side in SIDES)
        for key in SEQUENCES
    }
    assert found == SEQUENCES


@pytest.mark.parametrize("profile", PROFILES)
def test_a_step_changes_what_it_is_named_after_and_nothing_else(study, profile, rows_of):
    models = {key: row.config.model for key, row in rows_of(study, profile=profile).items()}
    full = models["transformer"]
    steps = [("rnn", "rnn-mh"), ("rnn-mh", "rnn-pos"), ("rnn-pos", "rnn-norm"), ("rnn-multi-att-1h", "rnn-multi-att")]
    for cnn in ("cnn-glu", "cnn-relu"):
        steps += [(cnn, f"{cnn}-norm"), (f"{cnn}-norm", f"{cnn}-mh")]
    changed = {
        "mh": {"num_heads", "d_k", "d_v"},
        "pos": {"positions"},
        "norm": {"norm"},
        "att": {"num_heads", "d_k", "d_v"},
    }
    for before, after in steps:
        one, other = models[before].model_dump(), models[after].model_dump()
        assert {name for name in one if one[name] != other[name]} == changed[after.rpartition("-")[2]], after
    for key, model in models.items():
        single = model.num_heads == 1
        assert single == (key in {"rnn", "rnn-multi-att-1h", "cnn-glu", "cnn-glu-norm", "cnn-relu", "cnn-relu-norm"}), (
            key
        )
        assert model.num_heads * model.d_k == model.num_heads * model.d_v == model.d_model == full.d_model, key
        assert len(
            [part for part in parts(model, "decoder") if part.kind in ("self_attention", "lstm", "convolution")]
        ) == (0 if key == "dec-none" else full.num_layers), key


@pytest.mark.parametrize("profile", PROFILES)
def test_the_first_layer_of_a_recurrent_encoder_reads_both_ways_and_convolutions_have_their_activation(
    study, profile, rows_of
):
    for key, row in rows_of(study, profile=profile).items():
        recurrent = [part.options.bidirectional for part in parts(row.config.model, "encoder") if part.kind == "lstm"]
        assert recurrent in ([], [True] + [False] * (row.config.model.num_layers - 1)), key
        for side in SIDES:
            for part in parts(row.config.model, side):
                if part.kind == "convolution":
                    assert (part.options.gated, part.options.rectified) == (("glu" in key), ("glu" not in key)), key


@pytest.mark.parametrize("profile", ["small", "demo"])
def test_one_learning_rate_and_length_of_training(study, profile, rows_of):
    trainings = {row.config.training for row in rows_of(study, profile=profile).values()}
    assert len(trainings) == 1
