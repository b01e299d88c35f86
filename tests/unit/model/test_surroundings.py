"""Norms, residual connections, embeddings and weight sharing equal plain formulas."""

import pytest
import torch

from model.config import ModelConfig
from model.cost import num_params
from model.network import build_model
from model.parts.norms import make_norm
from model.parts.residual import RESIDUAL, deepnorm

X = torch.randn(3, 5, 8, dtype=torch.float64)


def doubled(x: torch.Tensor, given: object) -> torch.Tensor:
    return 2 * x + 1


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"norm": "none"}, lambda x, norm: 3 * x + 1),
        ({"norm": "none", "residual": False}, lambda x, norm: 2 * x + 1),
        ({"norm": "none", "residual_scale": 0.5}, lambda x, norm: (3 * x + 1) / 2),
        ({"norm": "none", "residual_scale": "rezero"}, lambda x, norm: x),
        ({"norm": "post"}, lambda x, norm: norm(3 * x + 1)),
        ({"norm": "pre"}, lambda x, norm: x + 2 * norm(x) + 1),
        ({"norm": "sandwich"}, lambda x, norm: x + norm(2 * norm(x) + 1)),
    ],
)
@pytest.mark.parametrize("kind", ["layer", "rms", "scale"])
def test_what_surrounds_a_sublayer(small_config, settings, expected, kind):
    config = small_config(**settings, norm_kind=kind, dropout=0.0)
    around = RESIDUAL[config.norm](config, "encoder").double()
    torch.testing.assert_close(around(X, doubled, None), expected(X, make_norm(config).double()))


def test_norms(small_config):
    layer, rms, scale = (make_norm(small_config(norm_kind=kind)).double()(X) for kind in ("layer", "rms", "scale"))
    torch.testing.assert_close(
        layer, (X - X.mean(-1, keepdim=True)) / X.std(-1, keepdim=True, correction=0), atol=1e-4, rtol=1e-4
    )
    torch.testing.assert_close(rms, X / (X**2).mean(-1, keepdim=True).sqrt(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(scale.norm(dim=-1), torch.full((3, 5), 8**0.5, dtype=torch.float64))
    torch.testing.assert_close(scale / scale.norm(dim=-1, keepdim=True), X / X.norm(dim=-1, keepdim=True))


def test_deepnorm_by_the_papers_formulas_for_18_and_6_layers(small_config):
    config = small_config(residual_scale="deepnorm", encoder_layers=18, decoder_layers=6)
    depth = (18**4 * 6) ** 0.0625
    assert deepnorm(config, "encoder") == pytest.approx((0.81 * depth, 0.87 / depth))
    assert deepnorm(config, "decoder") == pytest.approx((18**0.25, 72**-0.25))
    torch.manual_seed(1)
    plain = build_model(small_config(encoder_layers=18, decoder_layers=6), 20)
    torch.manual_seed(1)
    scaled = build_model(config, 20)
    beta = 72**-0.25
    ours, theirs = (model.decoder.layers[2] for model in (scaled, plain))
    torch.testing.assert_close(ours.feed_forward.inner.weight, theirs.feed_forward.inner.weight * beta)
    torch.testing.assert_close(ours.cross_attention.query.weight, theirs.cross_attention.query.weight)
    q, k, v = ours.self_attention.qkv.weight.view(2, 12, 8).split(4, 1)
    q0, k0, v0 = theirs.self_attention.qkv.weight.view(2, 12, 8).split(4, 1)
    torch.testing.assert_close((q, k, v), (q0, k0, v0 * beta))


def test_ties(small_config):
    def weights(**settings):
        return set(build_model(small_config(**settings), 20).embeddings)

    assert weights() == {"shared"}
    assert weights(tying="decoder") == weights(shared_vocabulary=False) == {"source", "target"}
    assert weights(tying="none") == weights(tying="none", shared_vocabulary=False) == {"source", "target", "output"}
    assert weights(tying="inputs") == {"shared", "output"}


def test_only_the_inputs_of_tied_inputs_are_factorised(small_config):
    config = small_config(tying="inputs", embedding_size=3)
    model = build_model(config, 64)
    assert {name: tuple(part.weight.shape) for name, part in model.embeddings.items()} == {
        "shared": (64, 3), "output": (64, 8),
    }  # fmt: skip
    assert num_params(config, 64) == sum(p.numel() for p in model.parameters())


def test_layers_share_weights_in_the_named_stack_alone(small_config):
    for side, other in (("encoder", "decoder"), ("decoder", "encoder")):
        config = small_config(num_layers=3, layer_groups=1, layer_groups_in=side)
        model = build_model(config, 64)
        assert len(getattr(model, side).layers) == 1 and len(getattr(model, other).layers) == 3
        assert num_params(config, 64) == sum(p.numel() for p in model.parameters())


def test_fixed_lengths_of_embeddings(small_config):
    model = build_model(small_config(fixnorm=True), 20)
    pieces = torch.arange(20)
    torch.testing.assert_close(model.target_embedding(pieces).norm(dim=-1), torch.full((20,), 8**0.5))
    torch.testing.assert_close(model.output_weight[:20].norm(dim=-1), torch.ones(20))


def test_layers_of_a_group_are_one(small_config):
    shared, plain = build_model(small_config(num_layers=4, layer_groups=2), 20), small_config(num_layers=4)
    assert len(shared.encoder.layers) == 2 and shared.encoder.order == (0, 0, 1, 1)
    whole = build_model(plain, 20)
    names = {f"{side}.layers.{n}." for side in ("encoder", "decoder") for n in range(4)}
    state = {}
    for name in whole.state_dict():
        layer = next((one for one in names if name.startswith(one)), None)
        source = name if layer is None else name.replace(layer, f"{layer[:-2]}{int(layer[-2]) // 2}.")
        state[name] = shared.state_dict()[source]
    whole.load_state_dict(state)
    source, target = torch.randint(20, (2, 6)), torch.randint(20, (2, 5))
    torch.testing.assert_close(shared.eval()(source, None, target), whole.eval()(source, None, target))


def test_dropped_layers_are_left_out_in_training_alone(small_config):
    model = build_model(small_config(num_layers=3, layer_drop=0.5, dropout=0.0, norm="none"), 20)
    source, target = torch.randint(20, (2, 6)), torch.randint(20, (2, 5))
    torch.manual_seed(0)
    found = {model(source, None, target)[0, 0, 0].item() for _ in range(40)}
    assert len(found) > 10
    assert len({model.eval()(source, None, target)[0, 0, 0].item() for _ in range(5)}) == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"residual_scale": "deepnorm", "norm": "pre"}, 'needs norm = "post"'),
        ({"residual_scale": 0.5, "residual": False}, "leaves it out"),
        ({"tying": "inputs", "shared_vocabulary": False}, "gives them two vocabularies"),
        (
            {"encoder": "self_attention, feed_forward", "layer_groups": 1},
            "layers that share weights must be equal",
        ),
    ],
)
def test_settings_that_do_not_fit(settings, words):
    with pytest.raises(ValueError, match=words):
        ModelConfig(**settings)
