"""Tests of the grammar of slots, on machines with and without GPUs."""

import os

import pytest

from experiments.errors import UserError
from experiments.jobs.devices import hardware, slots
from experiments.jobs.devices.slots import join, parse_slots
from tests.fake_gpus import gpu, put_nvidia_smi

GPUS = [gpu(0, "GPU-aaaa", "76294"), gpu(1, "GPU-bbbb", "76294"), gpu(2, "GPU-cccc", "38147")]  # 80, 80, 40 GB


@pytest.fixture
def gpus(monkeypatch, tmp_path):
    put_nvidia_smi(monkeypatch, tmp_path, GPUS)


@pytest.fixture
def no_gpus(monkeypatch, tmp_path):
    put_nvidia_smi(monkeypatch, tmp_path, code=9)  # as without a driver


def names(text, environ=None):
    return [slot.name for slot in parse_slots(text, environ or {})]


@pytest.mark.parametrize(
    ("text", "count", "threads"), [("cpu:1", 1, 1), ("cpu:2", 2, 1), ("cpu:2x1", 2, 1), ("cpu:3x4", 3, 4)]
)
def test_cpu(no_gpus, text, count, threads):
    found = parse_slots(text, {})
    assert [slot.name for slot in found] == [f"cpu:{i}" for i in range(count)]
    assert {(slot.kind, slot.threads, slot.device) for slot in found} == {("cpu", threads, "")}


def test_more_slots_than_the_memory_can_be_divided_among(no_gpus):
    with pytest.raises(UserError, match=r"cpu:9999999: .* less than 0.01 GB for each of so many slots"):
        parse_slots("cpu:9999999")


def test_a_limit_of_memory_is_each_slots(gpus, monkeypatch):
    monkeypatch.setattr(slots, "memory_gb", lambda: 10.0)
    found = parse_slots("cpu:2x4@3GB", {})
    assert [(slot.threads, slot.memory_gb, slot.room_gb) for slot in found] == [(4, 3.0, 3.0)] * 2
    assert (join(found).memory_gb, join(found, together=True).memory_gb) == (6.0, 6.0), "one run that has both slots"
    [shared, *_], [large] = parse_slots("cuda:0x2@20GB", {}), parse_slots("cpu:1@64GB", {})
    assert (shared.memory_gb, shared.room_gb, shared.share) == (20.0, 20.0, 0.5)
    assert large.room_gb < 10, "a limit gives no room that the machine lacks"
    [capped, _] = parse_slots("cuda:0x2@500GB", {})
    assert capped.memory_gb < 40, "the share of a GPU stays a limit"
    assert [slot.memory_gb for slot in parse_slots("cpu:1@0.5GB+cuda:0", {})] == [0.5, None]


@pytest.mark.parametrize(
    "text", ["cpu:1@3", "cpu:1@", "cpu:1@0GB", "cpu:1@-1GB", "cpu:1@3MB", "cpu:1@3GB@3GB", "auto@x"]
)
def test_a_limit_that_is_none_says_how_to_write_one(gpus, text):
    with pytest.raises(UserError, match=r"is not a limit of memory, such as (cpu:1|auto)@3GB"):
        parse_slots(text, {})


def test_chosen_gpus_by_uuid(gpus):
    found = parse_slots("cuda:0,2", {})
    assert [(slot.name, slot.device, slot.memory_gb) for slot in found] == [
        ("cuda:0", "GPU-aaaa", None),
        ("cuda:2", "GPU-cccc", None),
    ]


def test_shared_gpus_have_a_cap_that_leaves_room(gpus):
    found = parse_slots("cuda:*x2", {})
    assert [slot.name for slot in found] == ["cuda:0/0", "cuda:0/1", "cuda:1/0", "cuda:1/1", "cuda:2/0", "cuda:2/1"]
    for slot in found:
        whole = 40 if slot.name.startswith("cuda:2") else 80
        assert 2 * slot.memory_gb == pytest.approx(whole - 2 * 0.6, abs=0.02), "each has a CUDA context of its own"


def test_a_gpu_of_unknown_memory_is_kept(monkeypatch, tmp_path):
    put_nvidia_smi(monkeypatch, tmp_path, [gpu(0, "GPU-a", "[N/A]")])
    [slot] = parse_slots("cuda:*", {})
    assert (slot.device, slot.room_gb) == ("GPU-a", None)
    assert {(slot.memory_gb, slot.share) for slot in parse_slots("cuda:*x2", {})} == {(None, 0.5)}


