"""Tests of leases: memory, whole devices, several devices per run, and GPUs that others use."""

import threading
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.errors import UserError
from experiments.jobs.attempts.probe import _refuse_others
from experiments.jobs.coordinator.scheduler import place
from experiments.jobs.devices import hardware
from experiments.jobs.devices.gpu_occupancy import GpuOccupancy
from experiments.jobs.devices.slots import Slot, join, parse_slots
from experiments.jobs.queue.job import Waiting
from experiments.jobs.queue.time_left import makespan
from tests.fake_gpus import app, gpu, put_nvidia_smi


def gpus(count, shares=1, room=40.0):
    names = [(f"cuda:{i}" if shares == 1 else f"cuda:{i}/{k}", f"GPU-{i}") for i in range(count) for k in range(shares)]
    return [Slot(name, "cuda", 2, device, room if shares > 1 else None, room) for name, device in names]


def job(number, cost=1.0, **more):
    return Waiting(f"{number:016x}", 0, cost, "", "", **more)


def names(placed):
    return {int(waiting.run_id, 16): [slot.name for slot in lease] for waiting, lease in placed}


class TestMemory:
    def test_the_tightest_slot_with_room_is_taken(self):
        slots = [replace(slot, room_gb=room) for slot, room in zip(gpus(3), (80.0, 20.0, 40.0), strict=True)]
        assert names(place([job(1, gpu_memory_gb=30.0)], slots, slots)) == {1: ["cuda:2"]}

    def test_what_fits_elsewhere_waits_for_that_and_keeps_nobody(self):
        slots = [replace(slot, room_gb=room) for slot, room in zip(gpus(2), (80.0, 20.0), strict=True)]
        placed = place([job(1, 9, gpu_memory_gb=30.0), job(2, 1, gpu_memory_gb=10.0)], slots[1:], slots)
        assert names(placed) == {2: ["cuda:1"]}

    def test_what_fits_in_no_share_takes_several_of_one_gpu(self):
        slots = gpus(2, shares=3, room=10.0)
        assert names(place([job(1, gpu_memory_gb=15.0)], slots, slots)) == {1: ["cuda:0/0", "cuda:0/1"]}

    def test_it_keeps_free_shares_until_it_has_enough(self):
        slots = gpus(1, shares=2, room=10.0)
        big, small = job(1, 9, gpu_memory_gb=15.0), job(2, 1, gpu_memory_gb=5.0)
        assert place([big, small], slots[:1], slots) == []
        assert names(place([big, small], slots, slots)) == {1: ["cuda:0/0", "cuda:0/1"]}

    def test_what_fits_nowhere_takes_the_roomiest_whole_and_is_not_stuck(self):
        slots = [*gpus(1, shares=2, room=10.0), *[replace(s, name="cuda:1", room_gb=80.0) for s in gpus(1)]]
        assert names(place([job(1, gpu_memory_gb=500.0)], slots, slots)) == {1: ["cuda:1"]}

    def test_alone_takes_every_share(self):
        slots = gpus(2, shares=2)
        assert names(place([job(1, alone=True)], slots[1:], slots)) == {1: ["cuda:1/0", "cuda:1/1"]}

    def test_unknown_room_or_unknown_need_binds_nobody(self):
        slots = [Slot("cpu:0", "cpu")]
        assert names(place([job(1, memory_gb=500.0)], slots, slots)) == {1: ["cpu:0"]}
        assert names(place([job(1)], gpus(1), gpus(1))) == {1: ["cuda:0"]}

    @given(
        st.lists(st.tuples(st.floats(0, 200), st.integers(1, 4), st.booleans()), max_size=10),
        st.integers(1, 3),
        st.integers(1, 3),
        st.data(),
    )
    def test_nobody_is_doubled_and_nobody_waits_for_ever(self, wanted, count, shares, data):
        slots = gpus(count, shares, room=30.0)
        waiting = [
            job(i, float(i), gpu_memory_gb=memory, devices=devices, alone=alone)
            for i, (memory, devices, alone) in enumerate(wanted)
        ]
        free = [slot for slot in slots if data.draw(st.booleans())]
        taken = [slot.name for _, lease in place(waiting, free, slots) for slot in lease]
        assert len(taken) == len(set(taken)) and set(taken) <= {slot.name for slot in free}
        rounds = 0
        while waiting:  # with every slot free again, the first in turn always gets its lease
            placed = place(waiting, slots, slots)
            assert max(waiting, key=lambda j: j.cost) in [j for j, _ in placed]
            waiting = [j for j in waiting if j not in [p for p, _ in placed]]
            rounds += 1


