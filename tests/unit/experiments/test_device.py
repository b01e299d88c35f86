"""The device: resolved precision, messages for mistakes, randomness as a function of seed and step."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from experiments import device as device_module
from experiments.config import DeviceSpec, RunConfig
from experiments.device import Device, is_out_of_memory, mix, naming_out_of_memory, resolve_precision, seed_everything
from experiments.errors import OutOfMemory, UserError
from experiments.tasks.base import Context
from experiments.tasks.train_network import Material, train_network

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def _with_flags(monkeypatch, **flags):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: flags)


@pytest.mark.parametrize(
    ("asked", "flags", "expected"),
    [
        ("auto", {"avx512_bf16": True}, "bf16"),
        ("auto", {"amx_bf16": True}, "bf16"),
        ("auto", {"avx512_f": True, "avx512_bf16": False}, "fp32"),
        ("bf16", {"avx512_bf16": True}, "bf16"),
        ("fp32", {"avx512_bf16": True}, "fp32"),
    ],
)
def test_precision_is_what_the_processor_has(monkeypatch, asked, flags, expected):
    _with_flags(monkeypatch, **flags)
    assert resolve_precision(asked, CPU) == expected


def test_bf16_where_there_is_none_is_a_mistake(monkeypatch):
    _with_flags(monkeypatch)
    with pytest.raises(UserError, match=r'processor has no bf16.*"fp32"'):
        resolve_precision("bf16", CPU)


def test_a_misspelt_precision_is_not_guessed():
    with pytest.raises(ValueError, match="'float32'"):
        resolve_precision("float32", CPU)


@pytest.mark.parametrize("flag", ["avx512_vnni", "avx_vnni", "amx_int8"])
def test_int8_is_chosen_by_name_alone(monkeypatch, flag):
    _with_flags(monkeypatch, **{flag: True})
    assert resolve_precision("auto", CPU) == "fp32"
    assert resolve_precision("int8", CPU) == "int8"


@pytest.mark.parametrize(
    ("device", "flags", "works", "why"),
    [
        (torch.device("cuda", 0), {"avx512_vnni": True}, True, "for processors, and this evaluation has a GPU"),
        (CPU, {"avx2": True}, True, "this processor has none of the instructions.*avx512_vnni"),
        (CPU, {"avx512_vnni": True}, False, "torch .* has no exact product"),
    ],
)
def test_int8_where_it_does_not_work_is_a_mistake(monkeypatch, device, flags, works, why):
    _with_flags(monkeypatch, **flags)
    monkeypatch.setattr(device_module, "int8_works", lambda: works)
    with pytest.raises(UserError, match=rf'evaluation.precision is "int8", .*{why}.*Set it to "fp32"') as caught:
        resolve_precision("int8", device)
    assert "\n" not in str(caught.value)


def test_a_training_for_an_evaluation_in_int8_is_refused_before_it_begins(monkeypatch, tmp_path):
    _with_flags(monkeypatch)
    never = lambda *_: pytest.fail("the training began")  # noqa: E731
    settings = {"training": {"precision": "fp32"}, "evaluation": {"precision": "int8"}}
    context = Context(tmp_path, "r", tmp_path, {}, DeviceSpec("cpu"), never, lambda: False)
    with pytest.raises(UserError, match=r'evaluation.precision is "int8", but this processor'):
        train_network(RunConfig.from_mapping(settings), context, Material(never, never, {}, {}), (9, 9), [])


def test_opening_sets_threads_and_describes():
    device = Device.open(DeviceSpec("cpu", threads=2), "fp32")
    assert torch.get_num_threads() == 2
    assert device.name.endswith("(2 threads)")
    assert device.describe()["versions"]["torch"] == torch.__version__
    assert device.peak_memory_bytes() > 2**20
    tensor = torch.ones(2)
    assert device.move(tensor) is tensor


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_autocast_makes_products_narrow_only_if_asked(precision):
    device = Device(CPU, precision, 1)
    with device.autocast():
        product = torch.ones(2, 2) @ torch.ones(2, 2)
    assert product.dtype == (torch.bfloat16 if precision == "bf16" else torch.float32)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_gpu_that_is_not_there_is_a_mistake():
    with pytest.raises(UserError, match=r"nvidia-smi.*--devices cpu:1"):
        Device.open(DeviceSpec("cuda"), "fp32")


def test_an_unknown_kind_is_a_mistake():
    with pytest.raises(UserError, match='"tpu" is unknown'):
        Device.open(DeviceSpec("tpu"), "fp32")


def test_failed_allocations_are_recognised_and_named():
    with pytest.raises(OutOfMemory), naming_out_of_memory():
        torch.empty(2**60)  # what torch itself raises here is a RuntimeError
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("shapes do not match"))
    with pytest.raises(OutOfMemory, match="MemoryError"), naming_out_of_memory():
        raise MemoryError  # it says nothing
    with pytest.raises(ValueError, match="other"), naming_out_of_memory():
        raise ValueError("other")


def test_seeds_and_steps_do_not_meet():
    values = {mix(seed, step) for seed in range(100) for step in range(100)}
    assert len(values) == 100 * 100
    assert all(0 <= value < 2**63 for value in values)


def test_seeding_is_repeatable_per_step():
    device = Device(CPU, "fp32", 1)

    def draw(seed, step):
        device.seed(mix(seed, step))
        return torch.rand(4)

    assert torch.equal(draw(1, 2), draw(1, 2))
    assert not torch.equal(draw(1, 2), draw(1, 3))
    assert not torch.equal(draw(1, 2), draw(2, 2))
    seed_everything(5)
    first = torch.rand(3)
    seed_everything(5)
    assert torch.equal(first, torch.rand(3))


def test_denormals_are_flushed():
    Device.open(DeviceSpec(), "fp32")
    assert (torch.full((64,), 1e-38) * 0.01).sum().item() == 0
    assert device_module.torch.get_num_threads() == 1


HELD = """
import ctypes
import torch
from experiments.config import DeviceSpec
from experiments.device import Device

