"""An attempt's CPU time and energy are measured, divided among runs that share a machine, or left out."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.processes import energy_counters
from experiments.processes.energy_counters import CounterLostError, Nvml, Rapl
from experiments.processes.meter import AGAIN_S, Meter
from experiments.processes.process_identity import age_s, cpu_below_s

MOST = 262_143_328_850  # microjoules, as Intel's server processors have it
TICKS = os.sysconf("SC_CLK_TCK")


def zones(root: Path, values: Mapping[str, tuple[str, int]]) -> Path:
    """Make a folder like /sys/class/powercap, in which all zones are siblings: zone → name, microjoules."""
    (root / "intel-rapl").mkdir(parents=True, exist_ok=True)  # the control type itself has no counter
    (root / "intel-rapl" / "enabled").write_text("1\n")
    for zone, (name, value) in values.items():
        folder = root / zone
        folder.mkdir(exist_ok=True)
        (folder / "name").write_text(f"{name}\n")
        (folder / "max_energy_range_uj").write_text(f"{MOST}\n")
        (folder / "energy_uj").write_text(f"{value}\n")
    return root


def test_packages_and_memory_are_added_up_and_their_parts_are_not(tmp_path: Path) -> None:
    names = {
        "intel-rapl:0": "package-0", "intel-rapl:0:0": "core", "intel-rapl:0:1": "dram", "intel-rapl:1": "package-1",
        "intel-rapl:2": "psys", "intel-rapl-mmio:0": "package-0",
    }  # fmt: skip
    zones(tmp_path, {zone: (name, 1_000_000) for zone, name in names.items()})
    rapl = Rapl.open(tmp_path)
    assert rapl is not None and rapl.joules() == 0
    zones(tmp_path, {zone: (name, 1_000_000 + 10**6 * 10**place) for place, (zone, name) in enumerate(names.items())})
    assert rapl.joules() == 1 + 100 + 1000  # package-0, dram, package-1
    assert rapl.joules() == 0


@given(first=st.integers(0, MOST - 1), used=st.lists(st.integers(0, MOST - 1), max_size=5))
def test_a_counter_that_starts_again_loses_nothing(
    tmp_path_factory: pytest.TempPathFactory, first: int, used: list[int]
) -> None:
    root = zones(tmp_path_factory.mktemp("powercap"), {"intel-rapl:0": ("package-0", first)})
    rapl, value = Rapl.open(root), first
    assert rapl is not None
    for each in used:
        value = (value + each) % MOST
        zones(root, {"intel-rapl:0": ("package-0", value)})
        assert rapl.joules() == pytest.approx(each / 1e6)


def test_without_counters_or_the_right_to_read_them_nothing_is_measured(tmp_path: Path) -> None:
    assert Rapl.open(tmp_path / "none") is None and Rapl.open(zones(tmp_path / "empty", {})) is None
    root = zones(tmp_path, {"intel-rapl:0": ("package-0", 5), "intel-rapl:1": ("package-1", 5)})
    rapl = Rapl.open(root)
    (root / "intel-rapl:1" / "energy_uj").unlink()  # as good as unreadable; also for root, whom no permission stops
    assert Rapl.open(root) is None  # one package alone would be taken for all
    assert rapl is not None
    with pytest.raises(CounterLostError):
        rapl.joules()


@pytest.fixture
def stat(tmp_path: Path) -> Path:
    file = tmp_path / "stat"
    busy(file, 1000)
    return file


def busy(file: Path, ticks: int) -> None:
    """Write the first lines of /proc/stat: user nice system idle iowait irq softirq steal guest guest_nice."""
    file.write_text(f"cpu  {ticks} 0 0 999999 500 0 0 70 0 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n")


def burn(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


@pytest.mark.process
def test_what_processes_below_used_before_the_first_reading_is_not_of_the_run(tmp_path: Path, stat: Path) -> None:
    root = zones(tmp_path / "powercap", {"intel-rapl:0": ("package-0", 0)})
    code = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline()
        meter = Meter(Rapl.open(root), stat)
        busy(stat, 1000 + 10 * TICKS)
        zones(root, {"intel-rapl:0": ("package-0", 60_000_000)})
        time.sleep(AGAIN_S)
        assert meter.used(fresh=True)["cpu_joules"] < 60 * 0.4 / 10
        child.communicate(b"\n")


@pytest.mark.parametrize("others", [0, 1, 3])
def test_the_processors_energy_is_divided_by_cpu_time(tmp_path: Path, stat: Path, others: int) -> None:
    """If n other programs use as much CPU time, a run gets 1/(n + 1) of the energy."""
    root = zones(tmp_path / "powercap", {"intel-rapl:0": ("package-0", 0)})
    meter = Meter(Rapl.open(root), stat)
    begin = meter.used(fresh=False)["cpu_s"]
    burn(0.3)
    own = meter.used(fresh=False)["cpu_s"] - begin
    busy(stat, 1000 + round(own * (others + 1) * TICKS))
    zones(root, {"intel-rapl:0": ("package-0", 60_000_000)})
    found = meter.used(fresh=True)
    assert found["cpu_joules"] == pytest.approx(60 / (others + 1), rel=0.1) and "gpu_joules" not in found
    assert found["cpu_joules"] <= 60


def test_a_lost_counter_ends_the_measurement(tmp_path: Path, stat: Path) -> None:
    root = zones(tmp_path / "powercap", {"intel-rapl:0": ("package-0", 0)})
    meter = Meter(Rapl.open(root), stat)
    assert meter.used(fresh=False)["cpu_joules"] == 0
    busy(stat, 9000)
    (root / "intel-rapl:0" / "energy_uj").unlink()
    time.sleep(AGAIN_S)
    assert meter.used(fresh=True).keys() == {"cpu_s"}


@pytest.mark.process
def test_cpu_time_of_processes_below_counts_while_they_run_and_after(stat: Path) -> None:
    meter = Meter(stat=stat)
    before = meter.used(fresh=True)["cpu_s"]
    code = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline()
        assert cpu_below_s() >= 0.4
        time.sleep(AGAIN_S)
        alive = meter.used(fresh=True)["cpu_s"]
        assert alive >= before + 0.4
        child.communicate(b"\n")
    ended = meter.used(fresh=False)["cpu_s"]
    assert alive <= ended <= alive + 1.0  # counted once


@pytest.mark.process
def test_the_age_of_a_process_is_the_time_since_its_start() -> None:
    code = "import time; time.sleep(0.3); from experiments.processes.process_identity import age_s; print(age_s())"
    began = time.monotonic()
    age = float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert 0.3 <= age <= time.monotonic() - began + 0.02
    assert age_s() > 0


class FakeNvml:
    """A fake of the functions of nvidia-ml-py that are used, for GPUs that report these millijoules."""

    class NVMLError(Exception):
        pass

    def __init__(self, gpus: dict[str, int]) -> None:
        self.gpus = gpus
        self.nvmlInit = lambda: None
        self.nvmlDeviceGetCount = lambda: len(gpus)
        self.nvmlDeviceGetHandleByIndex = lambda index: list(gpus)[index]
        self.nvmlDeviceGetTotalEnergyConsumption = gpus.__getitem__
        self.nvmlDeviceGetHandleByUUID = self._by_uuid

    def _by_uuid(self, uuid: str) -> str:
        if uuid not in self.gpus:
            raise self.NVMLError("not found")
        return uuid


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    fake = FakeNvml({"GPU-a": 5000, "GPU-b": 70_000})
    monkeypatch.setitem(sys.modules, "pynvml", fake)  # type: ignore[arg-type]
    yield SimpleNamespace(add=lambda name, more: fake.gpus.__setitem__(name, fake.gpus[name] + more))


def test_a_gpu_is_found_by_its_uuid_and_by_a_number_only_where_that_is_sure(nvml: Any) -> None:
    gpus = Nvml.open({"CUDA_VISIBLE_DEVICES": "GPU-b"})
    assert gpus is not None
    nvml.add("GPU-a", 9_000_000)
    nvml.add("GPU-b", 12_500)
    assert gpus.joules() == 12.5 and gpus.joules() == 0
    for named in ("GPU-c", "MIG-1", ""):
        assert Nvml.open({"CUDA_VISIBLE_DEVICES": named}) is None
    assert Nvml.open({"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}) is None
    both = Nvml.open({"CUDA_VISIBLE_DEVICES": "0,1"})  # numbered by the bus in all children
    assert both is not None
    nvml.add("GPU-a", 1000)
    nvml.add("GPU-b", 2000)
    assert both.joules() == 3
    for environ, second in (({}, False), ({"CUDA_VISIBLE_DEVICES": "1"}, True)):
        one = Nvml.open(environ, count=1)  # without a mask, and with a number
        nvml.add("GPU-a", 1000)
        nvml.add("GPU-b", 2000)
        assert one is not None and one.joules() == (2 if second else 1)
    both.joules()
    nvml.add("GPU-a", -1)  # the driver was loaded again
    with pytest.raises(CounterLostError):
        both.joules()


def test_a_share_of_a_gpu_is_given_that_share_of_its_energy(
    nvml: Any, stat: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a")
    meter = Meter(stat=stat)
    meter.lease("cuda", 1 / 4)
    nvml.add("GPU-a", 8000)
    time.sleep(AGAIN_S)
    assert meter.used(fresh=True)["gpu_joules"] == 2
    meter.lease("cpu", 1.0)
    assert "gpu_joules" not in meter.used(fresh=True)


def test_without_the_library_gpus_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert energy_counters._library() is None and Nvml.open({}) is None