class TestSeveralDevices:
    def test_whole_gpus_that_nobody_shares(self):
        slots = gpus(3, shares=2)
        free = slots[1:]
        assert names(place([job(1, devices=2)], free, slots)) == {1: ["cuda:1/0", "cuda:1/1", "cuda:2/0", "cuda:2/1"]}

    def test_free_ones_are_kept_until_there_are_enough(self):
        slots = gpus(2)
        wide, narrow = job(1, 9, devices=2), job(2, 1)
        assert place([wide, narrow], slots[:1], slots) == []
        assert names(place([wide, narrow], slots, slots)) == {1: ["cuda:0", "cuda:1"]}

    def test_more_than_there_are_is_all_there_are(self):
        assert names(place([job(1, devices=8)], gpus(2), gpus(2))) == {1: ["cuda:0", "cuda:1"]}

    def test_joined_leases_name_every_device_and_count_them(self):
        joined = join(gpus(2, shares=2, room=10.0), together=True)
        assert (joined.device, joined.count, joined.threads, joined.memory_gb) == ("GPU-0,GPU-1", 2, 4, 40.0)
        assert joined.cores == 8
        shares = join(gpus(1, shares=2, room=10.0))
        assert (shares.device, shares.count, shares.memory_gb) == ("GPU-0", 1, 20.0)
        assert shares.parts == ["cuda:0/0", "cuda:0/1"]
        assert joined.parts == ["cuda:0/0", "cuda:0/1", "cuda:1/0", "cuda:1/1"]

    def test_on_the_cpu_each_slot_is_a_device(self):
        slots = [Slot(f"cpu:{i}", "cpu", 3) for i in range(3)]
        assert names(place([job(1, devices=2)], slots, slots)) == {1: ["cpu:0", "cpu:1"]}
        joined = join(slots[:2], together=True)
        assert (joined.device, joined.count, joined.threads, joined.cores) == ("", 2, 3, 6)

    def test_one_kind_of_device_and_gpus_if_there_are_any(self):
        slots = [Slot("cpu:0", "cpu"), Slot("cpu:1", "cpu"), *gpus(2)]
        assert place([job(1, devices=2)], slots[:3], slots) == []
        assert names(place([job(1, devices=2)], slots, slots)) == {1: ["cuda:0", "cuda:1"]}

    def test_on_the_cpu_more_memory_is_not_more_threads(self):
        slots = [Slot(f"cpu:{i}", "cpu", 3, room_gb=4.0) for i in range(2)]
        [(_, lease)] = place([job(1, memory_gb=7.0)], slots, slots)
        assert (join(lease).threads, join(lease).device, join(lease).room_gb) == (3, "", 8.0)


class TestEnds:
    def test_a_run_on_several_devices_waits_for_them_and_ends_earlier(self):
        assert makespan([(12.0, 2), (1.0, 1), (1.0, 1)], [0.0, 0.0]) == 12 / 1.8 + 1
        assert makespan([(12.0, 2)], [0.0, 3.0]) == 3 + 12 / 1.8

    @given(st.lists(st.floats(0.1, 100), min_size=1, max_size=40), st.integers(1, 6))
    def test_the_makespan_is_at_most_a_third_above_the_lower_bound(self, lengths, slots):
        lower = max(max(lengths), sum(lengths) / slots)
        end = makespan([(length, 1) for length in lengths], [0.0] * slots)
        assert lower <= end * (1 + 1e-12)
        assert end <= lower * 4 / 3 + max(lengths) / 3  # Graham 1969, longest first

    def test_the_makespan_counts_what_is_busy(self):
        assert makespan([(2.0, 1), (1.0, 1)], [5.0, 0.0]) == 5.0
        assert makespan([(9.0, 1)], [5.0, 1.0]) == 10.0
        assert makespan([], [5.0, 1.0]) == 5.0


CARDS = [gpu(0, "GPU-a", used="600"), gpu(1, "GPU-b", used="40000"), gpu(2, "GPU-c", used="70000")]
TWO = [Slot("cuda:0", "cuda", 1, "GPU-a"), Slot("cuda:1", "cuda", 1, "GPU-b")]


