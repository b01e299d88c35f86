"""The device that a child computes on; the only file that calls torch.cuda.

`Device.open` makes the process-wide settings (threads, memory limit) and chooses the precision. Other code uses this
object and never the device's name.
"""

import contextlib
import ctypes
import os
import platform
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from experiments.device_spec import DeviceSpec
from experiments.errors import OutOfMemory, UserError, failure_class
from experiments.messages import number
from experiments.processes import processor
from experiments.processes.processor import mps_serves
from experiments.records import CONTEXT_GB

Precision = Literal["fp32", "bf16"]
Result = TypeVar("Result")
_MIB = 2**20
KERNELS = 2048  # of oneDNN: see _keep_kernels


@dataclass(frozen=True)
class Device:
    """An opened device. `precision`: of the forward and backward pass; weights stay in fp32."""

    torch_device: torch.device
    precision: Precision
    threads: int
    deterministic: bool = False

    @classmethod
    def open(cls, spec: DeviceSpec, precision: str = "auto", *, deterministic: bool = False, rank: int = 0) -> "Device":
        """Open the devices of `spec`; of several, this process uses number `rank`.

        Raises UserError if they, or the precision, are not available.
        """
        if spec.kind not in ("cpu", "cuda"):
            raise UserError(f'device kind "{spec.kind}" is unknown; use cpu or cuda.')
        if spec.kind == "cuda":
            require_cuda()
        # Before the worker threads exist, since they inherit it. Adam's moments of a row that is rarely trained decay
        # into denormal numbers, which processors handle in microcode.
        torch.set_flush_denormal(True)
        torch.set_num_threads(spec.threads)
        _keep_freed_memory()
        _keep_kernels()
        _choose_kernels(deterministic)
        device = torch.device("cuda", rank) if spec.kind == "cuda" else torch.device("cpu")
        if spec.kind == "cuda":
            _open_cuda(device, spec)
        return cls(device, resolve_precision(precision, device), spec.threads, deterministic)

    @property
    def name(self) -> str:
        """The device's name for tables: "NVIDIA H200", "AMD EPYC (2 threads)"."""
        if self.is_cuda:
            return str(torch.cuda.get_device_name(self.torch_device))
        capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # torch 2.9 has no such function
        name = capabilities.get("cpu_name") or platform.processor() or platform.machine()
        return f"{name} ({number(self.threads, 'thread')})"

    @property
    def is_cuda(self) -> bool:
        """Return whether the device is a GPU."""
        return self.torch_device.type == "cuda"

    def autocast(self) -> torch.autocast:
        """A context with bf16 products if the precision is bf16; weights, sums and softmaxes stay in fp32."""
        return torch.autocast(self.torch_device.type, torch.bfloat16, enabled=self.precision == "bf16")

    def move(self, tensor: Tensor) -> Tensor:
        """The tensor on this device; from pinned memory asynchronously."""
        return tensor.to(self.torch_device, non_blocking=True) if self.is_cuda else tensor

    def number(self, value: float) -> Tensor | float:
        """A number for computing with tensors: on a GPU a tensor of fp32, made without waiting for the GPU."""
        return torch.full((), value, device=self.torch_device) if self.is_cuda else value

    def seed(self, value: int) -> None:
        """Seed the generators of dropout."""
        torch.default_generator.manual_seed(value)
        if self.is_cuda:
            torch.cuda.manual_seed(value)

    def synchronize(self) -> None:
        """Wait until the device has done all its work, for time measurements."""
        if self.is_cuda:
            torch.cuda.synchronize(self.torch_device)

    def peak_memory_bytes(self) -> int:
        """Peak memory since the process started: the GPU's tensors, or the process's resident set."""
        if self.is_cuda:
            return int(torch.cuda.max_memory_allocated(self.torch_device))
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def describe(self) -> dict[str, Any]:
        """Everything besides the configuration on which the numbers of a run depend."""
        versions = {"torch": torch.__version__, "python": platform.python_version()}
        if self.is_cuda:
            versions["cuda"] = str(torch.version.cuda)
        shared = {"mps": mps_serves()} if self.is_cuda else {}
        return {
            **shared,
            "device": self.name,
            "device_kind": self.torch_device.type,
            "threads": self.threads,
            "precision": self.precision,
            "deterministic": self.deterministic,
            "versions": versions,
        }


