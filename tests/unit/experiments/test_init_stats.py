"""Tests of attention entropy and gradient norm before the first update (the paper's footnote 4)."""

import itertools
import math

import pytest
import torch
from torch.nn import functional as F

from experiments.config.training import TrainingConfig
from experiments.device import Device, seed_everything
from experiments.device_spec import DeviceSpec
from experiments.tasks.translation import TASK
from experiments.training import state
from experiments.training.curve import entropies, jacobians
from model.config import ModelConfig
from model.network import build_model
from tests.small_training import PIECES, SIZES, kinds, losses, pairs, run

WITHOUT = {"positions": "none", "norm": "none"}
SETTINGS = TrainingConfig(train_steps=6, warmup_steps=10, checkpoint_steps=2)


def entropy(scores):
    powers = [math.exp(score) for score in scores]
    return -sum(p / sum(powers) * math.log(p / sum(powers)) for p in powers)


def built(seed=3, **changes):
    seed_everything(seed)
    return build_model(ModelConfig(**{**SIZES.model_dump(), **changes}), PIECES)


def device(precision="fp32"):
    return Device.open(DeviceSpec("cpu"), precision)


@pytest.mark.parametrize("side", ["encoder", "decoder"])
@torch.no_grad()
def test_entropy_is_its_formula_over_the_real_pieces(side):
    model, batch = built(), pairs(1)
    text_BT, labels_BT = (
        (batch.source, batch.source) if side == "encoder" else (batch.target_input, batch.target_output)
    )
    stack = getattr(model, side)
    x_BTD = stack.positions(model.target_embedding(text_BT))
    found = []
    for x_TD, label_T in zip(x_BTD, labels_BT, strict=True):
        length = int((label_T != 0).sum())
        attention = stack.layers[0].self_attention
        for weight in attention.qkv.weight.chunk(2):  # biases start at 0
            q, k, _ = (x_TD @ weight.T).split(4, dim=1)
            for i in range(length):
                keys = range(length if side == "encoder" else i + 1)
                found.append(entropy([float(q[i] @ k[j]) / 2 for j in keys]))
    expected = sum(found) / len(found)
    assert entropies(model, batch, device())[side] == pytest.approx(expected, rel=1e-5)


@torch.no_grad()
def test_equal_scores_have_the_entropy_of_the_number_of_keys():
    model, batch = built(), pairs(1)
    for layer in model.decoder.layers:
        layer.cross_attention.query.weight.zero_()
    logs = [math.log(int((row != 0).sum())) for row in batch.source]
    lengths = [int((row != 0).sum()) for row in batch.target_output]
    expected = sum(a * n for a, n in zip(logs, lengths, strict=True)) / sum(lengths)
    assert entropies(model, batch, device())["cross"] == pytest.approx(expected, rel=1e-5)


def test_the_gradient_norm_is_that_of_the_first_steps_mean_loss(tmp_path):
    sizes = SIZES.model_copy(update={"dropout": 0.0})
    settings = SETTINGS.model_copy(update={"label_smoothing": 0.0, "clip_norm": 1e-3})
    parts = [pairs(1), pairs(101, 4)]
    _, facts, _ = run(tmp_path, sizes=sizes, settings=settings, batches=lambda step: parts)
    seed_everything(1)
    model = build_model(sizes, PIECES)
    loss, pieces = torch.zeros(()), 0
    for batch in parts:
        logits = model.logits(model(batch.source, batch.source != 0, batch.target_input))
        loss = loss + F.cross_entropy(
            logits.flatten(0, 1), batch.target_output.flatten(), ignore_index=0, reduction="sum"
        )
        pieces += batch.num_target_tokens
    gradients = torch.autograd.grad(loss / pieces, list(model.parameters()))
    norm = math.sqrt(sum(float((gradient**2).sum()) for gradient in gradients))
    assert facts["start"]["gradient_norm"] == pytest.approx(norm, rel=1e-5)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_looking_changes_nothing(tmp_path, monkeypatch, precision):
    options = {
        "settings": SETTINGS, "precision": precision,
        "batches": lambda step: [pairs(step), pairs(-step)],
        "sizes": SIZES.model_copy(update={"attention_dropout": 0.1, "layer_drop": 0.2}),
    }  # fmt: skip
    model, facts, events = run(tmp_path / "1", **options)
    longer = {f"jacobian_{distance}" for distance in (8, 16, 32)}  # than these sentences
    assert facts["start"].keys() == facts["end"].keys() == set(TASK.init_stats) - longer
    assert all(0 < value < 100 for value in facts["start"].values())
    monkeypatch.setattr(state, "init_stats", lambda *_: {})
    other, without, unseen = run(tmp_path / "2", **options)
    assert without["start"] == without["end"] == {} and losses(events) == losses(unseen)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_a_resumed_training_keeps_what_was_measured(tmp_path):
    _, facts, events = run(tmp_path / "1", settings=SETTINGS)
    told = [point["metrics"] for point in kinds(events, "metrics")]
    assert {name: told[0][f"start_{name}"] for name in facts["start"]} == facts["start"]
    assert not any(name.startswith("start_") for point in told[1:] for name in point)
    run(tmp_path / "2", settings=SETTINGS, stop_at=2)
    _, resumed, events = run(tmp_path / "3", settings=SETTINGS, earlier=[tmp_path / "2"])
    assert resumed["resumed_from"] == 2 and resumed["start"] == facts["start"]
    assert not any(name.startswith("start_") for point in kinds(events, "metrics") for name in point["metrics"])


