"""Rows that change a network: selectors and actions on any torch.nn.Module, and on this program's networks."""

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ablations.extras.module_rows.client.modules.ablate import ablate
from ablations.extras.module_rows.client.modules.inspection import Inspected, inspect
from ablations.extras.module_rows.client.modules.selectors import Line, select
from ablations.extras.module_rows.own_networks import change_network
from experiments.data.collate import Batch
from experiments.errors import UserError
from model.config import ModelConfig
from model.layers.spec import kinds
from model.network import EncoderDecoder, build_model

D, HEADS = 8, 4


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.qkv, self.proj = HEADS, nn.Linear(D, 3 * D), nn.Linear(D, D)

    def heads(self, x: Tensor) -> Tensor:
        q, k, v = torch.unflatten(self.qkv(x), -1, (3, HEADS, -1)).transpose(1, 3).unbind(2)
        return nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return self.proj(self.heads(x)), None


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(D), Attention()
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm(x))[0]
        return x + self.mlp(x)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.rnn, self.head = nn.ModuleList(Block() for _ in range(4)), nn.LSTM(D, D), nn.Linear(D, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(self.rnn(x)[0])


X = torch.linspace(-1, 1, 2 * 5 * D).view(2, 5, D)


def changed(*lines: str, batches: Any = ()) -> tuple[Any, dict[str, Any]]:
    torch.manual_seed(0)
    net: Any = Net()
    return net, ablate(net, lines, batches)


def by_hand(change: Any) -> Tensor:
    """The output of the same network, changed by a function."""
    torch.manual_seed(0)
    net = Net()
    change(net)
    output: Tensor = net(X)
    return output


class Gives(nn.Module):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: Tensor) -> Any:
        return self.value(x)


def _attn(value: Any) -> Any:
    def change(net: Any) -> None:
        for layer in net.layers:
            layer.attn = Gives(lambda x: (value(x), None))

    return change


def _weights_of_head(net: Any) -> None:
    with torch.no_grad():
        for layer in net.layers[1:]:
            layer.attn.proj.weight[:, 2 * D // HEADS : 3 * D // HEADS] = 0


def _half(net: Any) -> None:
    for layer in net.layers:
        first, last = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)
        first.weight.data, first.bias.data = layer.mlp[0].weight[: 2 * D].detach(), layer.mlp[0].bias[: 2 * D].detach()
        last.weight.data, last.bias.data = layer.mlp[2].weight[:, : 2 * D].detach(), layer.mlp[2].bias.detach()
        layer.mlp = nn.Sequential(first, nn.GELU(), last)


def _tied(net: Any) -> None:
    for layer in net.layers[1:]:
        layer.mlp = net.layers[0].mlp


def _norms(net: Any) -> None:
    for layer in net.layers:
        layer.norm = nn.Identity()


BY_HAND: dict[str, Any] = {
    "layers.*.attn -> identity": _attn(lambda x: x),
    "layers.*.attn -> zero": _attn(torch.zeros_like),
    "type:LayerNorm -> identity": _norms,
    "layers[2:] -> remove": lambda net: setattr(net, "layers", net.layers[:2]),
    "head.2 of layers[1:].attn -> zero": _weights_of_head,
    "layers.*.mlp -> shrink 0.5": _half,
    "layers.*.mlp -> tie layers.0.mlp": _tied,
    "layers.*.mlp.1 -> torch.nn:ReLU()": lambda net: [layer.mlp.__setitem__(1, nn.ReLU()) for layer in net.layers],
}


@pytest.mark.parametrize("line", BY_HAND)
def test_a_line_gives_the_same_bits_as_the_change_by_hand(line: str) -> None:
    net, change = changed(line)
    assert torch.equal(net(X), by_hand(BY_HAND[line]))
    assert change["params_after"] == sum(p.numel() for p in net.parameters())
    assert change["params_before"] == sum(p.numel() for p in Net().parameters())


