"""Slots: leases on named devices, written as text.

    cpu:2        two slots of one thread       cuda:0,2     one slot on each of these GPUs
    cpu:2x4      two slots of four threads     cuda:*       one on every GPU
    auto         every GPU, else every core    cuda:*x3     three on every GPU, each with a third of its memory

Several are joined by "+": `cuda:*+cpu:2`. GPU numbers count the visible ones, as torch does: an inherited
CUDA_VISIBLE_DEVICES is a limit. Imports no torch: GPUs are asked of nvidia-smi.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.errors import UserError
from experiments.jobs.hardware import Gpu, available_cores, visible_gpus

GRAMMAR = (
    'Write cpu:N, cpu:NxT (N slots of T threads), cuda:0,2, cuda:*, cuda:*x3 (three a GPU) or auto; join with "+".'
)
USABLE = 0.94  # of a shared GPU's memory: the rest goes to the processes' CUDA contexts


@dataclass(frozen=True)
class Slot:
    """A lease that one run holds at a time."""

    name: str  # "cpu:0", "cuda:2", "cuda:2/1" (the second slot on GPU 2)
    kind: str  # "cpu" or "cuda"
    threads: int = 1
    device: str = ""  # what CUDA_VISIBLE_DEVICES is set to: an index, a UUID; "" for the CPU
    memory_gb: float | None = None  # cap, where a GPU is shared


def parse_slots(text: str, environ: Mapping[str, str] | None = None) -> list[Slot]:
    """The slots that `text` names. Raises UserError for other text, and for devices that are not there."""
    environ = os.environ if environ is None else environ
    slots: list[Slot] = []
    for part in text.split("+"):
        slots += _parse_part(part.strip(), text, environ)
    if len({slot.name for slot in slots}) < len(slots):
        raise UserError(f"--devices {text}: a device is named twice. Share a GPU with cuda:0x2. {GRAMMAR}")
    return slots


def _parse_part(part: str, text: str, environ: Mapping[str, str]) -> list[Slot]:
    if part == "auto":
        gpus = visible_gpus(environ)
        return _cuda(list(enumerate(gpus)), 1) if gpus else _cpu(available_cores(), 1)
    if match := re.fullmatch(r"cpu:(\d+)(?:x(\d+))?", part):
        count, threads = int(match[1]), int(match[2] or 1)
        if count < 1 or threads < 1:
            raise UserError(f"--devices {text}: {part} has no slot or no thread. {GRAMMAR}")
        return _cpu(count, threads)
    if match := re.fullmatch(r"cuda:(\*|\d+(?:,\d+)*)(?:x(\d+))?", part):
        share = int(match[2] or 1)
        if share < 1:
            raise UserError(f"--devices {text}: {part} has no slot. {GRAMMAR}")
        return _cuda(_chosen(match[1], text, visible_gpus(environ)), share)
    raise UserError(f"--devices {text}: {part!r} is not understood. {GRAMMAR}")


def _chosen(names: str, text: str, gpus: Sequence[Gpu]) -> list[tuple[int, Gpu]]:
    if not gpus:
        raise UserError(
            f"--devices {text}: no GPU is visible (nvidia-smi lists none, or CUDA_VISIBLE_DEVICES is empty). "
            f"Use cpu:{available_cores()}, or auto for whatever there is."
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
    return [Slot(f"cpu:{i}", "cpu", threads) for i in range(count)]


def _cuda(chosen: Sequence[tuple[int, Gpu]], share: int) -> list[Slot]:
    threads = max(1, available_cores() // (len(chosen) * share))
    slots = []
    for index, gpu in chosen:
        for place in range(share):
            name = f"cuda:{index}" if share == 1 else f"cuda:{index}/{place}"
            cap = round(gpu.memory_gb * USABLE / share, 2) if share > 1 and gpu.memory_gb else None
            slots.append(Slot(name, "cuda", threads, gpu.device, cap))
    return slots
