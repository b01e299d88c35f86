"""Slots. A slot is a named device, or a share of a device, and is leased to one run at a time. --devices names slots:

    cpu:2        two slots of one thread       cuda:0,2     one slot on each of these GPUs
    cpu:2x4      two slots of four threads     cuda:*       one slot on every GPU
    auto         every GPU; without GPUs,      cuda:*x3     three slots on every GPU, each with a third of its memory
                 every core (small runs share a GPU: jobs/coordinator/sharing.py)
    cpu:2x4@3GB  slots that may use at most 3 GB of memory each (1e9 bytes)

"+" joins several of these: `cuda:*+cpu:2`. nvidia-smi lists the GPUs. If CUDA_VISIBLE_DEVICES is set, only its GPUs
are numbered, as in torch. This module does not import torch.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from experiments.device_spec import DeviceSpec
from experiments.errors import UserError
from experiments.jobs.devices.hardware import OTHERS_SHARE, Gpu, available_cores, memory_gb, visible_gpus
from experiments.processes.processor import mps_serves
from experiments.records import CONTEXT_GB

GRAMMAR = (
    "Write cpu:N, cpu:NxT (N slots of T threads), cuda:0,2, cuda:*, cuda:*x3 (three per GPU) or auto; join "
    'several with "+"; @3GB after one limits the memory of each of its slots.'
)
CLUSTER_GRAMMAR = (
    "On a cluster write cpu:N or cpu:NxT (N runs at once, of T threads each), cuda:N or cuda:NxT (with a GPU each)."
)
USABLE = 0.94  # usable fraction of main memory; the system takes the rest
HOST_GB = 4.0  # main memory assumed for a run on a shared GPU: torch with CUDA, the corpus, a copy for a checkpoint
TOLERANCE = 1.25  # largest measured error of memory predictions (benchmarks/memory.py)
CLUSTER_THREADS = {"cpu": 1, "cuda": 4}


@dataclass(frozen=True)
class Slot:
    """A device or a share of one, leased to one run at a time."""

    name: str  # "cpu:0", "cuda:2", "cuda:2/1" (the second slot on GPU 2); "+" joins the names of several slots
    kind: str  # "cpu" or "cuda"
    threads: int = 1  # threads of each process
    device: str | None = ""  # value of CUDA_VISIBLE_DEVICES ("": no GPU); None if the cluster sets the variable
    memory_gb: float | None = None  # memory limit of a run: set by the user, or the share of a GPU; None: no limit
    room_gb: float | None = None  # memory available to a run on this slot, without its CUDA context; None: unknown
    named: bool = False  # whether the user named this device by its number
    count: int = 1  # number of devices; each has one process
    share: float = 1.0  # fraction of each device that the slot has
    node: str = ""  # number of the slot's node (`Node`); "" on this machine, or if a cluster chooses the node
    most: int = 0  # largest number of runs that may share a GPU of `--devices auto`; 0 for all other slots
    free_gb: float | None = None  # memory of a GPU of `--devices auto` that all of its runs together may use

    @property
    def unit(self) -> str:
        """Name of the device, which is equal for slots that share a device ("cuda:2", "cpu").

        Slots of a cluster ("cpu.7") share no device.
        """
        return self.name.partition("/" if self.kind == "cuda" else ":")[0]

    @property
    def cores(self) -> int:
        """Number of processor cores that a run on the slot uses."""
        return self.threads * self.count

    def device_spec(self, threads: int) -> DeviceSpec:
        """Return the slot's devices in the form that the spec of a child needs, with `threads` threads."""
        return DeviceSpec(self.kind, threads, self.memory_gb, self.count, self.share)

    @property
    def parts(self) -> list[str]:
        """Names of the slots joined into this one."""
        return self.name.split("+")


