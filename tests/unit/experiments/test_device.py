"""Tests of a device: its precision, messages for mistakes, and randomness as a function of seed and step."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from experiments import device as device_module
from experiments.client.ablations_task import process
from experiments.device import Device, mix, naming_out_of_memory, resolve_precision, seed_everything
from experiments.device_spec import DeviceSpec
from experiments.errors import OutOfMemory, UserError, failure_class
from experiments.processes import processor
from experiments.records import CONTEXT_GB

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def _with_flags(monkeypatch, *flags):
    monkeypatch.delenv("ABLATIONS_TEST_CPU", raising=False)
    monkeypatch.setattr(processor, "_flags", lambda: frozenset(flags))


@pytest.mark.parametrize("flags", [("avx512_bf16",), ("fpu", "amx_bf16"), ("asimd", "bf16"), ("avx512f",), ()])
def test_auto_is_bf16_where_there_are_instructions_for_it(monkeypatch, flags):
    """In training and in `plan`. What a setting names is computed on every processor."""
    _with_flags(monkeypatch, *flags)
    auto = "bf16" if any("bf16" in flag for flag in flags) else "fp32"
    for asked, expected in (("auto", auto), ("bf16", "bf16"), ("fp32", "fp32")):
        assert resolve_precision(asked, CPU) == processor.precision_here(asked) == expected


@pytest.mark.parametrize("precision", ["fp32", "auto", "bf16"])
@pytest.mark.parametrize("kind", ["native", "emulated", "none"])
def test_bf16_of_a_gpu(monkeypatch, precision, kind):
    supported = {"native": (True, True), "emulated": (True, False), "none": (False, False)}[kind]
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda *, including_emulation: supported[not including_emulation]
    )
    if (precision, kind) == ("bf16", "none"):
        with pytest.raises(UserError, match=r'"bf16", but torch .* on this GPU: set training.precision.* to "fp32"'):
            resolve_precision(precision, CUDA)
    else:
        expected = "bf16" if precision == "bf16" or (precision, kind) == ("auto", "native") else "fp32"
        assert resolve_precision(precision, CUDA) == expected


@pytest.mark.parametrize("asked", ["avx2", "AVX2", "avx512"])
def test_the_switch_of_tests_is_set_as_a_whole(monkeypatch, asked):
    _with_flags(monkeypatch, "avx512_bf16")
    for name, value in processor.SWITCH.items():
        monkeypatch.setenv(name, value)
    assert not processor.has_bf16()
    monkeypatch.setenv("ABLATIONS_TEST_CPU", asked)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA" if asked == "avx2" else "UNSET", raising=False)
    with pytest.raises(UserError, match="=avx2 ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2"):
        processor.has_bf16()


def test_a_misspelt_precision_is_not_guessed():
    with pytest.raises(ValueError, match="'float32'"):
        resolve_precision("float32", CPU)


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
    assert failure_class(torch.OutOfMemoryError("CUDA out of memory")) == "out_of_memory"
    assert failure_class(MemoryError()) == "out_of_memory"
    assert failure_class(RuntimeError("shapes do not match")) == "bug"
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
from experiments.device_spec import DeviceSpec
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
@pytest.mark.process
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
        ({"share": 1 / 3}, 1 / 3 - 0.6 / 80),  # a cluster's GPU, whose memory the coordinator does not know
        ({"share": 1 / 3, "memory_gb": 20.0}, 0.25),
        ({"memory_gb": 20.0}, 0.25),
        ({}, None),
    ],
)
def test_a_shared_gpu_is_used_by_its_share(monkeypatch, limits, fraction):
    given = _pretend_cuda(monkeypatch)
    device_module._open_cuda(torch.device("cuda:0"), DeviceSpec("cuda", 1, **limits))
    assert given == ([] if fraction is None else [pytest.approx(fraction)])


def _pretend_cuda(monkeypatch):
    """Make torch.cuda answer like a GPU of 80 GB, and return the requested fractions of memory."""
    given = []
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=80e9))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda value, device: given.append(value))
    return given


@pytest.mark.parametrize(("memory_gb", "share", "fraction"), [(None, 1 / 3, 1 / 3 - 0.6 / 80), (20.0, 1 / 3, 0.25)])
def test_an_own_trainer_has_its_share_too(monkeypatch, memory_gb, share, fraction):
    given = _pretend_cuda(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    process._open_device(SimpleNamespace(device="cuda", threads=1), memory_gb, share, CONTEXT_GB)
    process._open_device(SimpleNamespace(device="cuda", threads=1), None, 1.0, CONTEXT_GB)
    assert given == [pytest.approx(fraction)]


def test_what_is_set_for_a_gpu_before_anything_is_computed(monkeypatch):
    """cuDNN's attention is off, fp32 is fp32 for cuDNN and in NVIDIA's containers, cuBLAS can be deterministic."""
    _pretend_cuda(monkeypatch)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    flags = [(torch.backends.cuda, "enable_cudnn_sdp"), (torch, "set_float32_matmul_precision")]
    asked = {name: _noted(monkeypatch, module, name) for module, name in flags}
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    Device.open(DeviceSpec("cuda", threads=3, count=2), "fp32", rank=1)
    assert asked == {"enable_cudnn_sdp": [False], "set_float32_matmul_precision": ["highest"]}
    assert not torch.backends.cudnn.allow_tf32
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert torch.get_num_threads() == 3, "of each process: the slot has divided them already"


def _noted(monkeypatch, module, name):
    given = []
    monkeypatch.setattr(module, name, given.append)
    return given


def test_the_variable_of_cublas_is_there_when_cuda_starts(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    found = []
    monkeypatch.setattr(torch.cuda, "init", lambda: found.append(os.environ.get("CUBLAS_WORKSPACE_CONFIG")))
    device_module.require_cuda()
    assert found == [":4096:8"]


@pytest.mark.parametrize(
    ("error", "cls"),
    [
        ("CUDA error: uncorrectable ECC error encountered", "device"),
        ("CUDA error: an illegal memory access was encountered", "device"),
        ("CUDA error: CUDA-capable device(s) is/are busy or unavailable", "device"),
        ("NCCL error in: ProcessGroupNCCL.cpp:3763, remote process exited or there was a network error", "device"),
        ("NVML: GPU 0000:3B:00.0 has fallen off the bus", "device"),
        ("NCCL error in: NCCLUtils.hpp:268, unhandled cuda error: out of memory", "out_of_memory"),
        ("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", "out_of_memory"),
        ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "out_of_memory"),
        ("CUDA error: device-side assert triggered", "bug"),
    ],
)
def test_what_cuda_says_is_sorted_by_what_helps(error, cls):
    assert failure_class(torch.AcceleratorError(error)) == failure_class(RuntimeError(error)) == cls
