"""Compiled layers are traced as one graph for all lengths by every supported torch, with the same numbers."""

import pytest
import torch

from experiments.config.training import TrainingConfig
from experiments.tasks.train_network import compiles
from experiments.training.compiled_layers import compile_layers
from model.layers.position_wise.activations import GATED, PLAIN
from model.network import build_model
from tests.lines import random_config
from tests.slow import mostly_slow
from tests.small_training import PIECES, SIZES

STILL = SIZES.model_copy(update={"dropout": 0.0, "num_layers": 2})
# (B, S, T): equal lengths at first, on both sides of the length from which attention takes another kernel
SHAPES = [(2, 5, 5), (3, 6, 5), (4, 7, 9), (2, 4, 12), (5, 31, 30)]


def graphs_of(config, shapes):
    """Compare eager and compiled layers, in hidden states and gradients; return the number of graphs."""
    from torch._dynamo.utils import counters

    torch.manual_seed(1)
    torch.compiler.reset()  # the networks of other tests count towards the limit of graphs
    model = build_model(config, PIECES).double()
    batches = []
    for B, S, T in shapes:
        source, target = (torch.randint(4, PIECES, (B, length)) for length in (S, T))
        batches.append((source, torch.arange(S) < S - torch.arange(B)[:, None], target))

    def compute():
        found = []
        for batch in batches:
            model.zero_grad()
            hidden = model(*batch)
            hidden.square().sum().backward()
            found += [hidden.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
        return found

    expected = compute()
    counters.clear()
    compile_layers(model, backend="eager")
    torch.testing.assert_close(compute(), expected)
    return counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("activation", mostly_slow([*PLAIN, *GATED], 0))
def test_every_activation_is_traced(activation):
    config = STILL.model_copy(update={"activation": activation})
    assert graphs_of(config, SHAPES[:1]) == 2, "one for the encoder's layers, one for the decoder's"


@pytest.mark.slow
def test_one_graph_of_a_kind_of_layer_serves_all_lengths():
    assert graphs_of(STILL, SHAPES) == 2


@pytest.mark.parametrize("seed", mostly_slow([s for s in range(60) if not random_config(s).not_compiled()][:30], 0))
def test_any_network_that_compiles_is_traced_at_several_lengths(seed):
    graphs_of(random_config(seed, dropout=0.0, max_length=64), SHAPES)


@pytest.mark.parametrize(
    ("asked", "on_processor", "on_gpu"), [(False, 0, 0), (True, 1, 1), ("cuda", 0, 1), ("auto", 0, 0)]
)
def test_where_layers_are_compiled(asked, on_processor, on_gpu):
    settings = TrainingConfig(compile=asked)
    assert [compiles(settings, gpu) for gpu in (False, True)] == [on_processor, on_gpu]