def test_mean_and_resample_come_from_training_batches() -> None:
    torch.manual_seed(0)
    whole = Net()
    with torch.no_grad():
        outputs = whole.layers[1].mlp(whole.layers[0](X) + whole.layers[1].attn(whole.layers[1].norm(whole.layers[0](X)))[0])  # fmt: skip  # noqa: E501
        heads = whole.layers[0].attn.heads(whole.layers[0].norm(X))  # type: ignore[union-attr, operator]
    net, _ = changed("layers.1.mlp -> mean", "head[:2] of layers.0.attn -> mean", batches=[X])
    given = net.layers[1].mlp(torch.zeros(3, 7, D))
    assert torch.allclose(given, outputs.mean((0, 1)).expand(3, 7, D), atol=1e-6)
    fixed = net.layers[0].attn.ablated_heads(torch.zeros(1, 1, D))[0, 0, : D // 2]
    assert torch.allclose(fixed, heads.mean((0, 1))[: D // 2], atol=1e-6)
    net, _ = changed("layers.1.mlp -> resample", batches=[X])
    rows = net.layers[1].mlp(torch.zeros(20, D))
    assert all((outputs.flatten(0, 1) - row).abs().amax(-1).min() < 1e-6 for row in rows)
    copied = copy.deepcopy(net)
    for seed in (1, 2):  # a training seeds each of its steps, so a resumed one draws the same
        torch.manual_seed(seed)
        output = net(X)
        torch.manual_seed(seed)
        assert torch.equal(copied(X), output)
    assert not torch.equal(net(X), output)
    net.eval(), copied.eval()
    output = net(X)  # of a trained network the draws depend on the input alone, not on what was computed before
    net(2 * X)
    assert torch.equal(net(X), output) and torch.equal(copied(X), output)


def test_frozen_and_drawn_again() -> None:
    net, _ = changed("layers.0 -> freeze", "layers.1.attn -> reinitialise")
    other, _ = changed()
    assert not any(p.requires_grad for p in net.layers[0].parameters()) and net.head.weight.requires_grad
    assert not torch.equal(net.layers[1].attn.qkv.weight, other.layers[1].attn.qkv.weight)
    assert torch.equal(net.layers[1].mlp[0].weight, other.layers[1].mlp[0].weight)


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("layers.*.attn", [f"layers.{n}.attn" for n in range(4)]),
        ("layers[1:3].mlp", ["layers.1.mlp", "layers.2.mlp"]),
        ("layers[-1]", ["layers.3"]),
        ("lay*[::2].n*", ["layers.0.norm", "layers.2.norm"]),
        ("type:Linear[0]", ["layers.0.attn.qkv"]),
        ("type:Block", [f"layers.{n}" for n in range(4)]),
        ("type:RNNBase", ["rnn"]),
    ],
)
def test_selectors(selector: str, names: list[str]) -> None:
    assert list(select(Net(), Line.parse(f"{selector} -> zero"))) == names


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["layers.*.atn -> zero"], "matches nothing. Nearest: .*attn"),
        (["layers[a] -> zero"], "index or a slice"),
        (["attn"], "no line"),
        (["head -> vanish"], "no action"),
        (["head.0 of layers.0.attn -> identity"], "no action"),
        (["head.4 of layers.0.attn -> zero"], "heads are from 0 to 3"),
        (["head.1 of layers.0.mlp -> zero"], "no heads"),
        (["head.1 of layers -> zero"], "has 4 output projections"),
        (["layers.0 -> zero", "layers.0.attn -> zero"], "the same module"),
        (["layers.0.attn -> zero", "head.0 of layers.*.attn -> zero"], "the same module"),
        (["head.1 of layers.0.attn -> zero", "head[1:] of layers.0.attn -> zero"], "another line"),
        (["head -> remove"], "no entry of a list"),
        (["head -> mean"], "needs batches"),
        (["head.0 of layers.0.attn -> mean"], "needs batches"),
        (["head -> shrink 0.5"], "no feed-forward network"),
        (["layers.0.mlp -> shrink 2"], "between 0 and 1"),
        (["head -> tie rnn"], "no parameters of the same names"),
        (["head -> no.such:Class()"], "cannot be made"),
        (["head -> math:floor(1.5)"], "no subclass of torch.nn.Module"),
        (["head -> subprocess:Popen(['true'])"], "no subclass of torch.nn.Module"),
        (["head -> torch.nn:Linear(8, 8)(1)"], "literals"),
        (["head -> torch.nn:Linear(8, 8, bias=print())"], "cannot be made"),
        (["layers.3.mlp -> tie layers[:2].mlp"], "needs one module"),
        (["layers.0.attn -> shrink 0.5"], "no feed-forward network"),
    ],
)
def test_what_does_not_fit_is_refused(lines: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        changed(*lines)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("rnn -> identity", "returns a tuple of several tensors"),
        ("layers.*.mlp.0 -> identity", r"gives \(2, 5, 32\), and .* \(2, 5, 8\)"),
        ("layers.0.mlp -> torch.nn:Linear(8, 9)", r"\(2, 5, 9\): the shapes must be equal"),
    ],
)
def test_another_shape_is_refused_in_the_first_pass(line: str, words: str) -> None:
    net, _ = changed(line)
    with pytest.raises(UserError, match=words):
        net(X)
    with pytest.raises(UserError, match=words):  # before anything else where a batch is given
        changed(line, batches=[X])