class Heap(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "a b c d e f g used free top".split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Heap
Device.open(DeviceSpec("cpu", 1))
matrix_DF = torch.ones(64, 64, dtype=torch.bfloat16)
torch.ones(1, 64, dtype=torch.bfloat16) @ matrix_DF
before = libc.mallinfo2().used
for rows in range(2, 62):
    torch.ones(rows, 64, dtype=torch.bfloat16) @ matrix_DF
print(libc.mallinfo2().used - before)
"""


@pytest.mark.skipif(
    sys.platform != "linux" or resolve_precision("auto", CPU) == "fp32" or not torch.backends.mkldnn.is_available(),
    reason="needs glibc, and products by oneDNN",
)
def test_products_of_many_shapes_are_described_once():
    def held(**environment):
        plain = {name: value for name, value in os.environ.items() if name not in ("LRU_CACHE_CAPACITY", "LD_PRELOAD")}
        command = [sys.executable, "-c", HELD]
        return int(subprocess.run(command, env=plain | environment, capture_output=True, check=True, text=True).stdout)

    twice, once = held(LRU_CACHE_CAPACITY="1024"), held()  # what a user sets stays
    assert once < 0.75 * twice


@pytest.mark.parametrize(
    ("limits", "fraction"),
    [
        ({"share": 1 / 3}, 0.94 / 3),  # a cluster's GPU, whose memory the coordinator does not know
        ({"share": 1 / 3, "memory_gb": 20.0}, 0.25),
        ({"memory_gb": 20.0}, 0.25),
        ({}, None),
    ],
)
def test_a_shared_gpu_is_used_by_its_share(monkeypatch, limits, fraction):
    given = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=80e9))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda value, device: given.append(value))
    device_module._open_cuda(torch.device("cuda:0"), DeviceSpec("cuda", 1, **limits))
    assert given == ([] if fraction is None else [pytest.approx(fraction)])
