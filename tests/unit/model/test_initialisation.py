"""Tests of build_model: initial weights, tied weights, saving and loading."""

import copy
import math

import pytest
import torch
from safetensors.torch import load_file, save_file

from model.config import ModelConfig
from model.layers.position_wise.feed_forward import FeedForward
from model.network import build_model
from model.parts.embedding import Embedding


@pytest.fixture(scope="module")
def wide():
    torch.manual_seed(3)
    return build_model(ModelConfig(num_layers=1, positions="learned"), 1000)


def assert_uniform(weight, fan_in, fan_out):
    bound = math.sqrt(6 / (fan_in + fan_out))
    assert weight.abs().max() <= bound
    assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)


def test_matrices_are_glorot_uniform(wide):
    layer = wide.decoder.layers[0]
    assert_uniform(layer.self_attention.qkv.weight, 512, 3 * 512)
    assert_uniform(layer.cross_attention.key_value.weight, 512, 2 * 512)
    assert_uniform(layer.cross_attention.query.weight, 512, 512)
    assert_uniform(layer.cross_attention.output.weight, 512, 512)
    assert_uniform(layer.feed_forward.inner.weight, 512, 2048)
    assert_uniform(layer.feed_forward.outer.weight, 2048, 512)


def test_one_matrix_for_q_k_v_starts_at_0_71_of_three(wide):
    separate = math.sqrt(2 / (512 + 512))
    assert wide.encoder.layers[0].self_attention.qkv.weight.std().item() / separate == pytest.approx(0.71, abs=0.01)


def test_embeddings_are_normal(wide):
    for weight in (wide.output_weight[:1000], wide.encoder.positions.weight):
        assert weight.std().item() == pytest.approx(512**-0.5, rel=0.01)
        assert weight.mean().item() == pytest.approx(0, abs=1e-3)
    embedded = wide.target_embedding(torch.arange(1000))
    assert embedded.var().item() == pytest.approx(1, rel=0.02)  # only after the product with √d_model
    torch.testing.assert_close(embedded, wide.output_weight[:1000] * math.sqrt(512))


def test_biases_and_norms_start_neutral(wide):
    for name, parameter in wide.named_parameters():
        if "norm.weight" in name:
            assert (parameter == 1).all(), name
        elif name.endswith("bias"):
            assert (parameter == 0).all(), name


def test_filling_rows_are_never_seen(small_config):
    torch.manual_seed(0)
    model = build_model(small_config(dropout=0.0), 70)
    assert model.output_weight.shape == (128, 8)
    assert (model.output_weight[70:] == 0).all()
    logits = model.logits(model(torch.randint(70, (2, 5)), None, torch.randint(70, (2, 4))))
    assert logits.shape == (2, 4, 70) and model.vocab_size == 70
    logits.logsumexp(-1).sum().backward()
    assert (model.output_weight.grad[70:] == 0).all()
    assert (model.output_weight.grad[:70].abs().sum(1) > 0).all()


def test_the_noisy_gate_starts_at_zero():
    """Shazeer et al. 2017, appendix A: W_g and W_noise start as matrices of zeros, so that the load is balanced."""
    for gate, zero in (("noisy_top_k", True), ("softmax", False)):
        config = ModelConfig(d_model=8, d_ff=8, encoder=f"experts(count=4, active=2, gate={gate})")
        experts = build_model(config, 20).encoder.layers[0].experts
        assert (not experts.router.weight.any()) is zero
        assert experts.noise is None or not experts.noise.weight.any()
        assert all(expert.inner.weight.any() for expert in experts.experts)


@pytest.mark.parametrize("compatibility", ["dot", "bilinear", "additive"])
def test_an_lstm_with_attention_starts_uniform_as_torchs(compatibility):
    torch.manual_seed(1)
    config = ModelConfig(num_layers=1, decoder="attentional_lstm", positions="none", compatibility=compatibility)
    cell = build_model(config, 20).decoder.layers[0].attentional_lstm
    bound = 512**-0.5
    for parameter in (cell.input.weight, cell.input.bias, cell.recurrent.weight):
        assert parameter.abs().max() <= bound
        assert parameter.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.03)
    assert_uniform(cell.output.weight, 2 * 512, 512)