class GraphRecorder:
    """Records work on a GPU as CUDA graphs. They share one memory pool, so only one may replay at a time, and what a
    replay returns is valid until the next one.

    Each graph draws from a generator of its own, which a replay sets to the state of the device's generator and back:
    replayed work draws as the same work does eagerly. torch leaves the generator of a capture that fails unusable (it
    counts as capturing until the process ends), and this way that is never the device's.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        # Of all captures, because a library's workspace belongs to a stream.
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @property
    def _drawn(self) -> torch.Generator:
        return torch.cuda.default_generators[self._device.index]

    def random_state(self) -> Tensor:
        """The state of the device's generator: its seed, and how far it has drawn."""
        return self._drawn.get_state()

    def set_random_state(self, state: Tensor) -> None:
        """Set the state of the device's generator."""
        self._drawn.set_state(state)

    def record(self, work: Callable[[], Result]) -> Callable[[], Result]:
        """Capture `work`, which computes nothing yet; returns a function that replays it.

        The result of a replay is the same object every time, with new values. Raises the error of `work`, for example
        because it waits for the GPU, which cannot be captured; the device remains usable.
        """
        own, graph = torch.Generator(self._device), torch.cuda.CUDAGraph()
        usual = self._drawn.graphsafe_get_state()
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()  # what eager passes hold is not for the pool
        with torch.cuda.stream(self._stream):
            self._drawn.graphsafe_set_state(own.graphsafe_get_state())
            try:
                # other threads may allocate pinned memory meanwhile
                graph.capture_begin(self._pool, capture_error_mode="thread_local")
                result = work()
                graph.capture_end()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # a capture that is invalid
                    graph.capture_end()
                with contextlib.suppress(RuntimeError):  # capture_end did not come so far
                    torch._C._cuda_endAllocateToPool(self._device.index, self._pool)
                raise
            finally:
                self._drawn.graphsafe_set_state(usual)

        def replay() -> Result:
            own.set_state(self._drawn.get_state())
            graph.replay()
            self._drawn.set_state(own.get_state())
            return result

        return replay


def require_cuda() -> None:
    """Start CUDA. Raises UserError, with torch's reason, if torch sees no GPU.

    cuBLAS reads its variable once: a later part of the process may be deterministic, and an earlier one not.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (AssertionError, RuntimeError) as error:
        raise UserError(
            f"A CUDA device was requested, but torch {torch.__version__} sees none ({str(error).splitlines()[0]}): "
            "check the driver (`nvidia-smi`), that this torch was built with CUDA, and CUDA_VISIBLE_DEVICES; or run on "
            "the processor with --devices cpu:1."
        ) from error


def seed_everything(seed: int) -> None:
    """Seed the generators of initialisation, on every device."""
    torch.manual_seed(mix(seed, 0))


def mix(seed: int, step: int) -> int:
    """A 63-bit number from two, unrelated for neighbouring seeds and steps (splitmix64's finaliser)."""
    mask = 2**64 - 1
    z = (seed * 0x9E3779B97F4A7C15 + (step + 1) * 0xD1B54A32D192ED03) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return (z ^ (z >> 31)) >> 1


def resolve_precision(asked: str, device: torch.device) -> Precision:
    """ "auto" is bf16 if the device has instructions for it, else fp32. Raises UserError for what torch lacks there."""
    match asked:
        case "auto":
            return "bf16" if has_bf16_instructions(device) else "fp32"
        case "bf16":
            if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=True):
                raise UserError(
                    f'The precision is "bf16", but torch {torch.__version__} does not compute it on this GPU: set '
                    'training.precision or evaluation.precision to "fp32", or to "auto", which chooses by device; '
                    "results of another precision are kept apart."
                )
            return "bf16"
        case "fp32":
            return "fp32"
    raise ValueError(f"no precision {asked!r}: there are auto, fp32 and bf16")


