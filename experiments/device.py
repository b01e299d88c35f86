"""The device on which a child computes.

`Device.open` makes the process-wide settings, such as the number of threads and the memory limit, and chooses the
precision. Other modules use the `Device` object and do not inspect the name of the device.
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
KERNELS = 2048  # number of kernels that oneDNN caches (see _keep_kernels)


@dataclass(frozen=True)
class Device:
    """An opened device.

    precision: precision of the forward and backward pass. Weights are always in fp32.
    """

    torch_device: torch.device
    precision: Precision
    threads: int
    deterministic: bool = False

    @classmethod
    def open(cls, spec: DeviceSpec, precision: str = "auto", *, deterministic: bool = False, rank: int = 0) -> "Device":
        """Open device number `rank` of the devices in `spec`.

        Raises UserError if the device or the precision is not available.
        """
        if spec.kind not in ("cpu", "cuda"):
            raise UserError(f'device kind "{spec.kind}" is unknown; use cpu or cuda.')
        if spec.kind == "cuda":
            require_cuda()
        # Flush denormal numbers to zero. Adam's moments of rarely used embeddings decay into denormal numbers, with
        # which processors compute slowly. Worker threads inherit this setting, so it must be made before they start.
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
        """The device's name for tables, such as "NVIDIA H200" or "AMD EPYC (2 threads)"."""
        if self.is_cuda:
            return str(torch.cuda.get_device_name(self.torch_device))
        capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # torch 2.9 has no such function
        name = capabilities.get("cpu_name") or platform.processor() or platform.machine()
        return f"{name} ({number(self.threads, 'thread')})"

    @property
    def is_cuda(self) -> bool:
        """Whether the device is a GPU."""
        return self.torch_device.type == "cuda"

    def autocast(self) -> torch.autocast:
        """Return the autocast context for `precision`.

        With bf16, matrix products are computed in bf16. Weights, sums and softmaxes remain in fp32.
        """
        return torch.autocast(self.torch_device.type, torch.bfloat16, enabled=self.precision == "bf16")

    def move(self, tensor: Tensor) -> Tensor:
        """Return the tensor on this device. A copy from pinned memory to a GPU is asynchronous."""
        return tensor.to(self.torch_device, non_blocking=True) if self.is_cuda else tensor

    def number(self, value: float) -> Tensor | float:
        """Return a number for computations with tensors. On a GPU, it is an fp32 tensor, made without waiting."""
        return torch.full((), value, device=self.torch_device) if self.is_cuda else value

    def seed(self, value: int) -> None:
        """Seed the random generators that dropout uses."""
        torch.default_generator.manual_seed(value)
        if self.is_cuda:
            torch.cuda.manual_seed(value)

    def synchronize(self) -> None:
        """Wait until the device has finished all submitted work. Time measurements need this."""
        if self.is_cuda:
            torch.cuda.synchronize(self.torch_device)

    def peak_memory_bytes(self) -> int:
        """Return the peak memory of the process in bytes: its tensors on a GPU, or its resident set on a processor."""
        if self.is_cuda:
            return int(torch.cuda.max_memory_allocated(self.torch_device))
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def describe(self) -> dict[str, Any]:
        """Return the facts, other than the settings, on which the numbers of a run depend."""
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
    """Record work on a GPU as CUDA graphs.

    All graphs share one memory pool. Only one graph may be replayed at a time, and the result of a replay is valid
    until the next replay.

    Each graph has its own random generator. A replay copies the state of the device's generator to this generator
    before the work, and back after the work. Replayed work therefore draws the same random numbers as eager work. If a
    capture fails, torch marks the graph's generator as capturing until the process ends, and the generator cannot be
    used any more. With one generator per graph, a failed capture does not affect the device's generator.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        # All captures use this stream, because a library has one workspace per stream.
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @property
    def _drawn(self) -> torch.Generator:
        return torch.cuda.default_generators[self._device.index]

    def random_state(self) -> Tensor:
        """Return the state of the device's random generator: its seed and its offset."""
        return self._drawn.get_state()

    def set_random_state(self, state: Tensor) -> None:
        """Set the state of the device's random generator."""
        self._drawn.set_state(state)

    def record(self, work: Callable[[], Result]) -> Callable[[], Result]:
        """Capture `work` without computing it, and return a function that replays it.

        Every replay returns the same object, with new values. If `work` raises an error, the error is raised here and
        the device remains usable. For example, work that waits for the GPU cannot be captured.
        """
        own, graph = torch.Generator(self._device), torch.cuda.CUDAGraph()
        usual = self._drawn.graphsafe_get_state()
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()  # free cached memory of eager passes, because the graphs' pool cannot use it
        with torch.cuda.stream(self._stream):
            self._drawn.graphsafe_set_state(own.graphsafe_get_state())
            try:
                # thread_local: other threads may allocate pinned memory during the capture
                graph.capture_begin(self._pool, capture_error_mode="thread_local")
                result = work()
                graph.capture_end()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # the capture is invalid
                    graph.capture_end()
                with contextlib.suppress(RuntimeError):  # do what capture_end skips if it fails
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
    """Initialise CUDA. Raises UserError with torch's reason if torch finds no GPU."""
    # cuBLAS reads this variable only once. Set it always, because a later computation may have to be deterministic.
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
    """Seed the random generators of all devices for the initialisation of weights."""
    torch.manual_seed(mix(seed, 0))