class TestGpuOccupancy:
    @pytest.fixture(autouse=True)
    def nvidia_smi(self, monkeypatch, tmp_path):
        apps = [app("GPU-b", 4711), app("GPU-a", 17, "30", "nvidia-cuda-mps-server")]
        put_nvidia_smi(monkeypatch, tmp_path, CARDS, apps)

    def test_who_uses_which_gpu(self):
        found = hardware.gpus_in_use()
        assert set(found) == {"GPU-b", "1", "GPU-c", "2"}, "the MPS server itself computes nothing"
        assert found["GPU-b"] == "process 4711, 40.9 GB"
        assert "73.4 GB are taken" in found["2"]  # by processes that this container does not see

    def test_only_gpus_without_a_run_of_ours_are_asked_about(self):
        slots = [Slot("cuda:1/0", "cuda", 1, "GPU-b"), Slot("cuda:1/1", "cuda", 1, "GPU-b"), Slot("cpu:0", "cpu")]
        assert GpuOccupancy(hardware.gpus_in_use).left_alone(slots, {"cuda:1/0"}) == {}
        assert set(GpuOccupancy(hardware.gpus_in_use).left_alone(slots, set())) == {"cuda:1/0", "cuda:1/1"}

    def test_one_that_the_user_named_is_his(self, monkeypatch, tmp_path):
        put_nvidia_smi(monkeypatch, tmp_path, CARDS[:2], [app("GPU-b", 4711)])
        for text, alone in (("cuda:1", set()), ("cuda:*", {"cuda:1"}), ("auto", {"cuda:1"})):
            slots = parse_slots(text, {})
            assert set(GpuOccupancy(hardware.gpus_in_use).left_alone(slots, set())) == alone

    def test_what_our_own_run_used_is_not_taken_for_others(self):
        """Asked about cuda:1 while a run of ours computes on cuda:0; that ends before the answer is asked for again."""
        occupancy = GpuOccupancy(lambda: {"GPU-a": "process 1", "GPU-b": "process 2"})
        assert set(occupancy.left_alone(TWO, {"cuda:0"})) == {"cuda:1"}
        assert set(occupancy.left_alone(TWO, set())) == {"cuda:1"}

    def test_no_answer_means_unknown_and_nobody_waits_for_it(self, monkeypatch, tmp_path):
        put_nvidia_smi(monkeypatch, tmp_path, CARDS, sleep_s=60)
        monkeypatch.setattr(hardware, "SMI_S", 0.3)
        occupancy, began = GpuOccupancy(hardware.gpus_in_use), time.monotonic()
        unknown = dict.fromkeys(("cuda:0", "cuda:1"), "nvidia-smi does not answer")
        assert occupancy.left_alone(TWO, set(), wait_s=0.01) == unknown and time.monotonic() - began < 0.25
        while not occupancy.due:
            time.sleep(0.01)
        assert occupancy.left_alone(TWO, set()) == unknown and not occupancy.due, "it has timed out"

    def test_a_late_answer_is_taken_when_it_comes(self):
        said = threading.Event()
        occupancy = GpuOccupancy(lambda: {"GPU-b": "process 2"} if said.wait(60) else {})
        assert len(occupancy.left_alone(TWO, set(), wait_s=0)) == 2 and not occupancy.due
        said.set()
        while not occupancy.due:
            time.sleep(0.01)
        assert occupancy.left_alone(TWO, set()) == {"cuda:1": "process 2"}

    def test_others_work_is_not_measured(self):
        slot = parse_slots("cuda:*", {})[1]
        with pytest.raises(UserError, match=r"cuda:1 is not measured, because others may use it \(process 4711, 40.9"):
            _refuse_others(slot)
        for named in parse_slots("cuda:0", {}) + parse_slots("cuda:1", {}) + [Slot("cpu:0", "cpu")]:
            _refuse_others(named)


def test_memory_of_the_container_counts(tmp_path):
    (tmp_path / "memory.max").write_text("max\n")
    whole = hardware.memory_gb(root=tmp_path)
    (tmp_path / "memory.max").write_text("2000000000\n")
    assert hardware.memory_gb(root=tmp_path) == 2.0 < whole
