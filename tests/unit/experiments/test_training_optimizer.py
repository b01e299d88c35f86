"""The optimizers equal their equations and torch's optimizers. Also tests their settings and state."""

import math

import pytest
import torch

from experiments.config.training import OPTIMIZERS, TrainingConfig
from experiments.training.optimizers import (
    clip,
    hidden_matrices,
    make_optimizers,
    optimizer_tensors,
    restore_optimizers,
    set_learning_rate,
    update,
    updated_by,
)
from model.config import ModelConfig
from model.network import build_model
from tests.small_training import PIECES, SIZES

STEPS = 100
DECAY = 0.1


@pytest.fixture(autouse=True)
def _one_thread():
    """Use one thread, because threads that wait for each other cost a hundred times more than these small products."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _model():
    torch.manual_seed(0)
    return build_model(SIZES, PIECES).double()


def _rate(step):
    return 0.003 * (1 + math.sin(step))


def _gradients(model, step):
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in model.parameters()]


def _train(model, optimizers, first, last):
    for step in range(first, last + 1):
        set_learning_rate(optimizers, _rate(step))
        for parameter, gradient in zip(model.parameters(), _gradients(model, step), strict=True):
            parameter.grad = gradient
        update(optimizers)


def _weights_after(settings, steps=STEPS):
    model = _model()
    _train(model, make_optimizers(model, settings), 1, steps)
    return dict(model.named_parameters())


def _torchs(make, decay=DECAY, steps=STEPS):
    """Return the weights after the steps of a torch optimizer. `make` gets groups of matrices and of vectors."""
    model = _model()
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    _train(model, {"torch": make(groups)}, 1, steps)
    return dict(model.named_parameters())


def _by_formula(rule, decay=DECAY):
    """Weights after STEPS of rule(weight, gradient, state, step, rate, decay) → weight, on each parameter alone."""
    model = _model()
    weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    states = {name: {} for name in weights}
    for step in range(1, STEPS + 1):
        for (name, weight), gradient in zip(list(weights.items()), _gradients(model, step), strict=True):
            its = decay if weight.ndim > 1 else 0.0
            weights[name] = rule(weight, gradient, states[name], step, _rate(step), its)
    return weights


def _same(found, expected):
    assert found.keys() == expected.keys()
    for name, weight in found.items():
        torch.testing.assert_close(weight.detach(), expected[name].detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_adam_is_kingma_and_bas_with_decoupled_decay(name):
    def rule(weight, gradient, state, step, rate, decay):  # algorithm 1; Loshchilov and Hutter 2019, algorithm 2
        m = state["m"] = 0.9 * state.get("m", 0) + 0.1 * gradient
        v = state["v"] = 0.98 * state.get("v", 0) + 0.02 * gradient**2
        corrected = (m / (1 - 0.9**step)) / ((v / (1 - 0.98**step)).sqrt() + 1e-9)
        return weight - rate * (corrected + decay * weight)

    found = _weights_after(TrainingConfig(optimizer=name, weight_decay=DECAY))
    _same(found, _by_formula(rule))
    _same(found, _torchs(lambda groups: torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-9, foreach=False)))


@pytest.mark.parametrize("nesterov", [None, True])
@pytest.mark.parametrize("momentum", [None, 0.7])
def test_sgd_is_torchs(momentum, nesterov):
    settings = TrainingConfig(optimizer="sgd", momentum=momentum, nesterov=nesterov, weight_decay=DECAY)
    mu = 0.9 if momentum is None else momentum

    def rule(weight, gradient, state, step, rate, decay):  # Sutskever 2013, as torch has it
        gradient = gradient + decay * weight
        b = state["b"] = mu * state["b"] + gradient if state else gradient
        return weight - rate * (gradient + mu * b if nesterov else b)

    found = _weights_after(settings)
    _same(found, _by_formula(rule))
    _same(found, _torchs(lambda g: torch.optim.SGD(g, momentum=mu, nesterov=bool(nesterov), foreach=False)))


def test_sgd_without_momentum_keeps_nothing():
    settings, model = TrainingConfig(optimizer="sgd", momentum=0.0), _model()
    optimizers = make_optimizers(model, settings)
    _train(model, optimizers, 1, 3)
    assert optimizer_tensors(model, optimizers, 3) == {}
    _same(dict(model.named_parameters()), _torchs(torch.optim.SGD, decay=0.0, steps=3))


def test_adafactor_is_shazeer_and_sterns():
    def rms(x):
        return x.square().mean().sqrt()

    def rule(weight, gradient, state, step, rate, decay):  # the paper's, with d = 1 and ε2 = 10⁻³
        weight, old = weight - rate * decay * weight, weight
        kept = 1 - step**-0.8
        square = gradient**2
        if weight.ndim > 1:
            r = state["r"] = kept * state.get("r", 0) + (1 - kept) * square.sum(1, keepdim=True)
            c = state["c"] = kept * state.get("c", 0) + (1 - kept) * square.sum(0, keepdim=True)
            v = r @ c / r.sum()
        else:
            v = state["v"] = kept * state.get("v", 0) + (1 - kept) * square
        change = gradient / v.sqrt()
        change = change / max(1, rms(change))
        return weight - max(1e-3, rms(old)) * min(rate, step**-0.5) * change

    found = _weights_after(TrainingConfig(optimizer="adafactor", weight_decay=DECAY))
    _same(found, _by_formula(rule))
    _same(found, _torchs(lambda groups: torch.optim.Adafactor(groups, foreach=True)))


def test_lion_is_chens():
    def rule(weight, gradient, state, step, rate, decay):  # algorithm 2
        m = state.get("m", torch.zeros_like(gradient))
        direction = torch.sign(0.8 * m + 0.2 * gradient)
        state["m"] = 0.95 * m + 0.05 * gradient
        return weight - rate * (direction + decay * weight)

    settings = TrainingConfig(optimizer="lion", lion_beta1=0.8, lion_beta2=0.95, weight_decay=DECAY)
    _same(_weights_after(settings), _by_formula(rule))


@pytest.mark.parametrize("nesterov", [None, False])
def test_muon_is_torchs_on_matrices_of_the_layers_and_adam_on_the_rest(nesterov):
    settings = TrainingConfig(optimizer="muon", nesterov=nesterov, weight_decay=DECAY)
    model = _model()
    hidden = {id(p) for p in hidden_matrices(model)}
    matrices, rest = ([p for p in model.parameters() if (id(p) in hidden) == its] for its in (True, False))
    table = [p for p in rest if p.ndim > 1]
    others = [{"params": table, "weight_decay": DECAY}, {"params": [p for p in rest if p.ndim < 2]}]
    its = {"momentum": 0.95, "nesterov": nesterov is None, "adjust_lr_fn": "match_rms_adamw"}
    expected = {
        "muon": torch.optim.Muon(matrices, weight_decay=DECAY, **its),
        "adam": torch.optim.AdamW(others, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0, foreach=False),
    }
    _train(model, expected, 1, STEPS)
    _same(_weights_after(settings), dict(model.named_parameters()))


def test_muon_is_jordans_but_for_its_rounding_in_bf16():
    """The reference computes the optimizer's equations in fp64. torch computes the Newton–Schulz steps in bf16."""

    def orthogonal(matrix):
        x = matrix / matrix.norm()
        x = x.T if (tall := x.shape[0] > x.shape[1]) else x
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        return x.T if tall else x

    def rule(weight, gradient, state, step, rate, decay):  # scaled as in Liu 2025
        if weight.ndim < 2:
            return weight
        b = state["b"] = 0.95 * state.get("b", 0) + gradient
        return weight - rate * 0.2 * max(weight.shape) ** 0.5 * orthogonal(gradient + 0.95 * b)

    model, expected = _model(), _by_formula(rule, decay=0.0)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    _train(model, make_optimizers(model, TrainingConfig(optimizer="muon")), 1, STEPS)
    hidden = {id(p) for p in hidden_matrices(model)}
    for name, found in model.named_parameters():
        if id(found) in hidden:
            moved, off = expected[name] - before[name], found.detach() - expected[name]
            assert 1e-4 < off.norm() / moved.norm() < 1e-2


