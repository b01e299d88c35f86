"""Trainings with every optimizer and schedule can be killed, resumed and continued by a longer training."""

import math
from itertools import product

import pytest
import torch

from experiments.config.run_config import RunConfig
from experiments.config.training import OPTIMIZERS, SCHEDULES, TrainingConfig
from experiments.errors import Diverged
from experiments.identity import lineage, run_identity
from experiments.training import checkpoint
from experiments.training.optimizers import Lion, hidden_matrices
from tests.lines import random_config
from tests.slow import mostly_slow
from tests.small_training import SIZES, kinds, losses, pairs, run

pytestmark = pytest.mark.usefixtures("every_step")

STEPS = 9
# each optimizer and each schedule once, then all the others
ONCE = [*zip(OPTIMIZERS, SCHEDULES, strict=True)]
PAIRS = [*ONCE, *(pair for pair in product(OPTIMIZERS, SCHEDULES) if pair not in ONCE)]


def _settings(optimizer="adam", schedule="inverse_sqrt", **others):
    choice = {"optimizer": optimizer, "schedule": schedule, "learning_rate": 0.01, "min_lr_ratio": 0.1}
    spacing = {"train_steps": STEPS, "warmup_steps": 3, "checkpoint_steps": 4, "eval_steps": 2, "plateau_patience": 0}
    return TrainingConfig(**(choice | spacing | others))


def _dev(step):
    return {"perplexity": 5.0 + step % 4}  # never lower than at first


def _rates(events):
    return {e["step"]: e["metrics"]["learning_rate"] for e in kinds(events, "metrics") if "loss" in e["metrics"]}


def _files(folder):
    path = folder / f"checkpoints/step-{STEPS:08d}"
    return [(path / name).read_bytes() for name in ("model.safetensors", "optimizer.safetensors")]


@pytest.mark.parametrize(("optimizer", "schedule"), mostly_slow(PAIRS, len(OPTIMIZERS)))
def test_a_training_that_is_killed_and_resumed_is_the_same_bit_for_bit(tmp_path, optimizer, schedule):
    options = {"settings": _settings(optimizer, schedule, weight_decay=0.1), "evaluate": _dev}
    _, _, events = run(tmp_path / "straight", **options)
    _, _, first = run(tmp_path / "1", **options, stop_at=5)
    _, facts, second = run(tmp_path / "2", **options, earlier=[tmp_path / "1"])
    assert facts["resumed_from"] == 5
    assert losses(first) | losses(second) == losses(events)
    assert _rates(first) | _rates(second) == _rates(events)
    assert _files(tmp_path / "2") == _files(tmp_path / "straight")


def _parts(step):
    """Return three micro-batches of different sizes."""
    return [pairs(10 * step + part, count) for part, count in enumerate((6, 4, 2))]


@pytest.mark.parametrize(("seed", "threads"), mostly_slow([(0, 1), (1, 2), (0, 2), *product(range(2, 10), (1, 2))], 1))
def test_in_any_architecture_a_resume_repeats_every_bit(tmp_path, seed, threads):
    sizes, precision = random_config(seed, dropout=0.1), ("fp32", "bf16")[seed % 2]
    options = {"sizes": sizes, "batches": _parts, "precision": precision, "threads": threads}
    straight, _, _ = run(tmp_path / "1", **options)
    run(tmp_path / "2", stop_at=5, **options)
    resumed, facts, _ = run(tmp_path / "3", earlier=[tmp_path / "2"], **options)
    assert facts["resumed_from"] == 5
    for (name, expected), found in zip(straight.named_parameters(), resumed.parameters(), strict=True):
        assert torch.equal(found, expected), name


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_bf16_trains_as_fp32_does(tmp_path, optimizer):
    settings = _settings(optimizer, learning_rate=1e-3)
    still = SIZES.model_copy(update={"dropout": 0.0})
    halves = {"settings": settings, "sizes": still, "batches": lambda step: [pairs(2 * step), pairs(2 * step + 1)]}
    _, _, alone = run(tmp_path / "1", **halves)
    _, _, narrow = run(tmp_path / "2", **halves, precision="bf16")
    assert losses(narrow) == pytest.approx(losses(alone), rel=0.02)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_learns_and_records_what_it_updates(tmp_path, optimizer):
    rates = {"sgd": 0.3, "adafactor": 0.1, "lion": 0.003}
    rate, plain = rates.get(optimizer, 0.01), {"eval_steps": 0, "label_smoothing": 0.0}
    settings = _settings(optimizer, "constant", learning_rate=rate, train_steps=60, **plain)
    model, facts, events = run(tmp_path, settings=settings)
    found = losses(events)
    assert sum(found[step] for step in range(51, 61)) < 0.93 * sum(found[step] for step in range(1, 11))
    weights = sum(p.numel() for p in model.parameters())
    assert facts["optimizer"] == "+".join(facts["updated_by"])
    assert sum(facts["updated_by"].values()) == weights
    if optimizer == "muon":
        assert facts["updated_by"]["muon"] == sum(p.numel() for p in hidden_matrices(model)) < weights


