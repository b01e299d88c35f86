"""Operations that a training records equal torch's counter and the formula of each part."""

from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from experiments.config.run_config import RunConfig
from experiments.config.training import TrainingConfig
from experiments.data.collate import Batch
from experiments.tasks.train_network import _trained_on
from model import cost
from model.config import ModelConfig
from model.network import build_model

SMALL: dict[str, Any] = {"num_layers": 2, "d_model": 8, "d_ff": 16, "num_heads": 2, "d_k": 4, "d_v": 4}
VOCABULARY = 11


def test_a_layer_counts_by_its_probability_to_be_computed() -> None:
    """The softmax is computed in any case."""
    config, dropping = ModelConfig(**SMALL), ModelConfig(**SMALL, layer_drop=0.25)
    softmax = 3 * 2 * 5 * 8 * VOCABULARY
    whole = cost.training_flops(config, VOCABULARY, 7, 5)
    assert cost.training_flops(dropping, VOCABULARY, 7, 5) == softmax + 0.75 * (whole - softmax)


class _Lengths:
    """A source of batches that counts how often each pair of lengths was used in training."""

    max_tokens = 100

    def __call__(self, step: int) -> list[Batch[torch.Tensor]]:
        raise AssertionError

    def trained_on(self, steps: int) -> tuple[np.ndarray[Any, Any], ...]:
        return np.array([2, 3]) * steps, np.array([7, 3]), np.array([5, 6])

    def describe(self) -> dict[str, Any]:
        return {}


def test_changes_of_the_network_add_their_operations() -> None:
    config = RunConfig(model=ModelConfig(**SMALL))
    plain = _trained_on(config, VOCABULARY, _Lengths(), (0, 4), [])
    added = _trained_on(config, VOCABULARY, _Lengths(), (0, 4), [lambda source, target: source, lambda s, target: -1.0])
    assert added["flops"] - plain["flops"] == 4 * (2 * (7 - 1) + 3 * (3 - 1))


def test_drawn_outputs_are_counted_in_a_training_for_the_expected_gleu() -> None:
    """Each source is encoded, and each output decoded, once for sampling and once for scoring."""
    config, samples = ModelConfig(**SMALL), 3
    model = build_model(config, VOCABULARY, VOCABULARY)
    model.set_attention_kernel("plain")
    source, target = torch.randint(4, 11, (1, 7)), torch.randint(4, 11, (1, 5))
    with FlopCounterMode(display=False) as encoding:
        memory = model.encode(source)
    with FlopCounterMode(display=False) as decoding:
        model.logits(model.decode(target, memory))
    padding = 2 * (64 - VOCABULARY) * 8 * 5
    one = encoding.get_total_flops() + samples * (decoding.get_total_flops() - padding)
    more = cost.training_flops(config, VOCABULARY, 7, 5, samples) - cost.training_flops(config, VOCABULARY, 7, 5)
    assert more == one + 3 * one
    training = {"train_steps": 4, "warmup_steps": 1, "gleu_samples": samples}
    run = RunConfig(model=config, training=TrainingConfig(**training))
    facts = _trained_on(run, VOCABULARY, _Lengths(), (0, 4), [])
    of_pairs = [cost.training_flops(config, VOCABULARY, *pair, samples) for pair in ((7, 5), (3, 6))]
    assert facts["flops"] == 4 * (2 * of_pairs[0] + 3 * of_pairs[1])