@pytest.mark.parametrize(
    ("sizes", "tables"),
    [
        ({}, {"embeddings.shared.weight"}),
        ({"positions": "learned", "max_length": 8}, {"encoder.positions.weight", "decoder.positions.weight"}),
        ({"positions": "relative"}, {"distances.key_weight", "distances.value_weight"}),
        ({"positions": "bias"}, {"distances.weight"}),
        ({"compatibility": "additive"}, {"compare.weight"}),
        (
            {"tying": "none", "shared_vocabulary": False},
            {f"embeddings.{use}.weight" for use in ("source", "target", "output")},
        ),
        ({"encoder": "lstm, experts, convolution", "decoder": "gru, rnn, cross_attention, average"}, set()),
    ],
)
def test_muon_has_every_matrix_of_the_layers_and_no_table(sizes, tables):
    model = build_model(ModelConfig(**{**SIZES.model_dump(), **sizes}), PIECES)
    hidden = {id(p) for p in hidden_matrices(model)}
    matrices = {name: p for name, p in model.named_parameters() if p.ndim > 1}
    left = {name for name, p in matrices.items() if id(p) not in hidden}
    assert left == {
        name for name in matrices if name.startswith("embeddings.") or any(name.endswith(table) for table in tables)
    }
    assert all(any(name.endswith(table) for name in left) for table in tables)
    shares = updated_by(make_optimizers(model, TrainingConfig(optimizer="muon")))
    assert sum(shares.values()) == sum(p.numel() for p in model.parameters())
    assert shares["muon"] == sum(p.numel() for p in matrices.values() if id(p) in hidden)