def test_a_mean_of_images_is_refused() -> None:
    """Their last dimension is a width, and not the channels."""
    net = nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), nn.BatchNorm2d(4), nn.Flatten())
    for line in ("0 -> mean", "1 -> resample", "0.0 -> mean"):
        with pytest.raises(UserError, match="a mean is one of the last dimension"):
            ablate(copy.deepcopy(net), [line], [torch.ones(2, 3, 5, 5)])


def test_shared_modules_and_tied_weights() -> None:
    net: Any = Net()
    net.layers[1].mlp = net.layers[0].mlp
    net.head = nn.Linear(D, D)
    net.head.weight = net.layers[2].attn.proj.weight
    with pytest.raises(UserError, match="tied weights"):
        ablate(copy.deepcopy(net), ["head -> freeze", "layers.2.attn -> reinitialise"])
    with pytest.raises(UserError, match="tied weights"):
        ablate(copy.deepcopy(net), ["layers[:2].mlp -> reinitialise"])
    change = ablate(net, ["layers.*.mlp -> zero"])
    assert change["modules"] == {"layers.*.mlp -> zero": 4}
    assert net.layers[0].mlp is net.layers[1].mlp  # one stand-in


def test_a_thousand_lines_and_a_type_of_numbers() -> None:
    net: Any = nn.ModuleDict({"list": nn.ModuleList(nn.Linear(2, 2) for _ in range(1000))}).double()
    change = ablate(net, [f"list.{n} -> torch.nn:Linear(2, 2)" for n in range(1000)])
    assert sum(change["modules"].values()) == 1000 and {p.dtype for p in net.parameters()} == {torch.float64}


def test_a_moved_network_keeps_its_device() -> None:
    net: Any = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).to("meta")
    ablate(net, ["0 -> torch.nn:Linear(2, 2)"])
    assert net[0].weight.device.type == "meta"


def test_multi_head_attention_of_torch() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    by_hand = copy.deepcopy(layer)
    with torch.no_grad():
        by_hand.self_attn.out_proj.weight[:, 4:] = 0
    ablate(layer, ["head.1 of self_attn -> zero"])
    assert torch.equal(layer.train(False)(X), by_hand(X))
    with pytest.raises(UserError, match="zero alone"):
        ablate(nn.TransformerEncoderLayer(8, 2), ["head.0 of self_attn -> mean"], [X])


def test_inspect_counts_what_torch_counts_and_recurrent_layers_by_formula() -> None:
    net = Net()
    inspect(net)
    with pytest.raises(Inspected) as found:
        net(X)
    rows = {row["name"]: row for row in found.value.rows}
    assert rows["layers.0.mlp"]["flops"] == 2 * 10 * 2 * D * 4 * D
    assert rows["rnn"]["flops"] == 2 * 10 * 2 * 4 * D * D and rows["rnn"]["params"] == 8 * D * D + 8 * D
    assert rows[""]["flops"] == sum(rows[name]["flops"] for name in ("layers.0", "layers.1", "layers.2", "layers.3", "rnn", "head"))  # fmt: skip  # noqa: E501
    assert rows["head"]["input"] == [2, 5, D] and rows["head"]["output"] == [2, 5, 3]
    some = Net()
    inspect(some, "layers.*.mlp")
    with pytest.raises(Inspected) as found:
        some(X)
    assert found.value.rows == [rows[f"layers.{number}.mlp"] for number in range(4)]
    with pytest.raises(UserError, match="matches nothing"):
        inspect(Net(), "layers.*.mlps")


# --- What does not depend on the order of lines, of registration, or on how places are cut into batches


class Gated(nn.Module):
    """w2(silu(w1 x) · w3 x), its products registered in any order; fused: w1 and w3 are one product."""

    def __init__(self, order: str, width: int = 12) -> None:
        super().__init__()
        sizes = {"1": (D, width), "2": (width, D), "3": (D, width), "f": (D, 2 * width)}
        for name in order:
            setattr(self, f"w{name}", nn.Linear(*sizes[name]))

    def forward(self, x: Tensor, *_: Any) -> Any:
        layers: Any = self
        if hasattr(self, "wf"):
            gate, value = layers.wf(x).chunk(2, -1)
        else:
            gate, value = layers.w1(x), layers.w3(x) if hasattr(self, "w3") else 1.0
        return layers.w2(nn.functional.silu(gate) * value)


