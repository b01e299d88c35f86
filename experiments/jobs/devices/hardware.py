"""Resources of this machine: cores by affinity and container quota, GPUs by nvidia-smi.

This module does not import torch.
"""

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from experiments.errors import UserError

MY_CGROUP, CGROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
OTHERS_SHARE = 0.1  # a GPU counts as used if a larger share of its memory is in use; the driver alone uses less
SMI_S = 30.0  # longest wait for nvidia-smi in seconds; nvidia-smi may have to start the driver first
_MPS_SERVER = "nvidia-cuda-mps-server"  # this process has a context on each of its GPUs, even while no run uses them


@dataclass(frozen=True)
class Gpu:
    """A usable GPU, or a slice of one (MIG). memory_gb: None if nvidia-smi does not report it."""

    device: str
    memory_gb: float | None = None
    exclusive: bool = False  # compute mode Exclusive_Process: one process at a time, unless MPS runs


def visible_gpus(environ: Mapping[str, str]) -> list[Gpu]:
    """Return the GPUs that a child may use. If CUDA_VISIBLE_DEVICES is set, it selects the GPUs and their order."""
    gpus = _nvidia_smi()
    if "CUDA_VISIBLE_DEVICES" not in environ:
        return [gpu for _, gpu in gpus]
    # the index of a GPU with slices stands for its first slice
    known = {name: gpu for index, gpu in reversed(gpus) for name in (index, gpu.device)}
    inherited: list[Gpu] = []
    for name in environ["CUDA_VISIBLE_DEVICES"].split(","):
        name = name.strip()
        whole = [uuid for uuid in known if uuid.startswith(name)] if name.startswith("GPU-") else []
        if not (name in known or whole or name.startswith("MIG-")):
            break  # like CUDA: the list ends at the first unknown name
        inherited.append(replace(known.get(name) or known.get("".join(whole[:1])) or Gpu(name), device=name))
    return inherited


def _nvidia_smi() -> list[tuple[str, Gpu]]:
    """Return (index, GPU) of each usable GPU, or of each of its slices; [] without nvidia-smi or driver.

    Raises UserError if nvidia-smi does not answer.
    """
    rows = _ask_nvidia_smi("gpu", "index,uuid,memory.total,compute_mode,mig.mode.current")
    slices: dict[str, list[Gpu]] = {}
    for line in _output("-L").splitlines() if any(row[-1] == "Enabled" for row in rows) else ():
        if match := re.match(r"GPU \d+: .*\(UUID: (GPU-[^)]+)\)", line):
            mine = slices.setdefault(match[1], [])
        elif match := re.match(r" +MIG (?:\S+\.)?(\d+)gb.*\(UUID: (MIG-[^)]+)\)", line):
            mine.append(Gpu(match[2], float(match[1])))
    found: list[tuple[str, Gpu]] = []
    for index, uuid, mib, mode, mig in rows:
        memory = int(mib) * 1.048576e-3 if mib.isdigit() else None  # nvidia-smi reports MiB; GB are 1e9 bytes here
        whole = [Gpu(uuid, memory, mode.startswith("Exclusive"))] if mode != "Prohibited" else []
        found += [(index, gpu) for gpu in (slices.get(uuid, []) if mig == "Enabled" else whole)]
    return found


def _ask_nvidia_smi(what: str, fields: str) -> list[list[str]]:
    """Return the values of `fields`, one row for each GPU or process; [] without nvidia-smi or driver.

    Only the last field may contain commas.

    Raises UserError if nvidia-smi does not answer.
    """
    lines = _output(f"--query-{what}={fields}", "--format=csv,noheader,nounits").splitlines()
    rows = [[value.strip() for value in line.split(",", fields.count(","))] for line in lines]
    return [row for row in rows if len(row) == fields.count(",") + 1]