def join(slots: Sequence[Slot], *, together: bool = False) -> Slot:
    """Return one slot that joins the slots of a run.

    together: whether the slots are several devices that train the run together. If not, they are shares of one device.
    """
    first = slots[0]
    if len(slots) == 1:
        return first
    devices = list(dict.fromkeys(slot.device for slot in slots))
    count = len(by_device(slots)) if together else 1
    caps = [slot.memory_gb for slot in slots]
    return replace(
        first,
        name="+".join(slot.name for slot in slots),
        # Results depend on the number of threads. So a run that takes several CPU slots uses the threads of one slot.
        threads=first.threads if first.kind == "cpu" else sum(slot.threads for slot in slots) // count,
        device=first.device if first.device is None else ",".join(str(device) for device in devices),
        memory_gb=None if None in caps else round(sum(cap for cap in caps if cap), 2),
        room_gb=sum(slot.room_gb or 0 for slot in slots) or None,
        count=count,
        share=first.share if first.kind == "cpu" else sum(slot.share for slot in slots) / count,
    )


def by_device(slots: Iterable[Slot], *, by_memory: bool = False) -> dict[str, list[Slot]]:
    """Return the slots grouped by device. The device of a share is its GPU. Each CPU slot counts as one device.

    by_memory: group the slots by the memory that they share instead. Then all CPU slots of this machine are one group.
    """
    found: dict[str, list[Slot]] = {}
    for slot in slots:
        found.setdefault(slot.unit if by_memory or slot.kind == "cuda" else slot.name, []).append(slot)
    return found


def most_together(slots: Iterable[Slot]) -> int:
    """Return the largest number of devices that can train one run together. They must be on one node."""
    devices = by_device(slots).values()
    return max(Counter(shares[0].node for shares in devices).values(), default=0)


def parse_slots(text: str, environ: Mapping[str, str] | None = None) -> list[Slot]:
    """Return the slots named by `text`. Raise UserError for wrong text and for missing devices."""
    environ = os.environ if environ is None else environ
    slots: list[Slot] = []
    for part in text.split("+"):
        slots += _parse_limited(part.strip(), text, environ)
    if len({slot.name for slot in slots}) < len(slots):
        raise UserError(f"--devices {text}: a device is named twice. To share a GPU, write cuda:0x2. {GRAMMAR}")
    return slots


def parse_cluster_slots(text: str) -> list[Slot]:
    """Return one slot for each run that the cluster may run at the same time. The cluster chooses the devices.

    Raises UserError for wrong text.
    """
    match = re.fullmatch(r"(cpu|cuda):(\d+)(?:x(\d+))?", text.strip())
    if not match or not int(match[2]) or match[3] == "0":
        raise UserError(f"--devices {text}: {CLUSTER_GRAMMAR}")
    kind, threads = match[1], int(match[3] or CLUSTER_THREADS[match[1]])
    device = None if kind == "cuda" else ""
    return [Slot(f"{kind}.{i}", kind, threads, device) for i in range(int(match[2]))]


def _parse_limited(part: str, text: str, environ: Mapping[str, str]) -> list[Slot]:
    """Return the slots of one part of the text, with the memory limit after its "@" if there is one."""
    part, limited, limit = part.partition("@")
    slots = _parse_part(part, text, environ)
    if not limited:
        return slots
    match = re.fullmatch(r"(\d+(?:\.\d+)?)GB", limit)
    if not match or not float(match[1]):
        raise UserError(f"--devices {text}: {limit!r} is not a limit of memory, such as {part}@3GB or {part}@0.5GB.")
    gb = float(match[1])
    return [
        replace(slot, memory_gb=_least(gb, slot.memory_gb), room_gb=_least(gb, slot.room_gb), most=min(1, slot.most))
        for slot in slots
    ]


def _least(gb: float, other: float | None) -> float:
    return gb if other is None else min(gb, other)