def test_the_rate_is_halved_where_dev_does_not_improve(tmp_path):
    perplexities = {2: 9.0, 4: 8.0, 6: 8.5, 8: 8.2, 10: 7.0, 12: 7.5, 14: 7.5, 16: 7.5}
    settings = _settings(schedule="plateau", train_steps=17, warmup_steps=1, plateau_patience=1)
    _, _, events = run(tmp_path, settings=settings, evaluate=lambda step: {"perplexity": perplexities[step]})
    halved = {step: 0 if step <= 8 else 1 if step <= 14 else 2 for step in range(1, 18)}
    assert _rates(events) == {step: 0.01 * 0.5 ** halved[step] for step in halved}


def test_only_measurements_of_the_runs_own_spacing_halve_the_rate(tmp_path):
    settings = _settings(schedule="plateau")
    _, _, alone = run(tmp_path / "1", settings=settings, evaluate=_dev)
    _, _, shared = run(tmp_path / "2", settings=settings, evaluate=_dev, keeps=[("best", 3, 1, 1)])
    assert len([e for e in kinds(shared, "metrics") if "dev_perplexity" in e["metrics"]]) > 4
    assert _rates(shared) == _rates(alone)


def test_a_moment_that_is_no_number_ends_the_run(tmp_path, monkeypatch):
    """The sign of a NaN is 0, so Lion's weights stay finite and stop changing."""
    plain = Lion._update

    def poisoned(self, updated, group):
        plain(self, updated, group)
        self.state[updated[0]]["exp_avg"].fill_(math.nan)

    monkeypatch.setattr(Lion, "_update", poisoned)
    with pytest.raises(Diverged, match="exp_avg/"):
        run(tmp_path, settings=_settings("lion"))


def _config(schedule, steps, **others):
    return RunConfig(training=_settings(schedule=schedule, train_steps=steps, **others))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_longer_training_continues_where_the_schedule_allows_it(tmp_path, schedule):
    config, longer = _config(schedule, 6), _config(schedule, STEPS)
    same = lineage(config, {}) == lineage(longer, {})
    assert same == SCHEDULES[schedule].continues
    assert run_identity(config, {}) != run_identity(longer, {})
    if not same:
        return
    run(tmp_path / "short", settings=config.training, evaluate=_dev)
    _, facts, _ = run(tmp_path / "long", settings=longer.training, evaluate=_dev, earlier=[tmp_path / "short"])
    run(tmp_path / "straight", settings=longer.training, evaluate=_dev)
    assert facts["resumed_from"] == 6
    assert _files(tmp_path / "long") == _files(tmp_path / "straight")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_spacing_of_measurements_names_a_run_where_its_numbers_depend_on_it(schedule):
    names = {run_identity(_config(schedule, 6, eval_steps=every), {}) for every in (2, 3)}
    assert len(names) == (2 if schedule == "plateau" else 1)


def test_a_checkpoint_has_the_schedules_state(tmp_path):
    run(tmp_path, settings=_settings(schedule="plateau"), evaluate=_dev)
    assert checkpoint.Checkpoint.open(tmp_path / f"checkpoints/step-{STEPS:08d}").meta["plateau"] == [5.0, 0, 2]
