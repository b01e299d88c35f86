"""The devices that a run computes on, as the coordinator tells its child."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceSpec:
    """The devices of a child. `kind` is "cpu" or "cuda"; CUDA_VISIBLE_DEVICES is set before the child starts."""

    kind: str = "cpu"
    threads: int = 1  # of each process; every device has one process
    memory_gb: float | None = None  # limit of all `count` devices together; None: no limit
    count: int = 1  # devices that train the run together
    share: float = 1.0  # fraction of each device; less than 1 if runs share it