@pytest.mark.parametrize("width", [12, D, 2 * D])
@pytest.mark.parametrize("order", ["123", "132", "213", "231", "321", "312", "12", "21", "f2", "2f"])
def test_shrink_keeps_the_first_units_in_whatever_order_products_are_registered(order: str, width: int) -> None:
    net: Any = nn.Sequential(Gated(order, width))
    whole, half = copy.deepcopy(net[0]), width // 2
    change = ablate(net, ["0 -> shrink 0.5"], [X])
    if "f" in order:
        gate, value = whole.wf(X).chunk(2, -1)
    else:
        gate, value = whole.w1(X), whole.w3(X) if "3" in order else torch.ones(width)
    inner = (nn.functional.silu(gate) * value)[..., :half]
    assert torch.allclose(net(X), inner @ whole.w2.weight[:, :half].T + whole.w2.bias, atol=1e-6)
    products = {"1": 1, "3": 1, "f": 2}
    removed = sum(products.get(name, 0) for name in order) * (D + 1) * half + D * half
    assert change["params_before"] - change["params_after"] == removed


def test_a_module_that_cannot_be_computed_alone_is_shrunk_if_its_shapes_tell_the_last_product() -> None:
    class Chosen(Gated):
        def forward(self, x: Tensor, *more: Any) -> Any:
            return super().forward(x * more[0])

    class Outer(nn.Module):
        def __init__(self, order: str) -> None:
            super().__init__()
            self.inner = Chosen(order)

        def forward(self, x: Tensor) -> Any:
            return self.inner(x, 2.0)

    net = Outer("213")
    ablate(net, ["inner -> shrink 0.5"], [X])
    assert net.inner.w2.weight.shape == (D, 6)
    with pytest.raises(UserError, match="no feed-forward network"):
        ablate(Outer("12"), ["inner -> shrink 0.5"], [X])


@pytest.mark.parametrize(
    "lines",
    [
        ["layers.2.mlp -> tie layers.1.mlp", "layers.1.mlp -> tie layers.0.mlp"],
        ["layers.1.mlp -> tie layers.2.mlp", "layers.2.mlp -> tie layers.3.mlp", "layers.0.mlp -> tie layers.2.mlp"],
        ["layers.1.mlp -> tie layers.0.mlp", "layers.0.mlp -> reinitialise", "layers.3.mlp -> reinitialise"],
        ["layers.3.mlp -> tie layers.0.mlp", "layers.0.mlp -> freeze", "layers.1 -> remove"],
        ["layers[2:].mlp -> tie", "layers.0 -> zero", "head.0 of layers.1.attn -> zero", "type:LSTM -> freeze"],
        ["layers.3.mlp -> mean", "layers.1.mlp -> resample", "head.0 of layers.2.attn -> mean"],
        ["head.0 of layers.2.attn -> mean", "head.1 of layers.2.attn -> resample", "head.2 of layers.2.attn -> mean"],
    ],
)
def test_lines_give_the_same_network_in_every_order(lines: list[str]) -> None:
    found = []
    for order in itertools.permutations(lines):
        torch.manual_seed(0)
        net, change = changed(*order, batches=[X, X[:1]])
        net.eval()
        shared = {name: p.data_ptr() for name, p in net.named_parameters(remove_duplicate=False)}
        ties = {(a, b) for a, b in itertools.combinations(sorted(shared), 2) if shared[a] == shared[b]}
        found.append((net(X), ties, change["params_after"], {n for n, p in net.named_parameters() if p.requires_grad}))
    for output, *others in found[1:]:
        assert torch.equal(output, found[0][0]) and others == list(found[0][1:])


def test_a_chain_of_ties_ends_at_its_last_module() -> None:
    net, change = changed("layers.2.mlp -> tie layers.1.mlp", "layers.1.mlp -> tie layers.0.mlp")
    assert net.layers[2].mlp[0].weight is net.layers[1].mlp[0].weight is net.layers[0].mlp[0].weight
    assert change["params_before"] - change["params_after"] == 2 * (2 * 4 * D * D + 5 * D)


@pytest.mark.parametrize("other", ["layers.0.mlp -> zero", "layers.0.mlp -> shrink 0.5", "layers[:1] -> remove"])
def test_a_module_that_is_replaced_has_no_weights_to_tie_to(other: str) -> None:
    for lines in itertools.permutations(["layers.1.mlp -> tie layers.0.mlp", other]):
        with pytest.raises(UserError, match="takes the weights of"):
            changed(*lines)


