"""Operations and parameters of changed networks against torch's counter, formulas, and what a training records."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from ablations.extras.module_rows.operations import TrainingChange
from ablations.extras.module_rows.own_networks import change_network
from experiments.config.run_config import RunConfig
from experiments.data.collate import Batch
from experiments.tasks.train_network import _trained_on
from model import cost
from model.config import ModelConfig
from model.network import EncoderDecoder, build_model, num_params

SMALL: dict[str, Any] = {"num_layers": 2, "d_model": 8, "d_ff": 16, "num_heads": 2, "d_k": 4, "d_v": 4}
VOCABULARY = 11
SIZES = (VOCABULARY, VOCABULARY)


def built(config: ModelConfig, lines: Sequence[str] = ()) -> EncoderDecoder:
    model = build_model(config, *SIZES)
    pair = torch.randint(4, VOCABULARY, (2, 5))
    change_network(model, lines, [Batch(pair if config.encoder else pair[:, :0], pair, pair, 10, 10)])
    model.set_attention_kernel("plain")
    return model


def by_torch(model: EncoderDecoder, source: int, target: int) -> int:
    """Operations of forward and backward pass on one pair, with real weights and a loss."""
    pieces = torch.randint(4, VOCABULARY, (1, source)), torch.randint(4, VOCABULARY, (1, target))
    with FlopCounterMode(display=False) as counter:
        model.logits(model(pieces[0], None, pieces[1])).square().sum().backward()
    return counter.get_total_flops()


CHANGES: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ["decoder.layers.0 -> remove", "encoder.layers.1.self_attention -> zero"]),
    ({}, ["*coder.layers.*.feed_forward -> shrink 0.5"]),
    ({"activation": "swiglu"}, ["encoder.layers.*.feed_forward -> shrink 0.25"]),
    ({}, ["decoder.layers.*.cross_attention -> zero"]),  # no gradient reaches the encoder
    ({}, ["decoder.layers[1:].cross_attention -> mean", "head.0 of encoder.layers.0.self_attention -> zero"]),
    ({}, ["encoder -> freeze"]),
    ({}, ["encoder.layers.1 -> tie encoder.layers.0", "decoder.layers.0 -> reinitialise"]),
    ({}, ["encoder.layers.0.feed_forward.outer -> torch.nn:Linear(16, 8, bias=False)"]),
    ({"window": 4}, ["encoder.layers.0.self_attention -> identity"]),
    ({"decoder": "2 * (experts(count=3, active=2), cross_attention)"}, ["decoder.layers.0.experts -> zero"]),
    ({"encoder": "", "decoder": "N * (self_attention, feed_forward)"}, ["decoder.layers.0.self_attention -> zero"]),
]


@pytest.mark.parametrize(("settings", "lines"), CHANGES, ids=[" ".join(lines) for _, lines in CHANGES])
def test_the_change_is_that_of_torchs_counter(settings: dict[str, Any], lines: list[str]) -> None:
    config = ModelConfig(**{**SMALL, **settings})
    change, plain, changed = TrainingChange(config, SIZES, lines), built(config), built(config, lines)
    for source, target in ((7, 5), (40, 17)) if settings.get("window") else ((7, 5),):
        lengths = (source if config.encoder else 0, target)
        assert change.of(*lengths) == by_torch(changed, *lengths) - by_torch(plain, *lengths)
    assert change.params == num_params(changed) - num_params(plain)


@pytest.mark.parametrize("window", [None, 4])
def test_many_pairs_are_those_pairs_one_by_one(window: int | None) -> None:
    """Also where the lengths that are counted do not tell the others: in a window's blocks."""
    lines = ["encoder.layers.0.self_attention -> zero", "decoder.layers.0.cross_attention -> zero"]
    change = TrainingChange(ModelConfig(**{**SMALL, "num_layers": 1, "window": window}), SIZES, lines)
    sources, targets = np.array([3, 70, 9, 40, 12, 33, 3, 31]), np.array([4, 4, 9, 33, 5, 17, 6, 12])
    found = change(sources, targets)
    counted = len(change._known)
    assert found.tolist() == [change.of(*pair) for pair in zip(sources.tolist(), targets.tolist(), strict=True)]
    assert counted == (10 if window is None else 12)  # five of each seven lengths; of the sources all in a window