def test_slices_of_a_gpu_are_devices(monkeypatch, tmp_path):
    parts = [("3g.40gb", "MIG-1"), ("1c.3g.40gb", "MIG-2"), ("1g.10gb+me", "MIG-3")]
    cards = [gpu(0, "GPU-a", slices=parts), gpu(1, "GPU-b", "76294"), gpu(2, "GPU-c", compute_mode="Prohibited")]
    put_nvidia_smi(monkeypatch, tmp_path, cards)
    found = [(slot.device, round(slot.room_gb)) for slot in parse_slots("cuda:*", {})]
    assert found == [("MIG-1", 39), ("MIG-2", 39), ("MIG-3", 9), ("GPU-b", 79)]
    [one] = parse_slots("cuda:*", {"CUDA_VISIBLE_DEVICES": "MIG-3"})
    assert round(one.room_gb) == 9
    [first] = parse_slots("cuda:*", {"CUDA_VISIBLE_DEVICES": "0"})
    assert (first.device, round(first.room_gb)) == ("0", 39), "CUDA takes the first slice"


def test_an_exclusive_gpu_is_shared_by_mps_alone(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    put_nvidia_smi(monkeypatch, tmp_path, [gpu(0, "GPU-a", compute_mode="Exclusive_Process")])
    assert names("cuda:0") == ["cuda:0"]
    with pytest.raises(UserError, match=r"cuda:0x2: .* one process .*nvidia-cuda-mps-control -d"):
        parse_slots("cuda:0x2", {})
    (tmp_path / "control").touch()
    assert names("cuda:0x2") == ["cuda:0/0", "cuda:0/1"]


def test_an_nvidia_smi_that_does_not_answer_is_no_machine_without_gpus(monkeypatch, tmp_path):
    put_nvidia_smi(monkeypatch, tmp_path, GPUS, sleep_s=60)
    monkeypatch.setattr(hardware, "SMI_S", 0.1)
    with pytest.raises(UserError, match=r"nvidia-smi did not answer within 0.1 s"):
        parse_slots("auto", {})


@pytest.mark.parametrize(
    ("inherited", "devices"),
    [
        ("2,0", ["2", "0"]),
        ("GPU-bbbb", ["GPU-bbbb"]),
        ("GPU-b", ["GPU-b"]),
        ("1,7,0", ["1"]),
        ("MIG-x/1/0", ["MIG-x/1/0"]),
    ],
)
def test_inherited_visible_devices_are_a_limit_and_an_order(gpus, inherited, devices):
    found = parse_slots("cuda:*", {"CUDA_VISIBLE_DEVICES": inherited})
    assert [slot.device for slot in found] == devices
    assert [slot.name for slot in found] == [f"cuda:{i}" for i in range(len(devices))]


def test_auto_takes_every_gpu_else_every_available_core(gpus, monkeypatch):
    monkeypatch.setattr(slots, "available_cores", lambda: 6)
    assert names("auto") == ["cuda:0", "cuda:1", "cuda:2"]
    assert {slot.threads for slot in parse_slots("auto", {})} == {2}
    assert names("auto", {"CUDA_VISIBLE_DEVICES": ""}) == [f"cpu:{i}" for i in range(6)]


def test_kinds_may_be_joined(gpus):
    assert names("cuda:1+cpu:2") == ["cuda:1", "cpu:0", "cpu:1"]


@pytest.mark.parametrize(
    "text", ["", "cpu", "cpu:0", "cpu:2x0", "cpu:-1", "gpu:0", "cuda:", "cuda:a", "cuda:*x0", "cuda:0,", "cpu:1+", "2"]
)
def test_what_is_not_understood_names_the_grammar(gpus, text):
    with pytest.raises(UserError, match="cuda:0,2"):
        parse_slots(text, {})


@pytest.mark.parametrize("text", ["cuda:3", "cuda:0,9", "cuda:0,0", "cpu:1+cpu:1"])
def test_devices_that_are_not_there_or_named_twice(gpus, text):
    with pytest.raises(UserError):
        parse_slots(text, {})


def test_no_gpu_at_all(no_gpus):
    with pytest.raises(UserError, match="no GPU is visible"):
        parse_slots("cuda:*", {})


class TestCores:
    def test_at_most_the_affinity(self):
        assert 1 <= hardware.available_cores() <= len(os.sched_getaffinity(0))

    @pytest.fixture
    def many(self, monkeypatch):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))

    @pytest.mark.parametrize(
        ("quota", "cores"), [("400000 100000", 4), ("150000 100000", 1), ("max 100000", 64), ("1 100000", 1)]
    )
    def test_version_2_quota(self, many, tmp_path, quota, cores):
        (tmp_path / "box").mkdir()
        (tmp_path / "box" / "cpu.max").write_text(quota + "\n")
        (tmp_path / "cgroup").write_text("0::/box/inner\n")
        assert hardware.available_cores(tmp_path / "cgroup", tmp_path) == cores

    def test_version_1_quota(self, many, tmp_path):
        (tmp_path / "cpu").mkdir()
        (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("800000\n")
        (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
        (tmp_path / "cgroup").write_text("4:memory:/m\n1:cpu:/job\n0::/\n")
        assert hardware.available_cores(tmp_path / "cgroup", tmp_path) == 8