def test_unscaled_products_of_wide_keys_leave_little_entropy():
    """Section 3.2.1: "for large values of d_k, the dot products grow large in magnitude"."""
    wide = {"d_model": 512, "num_heads": 1}
    of = {
        (kind, d_k): entropies(built(**wide, compatibility=kind, d_k=d_k), pairs(1), device())
        for kind in ("scaled_dot", "dot")
        for d_k in (4, 256)
    }
    for side in ("encoder", "decoder", "cross"):
        assert of["dot", 256][side] < 0.5 * of["dot", 4][side] < of["scaled_dot", 256][side], side
        assert of["dot", 256][side] < 0.25 * of["scaled_dot", 256][side], side


def test_a_network_without_self_attention_has_entropies_of_what_it_has():
    for decoder in ("average, cross_attention", "attentional_lstm"):
        model = built(encoder="lstm", decoder=decoder)
        found = entropies(model, pairs(1), device("bf16"))
        assert found.keys() == {"cross"} and 0 < found["cross"] < math.log(6)


def test_a_jacobian_is_the_product_along_the_recurrence():
    """In one dimension h_t = tanh(w x_t + u h_(t−1) + …), so ∂h_T/∂x_(T−K) is ∂h_T/∂x_T times K factors u (1 − h²)."""
    model = built(encoder="rnn(residual=false)", decoder="last_state, feed_forward", **WITHOUT, d_model=1)
    source_BS = torch.tensor([[5, 6, 7, 8, 9, 2]])
    h_S = model.eval().encode(source_BS).detach().flatten()
    (factor,) = model.encoder.layers[0].rnn.ahead.weight_hh_l0.detach().flatten()
    expected = {k: float((factor**k * (1 - h_S[-1 - k : -1] ** 2).prod()).abs()) for k in (1, 2, 4)}
    assert jacobians(model, source_BS, device()) == pytest.approx(expected, rel=1e-4)


def test_gradients_of_a_recurrent_network_vanish_or_explode_with_its_gain():
    """The spectral radius of the state's initial matrix is about gain / √3 (Pascanu et al. 2013)."""
    sources_BS = torch.randint(4, PIECES, (20, 17), generator=torch.Generator().manual_seed(0))
    reach = {}
    for gain in (1, 5):
        encoder = f"rnn(residual=false, gain={gain})"
        model = built(encoder=encoder, decoder="last_state, feed_forward", **WITHOUT, d_model=32)
        reach[gain] = jacobians(model, sources_BS, device())
    distances = (1, 2, 4, 8, 16)
    assert all(reach[1][far] < 0.7 * reach[1][near] for near, far in itertools.pairwise(distances))
    assert reach[1][16] < 1e-3 and reach[5][16] > 10 and reach[5][16] > reach[5][8] > reach[5][4] > 1


def test_padding_changes_no_jacobian_and_a_layer_without_memory_has_none():
    padded = torch.tensor([[5, 6, 7, 2, 0, 0]])
    for encoder, reaches in (("self_attention", True), ("gru", True), ("feed_forward", False)):
        model = built(encoder=encoder, decoder="last_state, feed_forward", **WITHOUT)
        found = jacobians(model, padded, device())
        assert found == pytest.approx(jacobians(model, padded[:, :4], device()), rel=1e-4)
        assert found.keys() == {1, 2} and all((value > 0) == reaches for value in found.values())
        assert all(parameter.grad is None for parameter in model.parameters()) and model.training