def mix(seed: int, step: int) -> int:
    """Return a 63-bit hash of a seed and a step, by the finaliser of splitmix64.

    Neighbouring seeds and steps have unrelated hashes.
    """
    mask = 2**64 - 1
    z = (seed * 0x9E3779B97F4A7C15 + (step + 1) * 0xD1B54A32D192ED03) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return (z ^ (z >> 31)) >> 1


def resolve_precision(asked: str, device: torch.device) -> Precision:
    """Return the precision for a setting. "auto" is bf16 if the device has instructions for bf16, otherwise fp32.

    Raises UserError if torch cannot compute in the precision on this device.
    """
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
    """Return whether the device has matrix instructions for bf16. Without them, torch may emulate bf16."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return processor.has_bf16()


@contextlib.contextmanager
def naming_out_of_memory() -> Iterator[None]:
    """Turn every error of a failed allocation into errors.OutOfMemory. Other errors are raised unchanged."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OutOfMemory) or failure_class(error) != "out_of_memory":
            raise
        why = str(error) or type(error).__name__  # Python's MemoryError has no message
        raise OutOfMemory(why.splitlines()[0]) from error


@contextlib.contextmanager
def naming_nondeterminism() -> Iterator[None]:
    """Turn torch's error for a nondeterministic kernel into a UserError. Other errors are raised unchanged."""
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
    """Set for the whole process whether torch uses only deterministic kernels."""
    torch.use_deterministic_algorithms(deterministic)
    # New memory need not be filled, because every kernel of this program overwrites all memory that it allocates.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _open_cuda(device: torch.device, spec: DeviceSpec) -> None:
    there = torch.cuda.device_count()
    if device.index >= there:
        raise UserError(
            f"The run has {number(spec.count, 'GPU')}, but torch sees {there}: check CUDA_VISIBLE_DEVICES and "
            "nvidia-smi."
        )
    torch.cuda.set_device(device)
    # Disable TF32, so that fp32 has full precision. By default, torch uses TF32 for convolutions and recurrent layers,
    # and in NVIDIA's containers also for matrix products.
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    # torch prefers cuDNN's attention on GPUs from sm90 on. cuDNN builds a plan for every shape, and a training has
    # hundreds of shapes.
    torch.backends.cuda.enable_cudnn_sdp(False)
    total = torch.cuda.get_device_properties(device).total_memory
    # On a cluster, the coordinator does not know the memory of the GPU, so the limit is computed from the share.
    limit = max(0.01, spec.share - CONTEXT_GB * 1e9 / total) if spec.share < 1 else None
    if spec.memory_gb is not None:
        limit = min(1.0, spec.memory_gb / spec.count * 1e9 / total)
    if limit is not None:  # if processes share a GPU, only torch enforces a memory limit
        torch.cuda.set_per_process_memory_fraction(limit, device)


def _keep_freed_memory() -> None:
    """Let glibc reuse large freed blocks. By default it returns each block to the kernel and causes new page faults.

    At d_model 128 and 4,096 tokens, these page faults took a quarter of the time of a plain training loop in torch, and
    4 % of the time of this program.
    """
    if not hasattr(libc := ctypes.CDLL(None), "mallopt"):
        return
    trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of malloc.h
    if libc.mallopt(mmap_threshold, 1024 * _MIB):
        libc.mallopt(trim_threshold, 2047 * _MIB)


def _keep_kernels() -> None:
    """Set the cache sizes of oneDNN and torch. Both read these environment variables at the first matrix product.

    oneDNN caches 1,024 kernels by default. A training needs more: a Transformer has about 30 bf16 products per shape of
    a micro-batch, and a training has up to 64 shapes.

    torch caches descriptions of the last 1,024 products of every thread, with 0.2 MB each. oneDNN caches them too, with
    its kernels. torch's cache took 0.7 GB in a training on batches of different shapes, and saves at most 10 µs per
    product. torch's cache is therefore reduced to 16 descriptions.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(KERNELS))
    os.environ.setdefault("LRU_CACHE_CAPACITY", "16")