def test_what_a_sublayer_draws_is_not_drawn_again(small_config, monkeypatch):
    """The network draws every nn.Linear first, then calls Sublayer.initialise."""
    monkeypatch.setattr(
        FeedForward, "initialise", lambda self: [torch.nn.init.constant_(p, 3) for p in self.parameters()]
    )
    found = [m for m in build_model(small_config(), 20).modules() if isinstance(m, FeedForward)]
    assert found and all((p == 3).all() for module in found for p in module.parameters())


def test_a_seed_gives_the_same_weights(small_config):
    states = []
    for _ in range(2):
        torch.manual_seed(5)
        states.append(build_model(small_config(), 50).state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


def test_meta_device_draws_nothing():
    model = build_model(ModelConfig(), 37000, device="meta")
    assert all(p.is_meta for p in model.parameters()) and all(b.is_meta for b in model.buffers())


def test_the_softmax_is_one_over_all_pieces():
    """Not hierarchical: one product with one matrix, normalised over the whole vocabulary."""
    torch.manual_seed(0)
    embedding = Embedding(70, 8)
    embedding.initialise()
    hidden = torch.randn(3, 8)
    probabilities = embedding.logits(hidden).softmax(-1)
    assert [name for name, _ in embedding.named_parameters()] == ["weight"]
    odds = (hidden @ embedding.weight[:70].T).exp()
    torch.testing.assert_close(probabilities, odds / odds.sum(-1, keepdim=True))


def test_shared_vocabulary_is_one_matrix(small_model):
    model = small_model()
    assert list(model.embeddings) == ["shared"]
    assert model.output_weight is model.target_embedding.weight
    separate = small_model(shared_vocabulary=False)
    assert sorted(separate.embeddings) == ["source", "target"]
    assert separate.output_weight is separate.target_embedding.weight


@pytest.mark.parametrize("shared", [True, False])
def test_copies_stay_tied(small_model, shared):
    model = small_model(shared_vocabulary=shared)
    twin = copy.deepcopy(model)
    assert twin.output_weight is twin.target_embedding.weight is not model.output_weight
    assert len(twin.embeddings) == (1 if shared else 2)
    source = torch.randint(20, (2, 5))
    assert torch.equal(twin(source, None, source), model(source, None, source))


@pytest.mark.parametrize(
    "changes", [{}, {"shared_vocabulary": False}, {"positions": "learned", "norm": "pre"}], ids=str
)
def test_weights_survive_a_file(small_model, small_config, tmp_path, changes):
    model = small_model(**changes)
    save_file(model.state_dict(), tmp_path / "weights.safetensors")  # refuses tensors that share memory
    other = build_model(small_config(**changes), 20).double().eval()
    source = torch.randint(20, (2, 5))
    assert not torch.equal(other(source, None, source), model(source, None, source))
    other.load_state_dict(load_file(tmp_path / "weights.safetensors"))
    assert torch.equal(other(source, None, source), model(source, None, source))


@pytest.mark.parametrize("training", [False, True])
def test_forward_is_one_graph(small_model, training):
    """The network does not branch on data: dynamo traces all of it, or raises."""
    model = small_model(num_layers=1, dropout=0.1 * training).train(training)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    source, target = torch.randint(20, (2, 5)), torch.randint(20, (2, 4))
    mask_BS = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    if training:
        compiled(source, mask_BS, target).sum().backward()
        assert all(p.grad is not None for p in model.parameters())
    else:
        # traced code takes torch's own softmax
        torch.testing.assert_close(compiled(source, mask_BS, target), model(source, mask_BS, target))
