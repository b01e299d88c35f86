"""Main memory limits which runs start. Predictions are compared with free memory and with other programs' use."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.jobs.coordinator.admission import Admission, resident
from experiments.jobs.devices import hardware
from experiments.jobs.devices.slots import TOLERANCE, Slot
from experiments.jobs.engines.engine import Handle
from experiments.jobs.queue.job import Waiting

CPU = Slot("cpu:0", "cpu", room_gb=100.0)
sizes = st.lists(st.floats(0.1, 40.0), min_size=1, max_size=6)


def job(number, gb):
    return Waiting(f"{number:016x}", 0, 1.0, "", "", memory_gb=gb)


def running(predicted, holds=0.0, slot=CPU):
    claimed = SimpleNamespace(job=SimpleNamespace(memory_gb=predicted))
    return SimpleNamespace(claimed=claimed, slot=slot, handle=None, holds=holds)


def admit(needs, free, total=100.0, lives=(), slot=CPU):
    admission = Admission(lambda: free, lambda: total, lambda live: live.holds)
    found = admission.admit([(job(number, gb), slot) for number, gb in enumerate(needs)], lives)
    told = {int(run_id, 16): why for run_id, why in {**found.waiting, **found.refused}.items()}
    assert admission.waiting == found.waiting
    return [int(one.run_id, 16) for one, _ in found.pairs], told


@given(needs=sizes, free=st.floats(0.0, 60.0), lives=st.lists(st.tuples(st.floats(0, 20), st.floats(0, 20))))
def test_what_starts_fits_into_what_is_free_less_what_running_ones_will_still_take(needs, free, lives):
    started, told = admit(needs, free, lives=[running(*live) for live in lives])
    assert sorted([*started, *told]) == list(range(len(needs)))
    growth = sum(max(0.0, predicted - holds) for predicted, holds in lives)
    taken = sum(needs[number] for number in started)
    # the first of all may be over by the tolerance: nothing of ours is there that could end
    assert taken <= max(0.0, free - growth) + 1e-6 or (len(started) == 1 and taken / TOLERANCE <= free)


def test_a_run_waits_for_ours_and_nothing_passes_it():
    started, told = admit([6.0, 1.0], free=4.0, lives=[running(3.0, holds=3.0)])
    assert started == []
    assert told[0] == "waits for memory: needs about 6.0 GB, 4.0 GB are free; running runs use 3.0 GB"
    assert "needs about 1.0 GB" in told[1]


def test_a_run_that_waits_for_others_lets_smaller_ones_pass():
    started, told = admit([60.0, 1.0], free=4.0, lives=[running(3.0, holds=3.0)])
    assert started == [1] and list(told) == [0]
    [reason] = admit([60.0], free=4.0)[1].values()
    assert reason.endswith("4.0 GB are free; other programs use the rest")


@pytest.mark.parametrize(("need", "starts"), [(10.0, True), (12.4, True), (12.6, False)])
def test_alone_a_prediction_may_be_wrong_by_the_tolerance(need, starts):
    assert (admit([need], free=10.0)[0] == [0]) is starts
    assert admit([need], free=10.0, lives=[running(0.0, holds=1.0)])[0] == ([0] if need <= 10.0 else [])


def test_more_than_the_machine_has_is_refused_with_what_to_do():
    started, told = admit([130.0, 5.0], free=50.0)
    assert started == [1]
    assert "need 130.0 GB" in told[0] and "has 100.0 GB" in told[0] and "tokens_per_batch" in told[0]
    assert "waits" in admit([120.0], free=50.0)[1][0]


@pytest.mark.parametrize(
    "slot", [Slot("cuda:0", "cuda", room_gb=80.0), Slot("cpu.3", "cpu")], ids=["a GPU's memory", "a cluster's"]
)
def test_only_this_machines_main_memory_is_looked_at(slot):
    assert admit([50.0, 50.0], free=1.0, slot=slot) == ([0, 1], {})


def test_a_run_with_a_limit_needs_no_more_than_it():
    """Predicted for the usual micro-batch: below a limit the run continues with smaller ones."""
    limited = Slot("cpu:0", "cpu", memory_gb=2.0, room_gb=2.0)
    assert admit([50.0], free=2.5, total=4.0, slot=limited) == ([0], {})
    started, told = admit([50.0], free=3.0, total=4.0, slot=limited, lives=[running(9.0, 0.5, limited)])
    assert not started and "needs about 2.0 GB, 1.5 GB are free; running runs use 2.0 GB" in told[0]


def test_several_processes_hold_as_much_each():
    slot = Slot("cpu:0+cpu:1", "cpu", room_gb=100.0, count=2)
    assert admit([6.0], free=13.0, slot=slot)[0] == [0]
    assert admit([6.0], free=9.0, slot=slot)[0] == []


def test_it_looks_again_only_while_a_run_waits(monkeypatch):
    free = [1.0]
    admission = Admission(lambda: free[0], lambda: 100.0)
    assert not admission.due
    admission.admit([(job(0, 5.0), CPU)], [])
    assert admission.waiting and not admission.due
    monkeypatch.setattr("experiments.jobs.coordinator.admission.LOOK_EVERY_S", 0.0)
    assert admission.due
    free[0] = 9.0
    assert admission.admit([(job(0, 5.0), CPU)], []).pairs and not admission.due


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.process
def test_memory_of_a_child_and_of_what_it_has_started_is_counted():
    grow = "import sys; held = bytearray(b'x') * {}; print('ready', flush=True); sys.stdin.read()"
    start = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {grow.format(40_000_000)!r}])\n" + grow.format(30_000_000)
    )
    process = subprocess.Popen([sys.executable, "-c", start], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert [process.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
        live = running(1.0)
        live.handle = Handle({"pid": process.pid})
        assert 0.070 < resident(live) < 0.150
    finally:
        process.communicate()
    assert resident(live) == 0.0  # it has ended
    live.handle = Handle({"job": "17_3"})  # of a cluster
    assert resident(live) == 0.0


class TestControlGroup:
    @pytest.fixture
    def group(self, tmp_path):
        """Make a cgroup one level below the container's root."""
        (tmp_path / "cgroup").write_text("0::/mine\n")
        group = tmp_path / "mine"
        group.mkdir()
        (group / "memory.current").write_text("5000000\n")
        (group / "memory.stat").write_text("anon 3000000\ninactive_file 1500000\nactive_file 500000\n")
        return group

    def read(self, tmp_path):
        return [read(tmp_path / "cgroup", tmp_path) for read in (hardware.memory_gb, hardware.free_memory_gb)]

    def test_its_limit_counts_less_what_it_holds(self, group, tmp_path):
        (group / "memory.max").write_text("8000000\n")
        # 8 - 5 MB, and 1.5 MB of unused files that the kernel takes back
        assert self.read(tmp_path) == pytest.approx([0.008, 0.0045])

    def test_a_parents_limit_counts_too(self, group, tmp_path):
        (group / "memory.max").write_text("max\n")
        (tmp_path / "memory.max").write_text("6000000\n")
        (tmp_path / "memory.current").write_text("6500000\n")
        assert self.read(tmp_path) == [0.006, 0.0]

    def test_version_1(self, tmp_path):
        (tmp_path / "cgroup").write_text("4:memory:/mine\n0::/\n")
        group = tmp_path / "memory" / "mine"
        group.mkdir(parents=True)
        for name, text in {
            "memory.limit_in_bytes": "9000000", "memory.usage_in_bytes": "4000000",
            "memory.stat": "inactive_file 1\ntotal_inactive_file 1000000",
        }.items():  # fmt: skip
            (group / name).write_text(text + "\n")
        assert self.read(tmp_path) == pytest.approx([0.009, 0.006])

    def test_without_limits_it_is_the_machines(self, group, tmp_path):
        (group / "memory.max").write_text("max\n")
        total, free = self.read(tmp_path)
        assert total == hardware.memory_gb() and 0 < free < total