def test_clipping_scales_all_gradients_together_and_only_if_set():
    model = _model()
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)
    clip(model, 0)
    assert all((p.grad == 3).all() for p in model.parameters())
    clip(model, 1.0)
    norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item()
    assert norm == pytest.approx(1.0, abs=1e-5)
    assert len({p.grad.flatten()[0].item() for p in model.parameters()}) == 1


KEPT = {
    "adam": {"exp_avg", "exp_avg_sq"},
    "adamw": {"exp_avg", "exp_avg_sq"},
    "sgd": {"momentum_buffer"},
    "adafactor": {"row_var", "col_var", "variance"},
    "lion": {"exp_avg"},
    "muon": {"momentum_buffer", "exp_avg", "exp_avg_sq"},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_restored_state_goes_on_bit_for_bit(name):
    settings = TrainingConfig(optimizer=name)
    straight, first = _model(), _model()
    whole = make_optimizers(straight, settings)
    _train(straight, whole, 1, 6)
    optimizers = make_optimizers(first, settings)
    _train(first, optimizers, 1, 3)
    tensors = {key: value.clone() for key, value in optimizer_tensors(first, optimizers, 3).items()}
    assert {key.partition("/")[0] for key in tensors} == KEPT[name]
    assert {key.partition("/")[2] for key in tensors} == dict(first.named_parameters()).keys()
    fresh = make_optimizers(first, settings)
    restore_optimizers(first, fresh, tensors, 3)
    _train(first, fresh, 4, 6)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), straight.parameters(), strict=True))
    after, expected = optimizer_tensors(first, fresh, 6), optimizer_tensors(straight, whole, 6)
    assert after.keys() == expected.keys() and all(torch.equal(after[key], expected[key]) for key in after)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_parameter_without_a_gradient_stays_as_it_is(name):
    model = _model()
    optimizers = make_optimizers(model, TrainingConfig(optimizer=name, weight_decay=DECAY))
    _train(model, optimizers, 1, 2)
    before = [p.detach().clone() for p in model.parameters()]
    set_learning_rate(optimizers, 0.1)
    left_out = model.decoder.layers[0]
    for parameter, gradient in zip(model.parameters(), _gradients(model, 3), strict=True):
        parameter.grad = None if any(parameter is p for p in left_out.parameters()) else gradient
    update(optimizers)
    for parameter, old in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, old) == any(parameter is p for p in left_out.parameters())


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: torch.optim.SGD(parameters, momentum=0.9),
        lambda parameters: torch.optim.RMSprop(parameters, momentum=0.5),
        torch.optim.Adagrad,
        torch.optim.Adamax,
        torch.optim.Adafactor,
    ],
)
def test_the_state_of_any_optimizer_is_kept_by_name(make):
    straight, first = _model(), _model()
    _train(straight, {"": make(straight.parameters())}, 1, 6)
    optimizers = {"": make(first.parameters())}
    _train(first, optimizers, 1, 3)
    tensors = {name: value.clone() for name, value in optimizer_tensors(first, optimizers, 3).items()}
    assert tensors
    fresh = {"": make(first.parameters())}
    restore_optimizers(first, fresh, tensors, 3)
    _train(first, fresh, 4, 6)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), straight.parameters(), strict=True))
