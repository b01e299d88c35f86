"""A kind of sub-layer outside the project (tempered_attention.py) needs one file and one line."""

import sys

import pytest
import torch

from model.config import ModelConfig
from model.cost import forward_flops, num_params
from model.layers import spec
from model.layers.attention.watching import watching
from model.layers.contract import Inputs
from model.network import build_model
from tests.lines import SIZES
from tests.unit.model.test_any_architecture import check_alone, check_count, check_future, check_gradients, check_steps

MODULE = "tests.unit.model.tempered_attention"
LINES = {
    "encoder": "N * (tempered_attention, feed_forward)",
    "decoder": "N * (tempered_attention, cross_attention, feed_forward)",
}


@pytest.fixture(autouse=True)
def added(monkeypatch):
    """Install entry points: this layer, one with the name of a core layer, and two that are broken."""
    layers = {
        "tempered_attention": f"{MODULE}:TemperedAttentionSpec",
        "lstm": "elsewhere:LSTM",
        "absent": "no_such_package:Layer",
        "other": "json:JSONDecoder",
    }
    monkeypatch.setattr(spec, "added", lambda kind: layers if kind == "layers" else {})


def config(**settings):
    return ModelConfig(**{**SIZES, **LINES, **settings})


SETTINGS = [
    {},
    {"positions": "relative", "kv_heads": 1, "qk_norm": True},
    {"positions": "bias", "window": 4, "compatibility": "bilinear", "norm": "pre"},
    {"encoder": "", "decoder": "2 * (tempered_attention(factor=0.5, num_heads=4, d_k=3), feed_forward)"},
    {"positions": "rotary", "layer_groups": 1, "attention_gate": True, "bias": False},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_it_holds_what_every_layer_holds(settings):
    torch.manual_seed(5)
    check_count(config(**settings))
    model = build_model(config(**settings), 20).double().eval()
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.3)
    with torch.inference_mode():
        check_steps(model)
        check_alone(model)
        check_future(model)
    check_gradients(model)


def test_a_factor_of_one_is_self_attention_and_a_large_one_is_sharper():
    torch.manual_seed(0)
    x_BTD = torch.randn(2, 5, 8)
    inputs = torch.randint(20, (2, 5))
    plain, tempered = (
        build_model(ModelConfig(**SIZES, encoder="", decoder=kind), 20)
        for kind in ("self_attention", "tempered_attention(factor=1)")
    )
    weights = {name.replace("self_attention", "tempered_attention"): w for name, w in plain.state_dict().items()}
    missing, unexpected = tempered.load_state_dict(weights, strict=False)
    assert missing == ["decoder.layers.0.tempered_attention.factor_H11"] and not unexpected
    source = inputs[:, :0]
    torch.testing.assert_close(tempered(source, None, inputs), plain(source, None, inputs))
    recorded = []
    with watching(tempered, lambda kind, weights_BHTM: recorded.append((kind, weights_BHTM.shape))):
        tempered(source, None, inputs)
    assert recorded == [("decoder", (2, 2, 5, 5))]
    attention = tempered.decoder.layers[0].tempered_attention
    once = attention.weights(x_BTD, Inputs(causal=False))
    attention.factor_H11.data.fill_(2.0)
    squared = once.square()
    torch.testing.assert_close(attention.weights(x_BTD, Inputs(causal=False)), squared / squared.sum(-1, keepdim=True))


def test_it_is_planned_without_torch(monkeypatch):
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch"]:
        monkeypatch.setitem(sys.modules, name, None)  # an import of it raises ImportError
    spec.spec_at.cache_clear()
    sizes = {**SIZES, "d_ff": 9}  # of no other test: layers are cached by settings
    planned, plain = config(**sizes), ModelConfig(**sizes)
    assert num_params(planned, 20) == num_params(plain, 20) + 4 * sizes["num_heads"]  # two layers on either side
    assert forward_flops(planned, 20, 6, 5) == forward_flops(plain, 20, 6, 5)
    assert "num_heads" in planned.settings_read() and "position_clip" not in planned.settings_read()
    (part, _), _ = planned.layers("encoder")
    with pytest.raises(ImportError):
        part.options.build(part.config)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("tempered_attention(temprature=2)", "column 1: tempered_attention has no option temprature"),
        ("tempered_attention(factor=0)", r"tempered_attention\(factor=0\): expected greater than 0"),
        ("tempered_attention(compatibility=additive)", "not proportional to the query"),
        ("tempred_attention", "there is no sub-layer tempred_attention; nearest: tempered_attention"),
    ],
)
def test_what_it_cannot_be_is_refused(line, reason):
    with pytest.raises(ValueError, match=reason):
        config(encoder=line)


def test_a_name_of_the_core_stays_and_a_broken_package_is_named():
    assert spec.places()["lstm"] == spec.LAYERS["lstm"]
    with pytest.raises(ValueError, match="the layer at no_such_package:Layer cannot be imported"):
        config(encoder="absent")
    with pytest.raises(ValueError, match="json:JSONDecoder is not a subclass"):
        config(encoder="other")
