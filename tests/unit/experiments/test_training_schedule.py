"""The schedules equal other forms of their formulas and torch's schedulers."""

import math

import pytest
import torch

from experiments.config.training import SCHEDULES, TrainingConfig
from experiments.training.schedules import SHARES, Plateau, learning_rate, make_schedule


@pytest.mark.parametrize("warmup", [1, 400, 4000])
@pytest.mark.parametrize("d_model", [8, 512])
def test_it_is_a_line_up_to_a_peak_and_an_inverse_root_after(warmup, d_model):
    peak = (d_model * warmup) ** -0.5
    for step in range(1, 3 * warmup, max(1, warmup // 7)):
        expected = peak * step / warmup if step <= warmup else peak * (warmup / step) ** 0.5
        assert learning_rate(step, d_model, warmup) == pytest.approx(expected, rel=1e-12)


def test_the_papers_base_peaks_at_seven_ten_thousandths():
    rates = [learning_rate(step, 512, 4000) for step in range(1, 20_000)]
    assert max(rates) == rates[3999] == pytest.approx(6.99e-4, rel=1e-3)


def test_the_scale_is_a_factor():
    assert learning_rate(123, 64, 100, 2.5) == pytest.approx(2.5 * learning_rate(123, 64, 100))


def test_the_default_is_the_papers_bit_for_bit():
    settings = TrainingConfig(warmup_steps=400, learning_rate_scale=0.7)
    schedule = make_schedule(settings, 96)
    assert all(schedule(step) == learning_rate(step, 96, 400, 0.7) for step in range(1, 2000))


STEPS, WARMUP, LEAST = 200, 30, 0.1
# Rate over the highest, after the warm-up.
FORMULAS = {
    "inverse_sqrt": lambda step: (WARMUP / step) ** 0.5,
    "constant": lambda step: 1.0,
    "cosine": lambda step: LEAST + (1 - LEAST) * math.cos(math.pi / 2 * (step - WARMUP) / (STEPS - WARMUP)) ** 2,
    "linear": lambda step: (LEAST * (step - WARMUP) + STEPS - step) / (STEPS - WARMUP),
    "warmup_stable_decay": lambda step: min(1.0, (LEAST * (step - 150) + STEPS - step) / (STEPS - 150)),
    "plateau": lambda step: 1.0,
}


def _settings(name, **others):
    return TrainingConfig(
        schedule=name, train_steps=STEPS, warmup_steps=WARMUP, min_lr_ratio=LEAST, stable_ratio=0.75, **others
    )


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("given", [None, 0.02])
def test_every_schedule_is_its_formula_at_all_steps(name, given):
    highest = given or 3.0 * (64 * WARMUP) ** -0.5
    schedule = make_schedule(_settings(name, learning_rate=given, learning_rate_scale=3.0), 64)
    for step in range(1, STEPS + 1):
        share = step / WARMUP if step <= WARMUP else FORMULAS[name](step)
        assert schedule(step) == pytest.approx(highest * share, rel=1e-12), step


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("cosine", lambda sgd: torch.optim.lr_scheduler.CosineAnnealingLR(sgd, STEPS - WARMUP, LEAST)),
        ("linear", lambda sgd: torch.optim.lr_scheduler.LinearLR(sgd, 1.0, LEAST, STEPS - WARMUP)),
    ],
)
def test_torch_has_the_same(name, theirs):
    sgd = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler, ours = theirs(sgd), make_schedule(_settings(name, learning_rate=1.0), 64)
    for step in range(WARMUP, STEPS + 1):
        assert ours(step) == pytest.approx(scheduler.get_last_lr()[0], rel=1e-9), step
        sgd.step()
        scheduler.step()


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_training_within_its_warm_up_never_decays(name):
    schedule = make_schedule(TrainingConfig(schedule=name, train_steps=9, warmup_steps=10, learning_rate=1.0), 64)
    assert [schedule(step) for step in range(1, 10)] == [step / 10 for step in range(1, 10)]


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_continues_where_a_longer_training_has_the_same_rates(name):
    short, long = (
        make_schedule(_settings(name).model_copy(update={"train_steps": steps}), 64) for steps in (STEPS, 2 * STEPS)
    )
    assert SCHEDULES[name].continues == all(short(step) == long(step) for step in range(1, STEPS + 1))
    assert SHARES.keys() == SCHEDULES.keys()


@pytest.mark.parametrize("patience", [0, 1, 3])
def test_the_plateau_halves_as_torchs_does(patience):
    sgd = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(sgd, factor=0.5, patience=patience, threshold=0, eps=0)
    ours, generator = Plateau(), torch.Generator().manual_seed(0)
    for measurement in range(200):
        falling = 50 / (1 + measurement) if measurement < 60 else 1.0
        perplexity = falling + torch.rand((), generator=generator).item()
        theirs.step(perplexity)
        ours = ours.after(perplexity, patience)
        assert 0.5**ours.halvings == sgd.param_groups[0]["lr"], measurement
    assert ours.halvings > 5


def test_a_perplexity_that_is_no_number_is_no_improvement():
    state = Plateau().after(math.nan, 1).after(math.inf, 1)
    assert state == Plateau(None, 0, 1)
    assert state.after(5.0, 1) == Plateau(5.0, 0, 1)
