"""Tests of what `plan` and `run` print about shared GPUs, and of the slots that a forecast counts."""

from dataclasses import replace
from pathlib import Path

import pytest

from ablations.service import gpu_sharing
from ablations.service.forecast import forecast, step_cost
from ablations.service.gpu_sharing import seats, sharing_lines
from ablations.service.selected import Selected, Selectors, choose
from experiments.jobs.attempts.probe import ProbePoint, keep
from experiments.jobs.devices import hardware, slots
from experiments.jobs.devices.hardware import Gpu
from experiments.jobs.devices.slots import Slot, parse_slots
from experiments.store.layout import Store
from tests.unit.ablations.test_forecast import STUDY


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[Slot]:
    """Return the slots of `auto` with 16 cores and two GPUs. Other programs use the second GPU."""
    monkeypatch.setattr(hardware, "_nvidia_smi", lambda: [("0", Gpu("GPU-a", 85.5)), ("1", Gpu("GPU-b", 85.5))])
    monkeypatch.setattr(slots, "available_cores", lambda: 16)
    monkeypatch.setattr(slots, "memory_gb", lambda: 128.0)
    monkeypatch.setattr(gpu_sharing, "gpus_in_use", lambda: {"GPU-b": "process 4711", "1": "process 4711"})
    return parse_slots("auto", {})


@pytest.fixture
def table(tmp_path: Path) -> Selected:
    Store.open(tmp_path)
    return choose("table3", Selectors(store=tmp_path, profile="demo"))


def test_small_runs_share_and_a_gpu_of_others_is_left_alone(table: Selected, gpus: list[Slot]) -> None:
    first, second = sharing_lines(table, table.plan, table.plan.runs, gpus)
    assert first.startswith("cuda:0: 4 runs at once (") and "less than 1% of the GPU" in first
    assert second == "cuda:1: no run (not used, because other programs use it: process 4711)"


def test_gpus_with_equal_decisions_share_a_line(table: Selected, gpus: list[Slot], monkeypatch) -> None:
    monkeypatch.setattr(gpu_sharing, "gpus_in_use", dict)
    wide = choose("table3", Selectors(store=table.store.root, profile="paper"))
    runs = [run for run in wide.plan.runs if run.row in ("A-h1", "A-h4")]  # of equal cost
    [line] = sharing_lines(wide, wide.plan, runs, gpus)
    assert line.startswith("cuda:0, cuda:1: one run at a time on each (a step of the run has ")


def test_on_processors_and_for_chosen_gpus_nothing_is_said(table: Selected, gpus: list[Slot]) -> None:
    for text in ("cpu:2", "cuda:0", "cuda:*", "cuda:*x3"):
        found = parse_slots(text, {})
        assert sharing_lines(table, table.plan, table.plan.runs, found) == []
        assert seats(table, table.plan, table.plan.runs, found) == found
    assert sharing_lines(table, table.plan, [], gpus) == []


def test_a_forecast_counts_the_runs_that_share_a_gpu(table: Selected, gpus: list[Slot]) -> None:
    """The forecast uses the threads and the speed of runs that share a GPU."""
    runs = [run for run in table.plan.runs if run.row in ("base", "A-h1", "A-h4", "A-h16")]
    keep(table.store, [ProbePoint("cuda", 1, step_cost(run), 0.01, "fp32") for run in runs])
    found = forecast(table, table.plan, runs, gpus[:1])
    assert [seat.threads for seat in seats(table, table.plan, runs, gpus[:1])] == [1] * 4
    assert found.makespan_s == max(seconds for seconds in found.seconds.values() if seconds)
    assert forecast(table, table.plan, runs, [replace(gpus[0], most=0)]).makespan_s is None, "8 threads: not measured"


def test_the_memory_of_a_command_is_not_known(tmp_path: Path, gpus: list[Slot]) -> None:
    (tmp_path / "mine.toml").write_text(STUDY)
    Store.open(tmp_path / "store")
    mine = choose(str(tmp_path / "mine.toml"), Selectors(store=tmp_path / "store"))
    [line] = sharing_lines(mine, mine.plan, mine.plan.runs, gpus[:1])
    assert line == "cuda:0: one run at a time (the memory of the run is unknown)"