def test_resample_draws_from_all_places_evenly() -> None:
    """A batch of one place weighs as much as each of the many places of another one."""
    one, many = torch.full((1, 1, D), 7.0), torch.zeros(3, 5, D)
    for batches in ([one, many], [many, one]):
        net: Any = nn.Sequential(nn.Identity(), nn.Linear(D, 1))
        ablate(net, ["0 -> resample"], batches)
        share = (net[0].value[:, 0] == 7).float().mean().item()
        assert share == pytest.approx(1 / 16, abs=4 * (15 / 16 / 16 / 1024) ** 0.5)
        net = nn.Sequential(nn.Identity(), nn.Linear(D, 1))
        ablate(net, ["0 -> mean"], batches)
        assert net[0].value[0, 0].item() == pytest.approx(7 / 16)


def test_classes_of_other_packages_are_neither_imported_nor_called_while_planning(tmp_path: Any) -> None:
    sign = tmp_path / "called"
    line = f"head -> importlib_of_nobody.package:Class('{sign}')"
    net: Any = Net()
    before = net.head
    ablate(net, [line, "layers.0.mlp.1 -> torch.nn:ReLU()"], [X], packages=("torch",), planning=True)
    assert net.head is before and isinstance(net.layers[0].mlp[1], nn.ReLU)
    with pytest.raises(UserError, match="a class of torch"):
        ablate(Net(), [line], packages=("torch",))
    for called in ("torch.nn.functional:relu()", "torch.os:system('false')", "torch.serialization:os.system('false')"):
        with pytest.raises(UserError, match=r"no subclass of torch.nn.Module|cannot be made"):
            ablate(Net(), [f"head -> {called}"], packages=("torch",))


# --- This program's networks


def network(**settings: Any) -> EncoderDecoder:
    torch.manual_seed(1)
    sizes = {"num_layers": 2, "d_model": 8, "d_ff": 16, "num_heads": 2, "d_k": 4, "d_v": 4}
    return build_model(ModelConfig(**{**sizes, **settings}), 11).eval()


PAIR = Batch(torch.randint(4, 11, (3, 5)), torch.randint(4, 11, (3, 4)), torch.zeros(3, 4, dtype=torch.int64), 15, 12)
OWN = [
    ["head.1 of encoder.layers.*.self_attention -> zero"],
    ["head.0 of decoder.layers[1:].cross_attention -> mean", "decoder.layers.0.feed_forward -> mean"],
    ["decoder.layers.0 -> remove", "encoder.layers.1 -> identity"],
    ["decoder.layers.*.self_attention -> zero", "decoder.layers.1.feed_forward -> shrink 0.5"],
    ["decoder.layers.0.cross_attention_residual -> identity", "type:LayerNorm[0] -> identity"],
    ["decoder.layers.1.self_attention -> reinitialise", "encoder.layers.1 -> tie encoder.layers.0"],
]


@pytest.mark.parametrize("lines", OWN)
def test_a_search_through_a_changed_network_takes_the_steps_of_the_pass(lines: list[str]) -> None:
    whole, model = network(), network()
    facts = change_network(model, lines, [PAIR], seed=0)
    assert sum(facts["modules"].values()) >= len(lines) and not model.quick
    memory = model.encode(PAIR.source)
    hidden = model.decode(PAIR.target_input, memory)
    assert not torch.allclose(hidden, whole.decode(PAIR.target_input, whole.encode(PAIR.source)), atol=1e-4)
    state = model.start_decoding(memory, None, 1, 4)
    for step in range(4):
        assert torch.allclose(model.decode_step(PAIR.target_input[:, step : step + 1], state)[:, 0], hidden[:, step], atol=1e-5)  # fmt: skip  # noqa: E501


def test_weights_of_a_changed_network_are_restored_with_its_means() -> None:
    lines = ["head.0 of decoder.layers[1:].cross_attention -> mean", "decoder.layers.0.feed_forward -> mean"]
    model, again = network(), network()
    change_network(model, lines, [PAIR])
    saved = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    change_network(again, lines, saved=saved)
    again.load_state_dict(saved)
    pieces = (PAIR.source, None, PAIR.target_input)
    assert torch.equal(again(*pieces), model(*pieces))


@pytest.mark.parametrize("kind", [name for name, kind in kinds().items() if "encoder" in kind.sides])
def test_every_kind_of_sub_layer_can_be_left_out(kind: str) -> None:
    model = network(encoder=f"2 * {kind}{'(width=8)' if kind == 'projection' else ''}")
    change_network(model, ["encoder.layers[0] -> remove"])
    model(PAIR.source, None, PAIR.target_input)


@pytest.mark.parametrize(
    "line", ["decoder -> identity", "embeddings.* -> zero", "encoder.layers.0.feed_forward -> torch.nn:ReLU()"]
)
def test_what_a_search_calls_in_several_ways_is_refused(line: str) -> None:
    with pytest.raises(UserError, match="in several ways"):
        change_network(network(), [line])