def test_the_change_is_that_of_the_formula() -> None:
    """Also of recurrent layers, whose backward passes torch counts with a few products less."""
    of_line = {
        "encoder.layers.*.feed_forward -> zero": 2 * 3 * 2 * 7 * (2 * 8 * 16),
        "decoder.layers.1.self_attention -> zero": 3 * 2 * (5 * 4 * 8 * 8 + 2 * 8 * 5 * 5),
        "decoder.layers.*.feed_forward -> shrink 0.5": 2 * 3 * 2 * 5 * (2 * 8 * 8),
    }
    for line, fewer in of_line.items():
        assert TrainingChange(ModelConfig(**SMALL), SIZES, [line]).of(7, 5) == -fewer
    with_lstm = ModelConfig(**SMALL, encoder="2 * (lstm, feed_forward)")
    without = ModelConfig(**SMALL, encoder="2 * feed_forward")
    found = TrainingChange(with_lstm, SIZES, ["encoder.layers.*.lstm -> zero"]).of(7, 5)
    assert found == cost.training_flops(without, VOCABULARY, 7, 5) - cost.training_flops(with_lstm, VOCABULARY, 7, 5)


def test_parameters_are_those_of_the_column() -> None:
    """Rows that only pad the vocabulary count neither before nor after."""
    for settings in ({}, {"tying": "none"}, {"embedding_size": 4}, {"shared_vocabulary": False}):
        config = ModelConfig(**{**SMALL, **settings})
        model = build_model(config, *SIZES)
        facts = change_network(model, ["encoder.layers.0 -> remove", "decoder.layers.0.feed_forward -> zero"])
        assert facts["params_before"] == cost.num_params(config, *SIZES)
        one_layer = cost.num_params(config, *SIZES) - cost.num_params(
            config.model_copy(update={"encoder": "N * (self_attention, feed_forward)", "encoder_layers": 1}), *SIZES
        )
        assert facts["params_before"] - facts["params_after"] == one_layer + 2 * 8 * 16 + 16 + 8


def test_a_layer_counts_by_its_probability_to_be_computed() -> None:
    config, dropping = ModelConfig(**SMALL), ModelConfig(**SMALL, layer_drop=0.25)
    lines, lengths = ["encoder.layers.0 -> remove"], (np.array([7]), np.array([5]))
    assert TrainingChange(dropping, SIZES, lines)(*lengths) == 0.75 * TrainingChange(config, SIZES, lines)(*lengths)


class _Lengths:
    """A source of batches that knows how often each pair of lengths was trained on."""

    max_tokens = 100

    def __call__(self, step: int) -> list[Batch[torch.Tensor]]:
        raise AssertionError

    def trained_on(self, steps: int) -> tuple[np.ndarray[Any, Any], ...]:
        return np.array([2, 3]) * steps, np.array([7, 3]), np.array([5, 6])

    def describe(self) -> dict[str, Any]:
        return {}


def test_a_record_has_the_operations_of_the_changed_network() -> None:
    lines = ["encoder.layers.0 -> remove", "decoder.layers.*.feed_forward -> shrink 0.5"]
    config = RunConfig(model=ModelConfig(**SMALL))
    change = TrainingChange(config.model, SIZES, lines)
    changed = built(config.model, lines)
    once = 2 * by_torch(changed, 7, 5) + 3 * by_torch(changed, 3, 6)
    padding = 3 * 2 * (64 - VOCABULARY) * 8 * (2 * 5 + 3 * 6)  # the softmax's rows that pad the vocabulary
    facts = _trained_on(config, VOCABULARY, _Lengths(), (0, 4), [change])
    assert facts["flops"] == 4 * (once - padding) and facts["target_tokens"] == 4 * 28
    of_branch = _trained_on(config, VOCABULARY, _Lengths(), (1, 4), [change])
    assert of_branch["flops"] == 3 * (once - padding)
