"""A study in bf16 can be planned on CPUs with and without bf16 instructions."""

from typing import Any

import pytest
import torch

from ablations.service import forecast
from ablations.service.preflight import refusals, warnings
from ablations.service.selected import Selected, Selectors, choose
from ablations.service.train import shortened
from experiments.jobs.attempts.probe import Measured, ProbePoint, keep, kept
from experiments.jobs.devices.slots import Slot, parse_slots
from experiments.processes import processor
from experiments.store.layout import Store

pytestmark = pytest.mark.process  # planning asks for the commit of the repository

STUDY = """
name = "narrow"
title = "A study for a GPU"

[base]
data = {vocab_size = 120}
model = {num_layers = 1, d_model = 8, d_ff = 16, num_heads = 2, d_k = 4, d_v = 4}
training = {train_steps = 100, tokens_per_batch = 300, precision = "bf16"}

[[variation]]
key = "base"

[[variation]]
key = "scored"
set = {model.num_layers = 2, evaluation.precision = "bf16"}

[[variation]]
key = "wide"
set = {training.precision = "fp32"}

[[variation]]
key = "any"
set = {training.precision = "auto"}
"""


@pytest.fixture(params=["AVX-512", "AVX2"])
def slow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Simulate a CPU with or without bf16. Return True if it lacks bf16."""
    monkeypatch.delenv("ABLATIONS_TEST_CPU", raising=False)
    monkeypatch.setattr(processor, "_flags", lambda: frozenset({"avx512_bf16"} if request.param == "AVX-512" else ()))
    return bool(request.param == "AVX2")


@pytest.fixture
def chosen(tmp_path: Any) -> Selected:
    path = tmp_path / "narrow.toml"
    path.write_text(STUDY, encoding="utf-8")
    Store.open(tmp_path / "store")
    return choose(str(path), Selectors(store=tmp_path / "store"))


def test_it_is_planned_with_one_warning_where_it_is_slow(chosen: Selected, slow: bool) -> None:
    slots, runs = parse_slots("cpu:1"), chosen.plan.runs
    assert not refusals(chosen, runs, slots)
    assert [warning[:60] for warning in warnings(chosen, runs, slots)] == (
        ['base, scored: the precision is "bf16", for which this proces'] if slow else []
    )
    (only,) = warnings(chosen, runs[:1], slots) or [""]
    assert (not only) if not slow else only.startswith("the precision") and 'to "fp32" or "auto" (here fp32)' in only


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a torch that sees no GPU")
def test_gpus_that_torch_does_not_see_are_refused(chosen: Selected) -> None:
    """nvidia-smi lists one: torch is a build for processors, or the driver is too old for it."""
    (only,) = refusals(chosen, chosen.plan.runs, [Slot("cuda:0", "cuda", 1, "GPU-a")])
    assert set(only.rows) == {run.row for run in chosen.plan.runs}
    assert "but torch" in only.why and "sees none (" in only.why and "nvidia-smi" in only.why


def test_a_smoke_takes_the_precision_that_the_device_has(chosen: Selected, slow: bool) -> None:
    tried = {run.row: run.config.training.precision for run in shortened(chosen, chosen.plan).runs}
    assert tried == {"base": "auto", "scored": "auto", "wide": "fp32", "any": "auto"}


def test_time_is_predicted_from_measurements_in_the_same_precision(chosen: Selected, slow: bool) -> None:
    def hours() -> dict[str, float | None]:
        found = forecast.forecast(chosen, chosen.plan, chosen.plan.runs, parse_slots("cpu:1"))
        return {run.row: found.seconds[run.run_id] for run in chosen.plan.runs}

    cost, larger = (forecast.step_cost(run) for run in chosen.plan.runs[:2])
    more = larger / cost
    keep(chosen.store, [ProbePoint("cpu", 1, cost, 0.1, "fp32")])
    assert hours() == {"base": None, "scored": None, "wide": 10.0, "any": 10.0 if slow else None}
    keep(chosen.store, [ProbePoint("cpu", 1, cost, 2.0, "bf16")])
    assert hours() == {"base": 200.0, "scored": pytest.approx(200 * more), "wide": 10.0, "any": 10.0 if slow else 200.0}


def test_each_precision_is_measured(chosen: Selected, slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def probe(store: Store, specs: Any, slot: Slot) -> Any:
        for spec in specs:
            precision = processor.precision_here(spec.config["training"]["precision"])
            yield Measured({"fp32": 0.1, "bf16": 2.0}[precision], precision=precision)

    monkeypatch.setattr(forecast, "probe", probe)
    monkeypatch.setattr(forecast, "prepare", lambda *_: None)
    monkeypatch.setattr(forecast, "PROBED_S", 0)  # after the first rows of each precision
    forecast.measure(chosen, chosen.plan.runs, parse_slots("cpu:1")[0], lambda *_: None)
    assert {(point.precision, point.seconds) for point in kept(chosen.store)} == {("fp32", 0.1), ("bf16", 2.0)}


def test_memory_has_kernels_where_the_processor_has_bf16(chosen: Selected, slow: bool) -> None:
    narrow, wide = (chosen.task.memory_bytes(run.config, "cpu") for run in chosen.plan.runs[::2][:2])
    assert (narrow < wide) if slow else (narrow > wide + 3e8)
