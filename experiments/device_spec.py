"""The specification of the devices on which a run computes. The coordinator passes it to the child."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceSpec:
    """The devices of a child. For GPUs, CUDA_VISIBLE_DEVICES is set before the child starts."""

    kind: str = "cpu"  # "cpu" or "cuda"
    threads: int = 1  # number of threads of each process; there is one process per device
    memory_gb: float | None = None  # memory limit of all `count` devices together; None: no limit
    count: int = 1  # number of devices that train the run together
    share: float = 1.0  # fraction of each device that the run may use; less than 1 if several runs share it