def _output(*arguments: str) -> str:
    """Return the output of nvidia-smi; "" if it is missing or fails. Raise UserError if it does not answer."""
    try:
        process = subprocess.Popen(
            ["nvidia-smi", *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    except OSError:
        return ""
    try:
        output, _ = process.communicate(timeout=SMI_S)
    except subprocess.TimeoutExpired:
        process.kill()  # do not wait, because the process may never end if the driver hangs
        raise UserError(
            f"nvidia-smi did not answer within {SMI_S:g} s, so it is unknown which GPUs are free. Restart its driver "
            "or the machine, or use processors: --devices cpu:N."
        ) from None
    return output if process.returncode == 0 else ""


def gpus_in_use() -> dict[str, str]:
    """Return the GPUs in use: UUID and index of each → description of the processes, or of the memory in use.

    Raises UserError if nvidia-smi does not answer.
    """
    listed = _ask_nvidia_smi("gpu", "index,uuid,memory.used,memory.total")
    processes: dict[str, list[str]] = {}
    for uuid, pid, mib, name in _ask_nvidia_smi("compute-apps", "gpu_uuid,pid,used_memory,process_name"):
        if name.endswith(_MPS_SERVER):
            continue
        used = f", {int(mib) * 1.048576e-3:.1f} GB" if mib.isdigit() else ""
        processes.setdefault(uuid, []).append(f"process {pid}{used}")
    found = {}
    for index, uuid, used, total in listed:
        why = "; ".join(processes.get(uuid, ()))
        if not why and used.isdigit() and total.isdigit() and int(used) > OTHERS_SHARE * int(total):
            why = f"{int(used) * 1.048576e-3:.1f} GB are taken"  # a process outside of this container uses it
        if why:
            found[uuid] = found[index] = why
    return found


def gpu_used_gb() -> dict[str, float]:
    """Return the GB (1e9 bytes) in use on each GPU, by UUID and by index. Slices (MIG) are not included.

    Raises UserError if nvidia-smi does not answer.
    """
    found = {}
    for index, uuid, used in _ask_nvidia_smi("gpu", "index,uuid,memory.used"):
        if used.isdigit():
            found[uuid] = found[index] = int(used) * 1.048576e-3
    return found


def memory_gb(cgroup: Path = MY_CGROUP, root: Path = CGROUPS) -> float:
    """Return the GB (1e9 bytes) of main memory of this machine or container."""
    limits = [limit for group in _groups("memory", cgroup, root) if (limit := _memory_limit(group)) is not None]
    return min([float(psutil.virtual_memory().total), *limits]) / 1e9


def free_memory_gb(cgroup: Path = MY_CGROUP, root: Path = CGROUPS) -> float:
    """Return the GB of main memory available without swapping, within the limits of this machine and its container."""
    free = [float(psutil.virtual_memory().available)]
    for group in _groups("memory", cgroup, root):
        limit = _memory_limit(group)
        used = _number(group / "memory.current", group / "memory.usage_in_bytes")
        if limit is not None and used is not None:
            free.append(limit - used + _page_cache(group))
    return max(0.0, min(free)) / 1e9


def available_cores(cgroup: Path = MY_CGROUP, root: Path = CGROUPS) -> int:
    """Return the number of cores that this process may use, at least 1.

    CPU affinity and the container's CPU quota limit this number.
    """
    quotas = [quota for group in _groups("cpu", cgroup, root) if (quota := _quota_of(group)) is not None]
    return max(1, min([len(os.sched_getaffinity(0)), *map(int, quotas)]))


def _groups(controller: str, cgroup: Path, root: Path) -> Iterator[Path]:
    """Yield the folders of this process's control group (version 2 or 1) and its parents, whose limits also apply."""
    try:
        lines = cgroup.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        base = root if not controllers else root / controller
        if controllers and controller not in controllers.split(","):
            continue
        group = base / path.lstrip("/")
        yield from (one for one in (group, *group.parents) if one.is_relative_to(base))


def _memory_limit(group: Path) -> float | None:
    return _number(group / "memory.max", group / "memory.limit_in_bytes")


def _page_cache(group: Path) -> float:
    """Return the bytes of unused file cache of a control group, which the kernel can reclaim."""
    try:
        facts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return float(facts.get("total_inactive_file", facts.get("inactive_file", 0)))
    except (OSError, ValueError):
        return 0.0


def _number(*files: Path) -> float | None:
    """Return the number in the first of these files that contains a number; None if no file does.

    A file may contain "max" instead of a number.
    """
    for file in files:
        with contextlib.suppress(OSError, ValueError):
            return float(file.read_text())
    return None


def _quota_of(group: Path) -> float | None:
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota = (group / "cpu.cfs_quota_us").read_text().strip()
            period = (group / "cpu.cfs_period_us").read_text().strip()
        return int(quota) / int(period) if quota not in ("max", "-1") else None
    except (OSError, ValueError):
        return None