def has_bf16_instructions(device: torch.device) -> bool:
    """Return whether the device has bf16 matrix instructions. If not, torch may compute the same with others."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return processor.has_bf16()


@contextlib.contextmanager
def naming_out_of_memory() -> Iterator[None]:
    """Turn every form of a failed allocation into experiments.errors.OutOfMemory; other errors pass."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OutOfMemory) or failure_class(error) != "out_of_memory":
            raise
        why = str(error) or type(error).__name__  # Python's own MemoryError says nothing
        raise OutOfMemory(why.splitlines()[0]) from error


@contextlib.contextmanager
def naming_nondeterminism() -> Iterator[None]:
    """Turn torch's refusal in deterministic mode into a UserError that names the kernel; other errors pass."""
    try:
        yield
    except RuntimeError as error:
        kernel, refused, _ = str(error).partition(" does not have a deterministic implementation")
        if not refused:
            raise
        raise UserError(
            f"training.deterministic is set, but {kernel.split()[-1]} has no deterministic implementation on this "
            f"device with torch {torch.__version__}. Set training.deterministic to false (a resumed run then equals "
            "an uninterrupted one up to rounding), or train on another device. No checkpoint was changed."
        ) from error


def _choose_kernels(deterministic: bool) -> None:
    """Process-wide."""
    torch.use_deterministic_algorithms(deterministic)
    # every kernel here writes all of what it allocates
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _open_cuda(device: torch.device, spec: DeviceSpec) -> None:
    there = torch.cuda.device_count()
    if device.index >= there:
        raise UserError(
            f"The run has {number(spec.count, 'GPU')}, but torch sees {there}: check CUDA_VISIBLE_DEVICES and "
            "nvidia-smi."
        )
    torch.cuda.set_device(device)
    # fp32 is fp32: convolutions and recurrent layers are TF32 by default, products in NVIDIA's own containers
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    # Preferred from sm90 on, cuDNN's attention builds a plan for every shape, and a training has hundreds.
    torch.backends.cuda.enable_cudnn_sdp(False)
    total = torch.cuda.get_device_properties(device).total_memory
    # of a cluster's GPU no coordinator knows the memory
    limit = max(0.01, spec.share - CONTEXT_GB * 1e9 / total) if spec.share < 1 else None
    if spec.memory_gb is not None:
        limit = min(1.0, spec.memory_gb / spec.count * 1e9 / total)
    if limit is not None:  # torch's limit is the only one that is enforced when processes share a GPU
        torch.cuda.set_per_process_memory_fraction(limit, device)


def _keep_freed_memory() -> None:
    """Let glibc keep large freed blocks instead of returning each to the kernel and faulting it in again.

    A plain torch loop at d_model 128 and 4,096 tokens spent a quarter of its time on that, this trainer 4 %.
    """
    if not hasattr(libc := ctypes.CDLL(None), "mallopt"):
        return
    trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of malloc.h
    if libc.mallopt(mmap_threshold, 1024 * _MIB):
        libc.mallopt(trim_threshold, 2047 * _MIB)


def _keep_kernels() -> None:
    """Let oneDNN keep its kernels of all shapes of a training, and torch the descriptions of only a few bf16 products.
    Both are read at the first product.

    A Transformer has about 30 bf16 products per shape of a micro-batch, and up to 64 shapes; oneDNN keeps 1,024 unless
    told. torch keeps the descriptions of the last 1,024 of every thread, 0.2 MB each, and oneDNN again with its
    kernels. This cost 0.7 GB in training on batches of different shapes, and saves at most 10 µs per product.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(KERNELS))
    os.environ.setdefault("LRU_CACHE_CAPACITY", "16")