def _parse_part(part: str, text: str, environ: Mapping[str, str]) -> list[Slot]:
    if part == "auto":
        gpus = visible_gpus(environ)
        return _auto(gpus) if gpus else _cpu(available_cores(), 1)
    if match := re.fullmatch(r"cpu:(\d+)(?:x(\d+))?", part):
        count, threads = int(match[1]), int(match[2] or 1)
        if count < 1 or threads < 1:
            raise UserError(f"--devices {text}: {part} has no slot or no thread. {GRAMMAR}")
        return _cpu(count, threads)
    if match := re.fullmatch(r"cuda:(\*|\d+(?:,\d+)*)(?:x(\d+))?", part):
        share = int(match[2] or 1)
        if share < 1:
            raise UserError(f"--devices {text}: {part} has no slot. {GRAMMAR}")
        return _cuda(_chosen(match[1], text, visible_gpus(environ)), share, named=match[1] != "*")
    raise UserError(f"--devices {text}: {part!r} is not a device. {GRAMMAR}")


def _auto(gpus: Sequence[Gpu]) -> list[Slot]:
    """Return one slot for each GPU. Small runs may share this slot (jobs/coordinator/sharing.py).

    Every run needs one processor core, because its process starts the GPU's work, and HOST_GB of main memory. Other
    programs may use up to OTHERS_SHARE of a GPU's memory. If they use more, the GPU gets no runs (`GpuOccupancy`).
    """
    slots, hosted = [], int(memory_gb() * USABLE / HOST_GB / len(gpus))
    for slot, gpu in zip(_cuda(list(enumerate(gpus)), 1, named=False), gpus, strict=True):
        if gpu.memory_gb is None or (gpu.exclusive and not mps_serves()):
            slots.append(replace(slot, most=1))
        else:
            slots.append(
                replace(
                    slot, most=max(1, min(slot.threads, hosted)), free_gb=round(gpu.memory_gb * (1 - OTHERS_SHARE), 2)
                )
            )
    return slots


def _chosen(names: str, text: str, gpus: Sequence[Gpu]) -> list[tuple[int, Gpu]]:
    if not gpus:
        raise UserError(
            f"--devices {text}: no GPU is visible (nvidia-smi lists none, or CUDA_VISIBLE_DEVICES is empty). "
            f"Use cpu:{available_cores()}, or auto for the devices of this machine."
        )
    if names == "*":
        return list(enumerate(gpus))
    wanted = [int(name) for name in names.split(",")]
    missing = [index for index in wanted if index >= len(gpus)]
    if missing:
        raise UserError(
            f"--devices {text}: there is no GPU {missing[0]}; {len(gpus)} visible, numbered from 0"
            f"{' within CUDA_VISIBLE_DEVICES' if 'CUDA_VISIBLE_DEVICES' in os.environ else ''}. {GRAMMAR}"
        )
    return [(index, gpus[index]) for index in wanted]


def _cpu(count: int, threads: int) -> list[Slot]:
    room = round(memory_gb() * USABLE / count, 2)
    if not room:
        raise UserError(
            f"--devices cpu:{count}: the machine's {memory_gb():.0f} GB are less than 0.01 GB for each of so many "
            f"slots. cpu:{available_cores()} uses every core once."
        )
    return [Slot(f"cpu:{i}", "cpu", threads, room_gb=room) for i in range(count)]


def _cuda(chosen: Sequence[tuple[int, Gpu]], share: int, *, named: bool) -> list[Slot]:
    threads = max(1, available_cores() // (len(chosen) * share))
    slots = []
    for index, gpu in chosen:
        if share > 1 and gpu.exclusive and not mps_serves():
            raise UserError(
                f"--devices cuda:{index}x{share}: this GPU lets one process compute at a time (compute mode "
                f"Exclusive_Process). Start NVIDIA's MPS (`nvidia-cuda-mps-control -d`), or use cuda:{index}."
            )
        for place in range(share):
            name = f"cuda:{index}" if share == 1 else f"cuda:{index}/{place}"
            room = round(max(0.01, gpu.memory_gb / share - CONTEXT_GB), 2) if gpu.memory_gb else None
            cap = room if share > 1 else None
            slots.append(Slot(name, "cuda", threads, gpu.device, cap, room, named, share=1 / share))
    return slots
