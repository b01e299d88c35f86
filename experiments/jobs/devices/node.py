"""The slots of a node worker, a program that runs several attempts on one node of a cluster."""

import itertools
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from experiments.errors import UserError
from experiments.jobs.devices.slots import CLUSTER_THREADS, Slot
from experiments.messages import number

NODE_GRAMMAR = (
    "With --workers, name the slots of one node: cpu:N or cpu:NxT (N runs at once, of T threads each), cuda:N (N GPUs "
    "with a run each), cuda:NxK (K runs share each GPU) or cuda:NxKxT (of T threads each)."
)


@dataclass(frozen=True)
class Node:
    """The slots of one node: `devices` GPUs or CPU slots, with `shares` runs of `threads` threads on each."""

    kind: str
    devices: int
    shares: int
    threads: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read --devices as the slots of one node. Raise UserError for wrong text."""
        match = re.fullmatch(r"cpu:(\d+)(?:x(\d+))?|cuda:(\d+)(?:x(\d+))?(?:x(\d+))?", text.strip())
        if not match or "0" in match.groups():
            raise UserError(f"--devices {text}: {NODE_GRAMMAR}")
        if match[1]:
            return cls("cpu", int(match[1]), 1, int(match[2] or CLUSTER_THREADS["cpu"]))
        shares = int(match[4] or 1)
        return cls("cuda", int(match[3]), shares, int(match[5] or max(1, CLUSTER_THREADS["cuda"] // shares)))

    @property
    def at_once(self) -> int:
        """Largest number of runs on the node at a time."""
        return self.devices * self.shares

    def slots(self, nodes: int) -> list[Slot]:
        """Return the slots of `nodes` nodes."""
        device = None if self.kind == "cuda" else ""
        places = itertools.product(range(nodes), range(self.devices), range(self.shares))
        return [
            Slot(
                f"{self.kind}.{node * self.devices + i}" + (f"/{share}" if self.shares > 1 else ""),
                self.kind,
                self.threads,
                device,
                share=1 / self.shares,
                node=str(node),
            )
            for node, i, share in places
        ]

    @property
    def whole(self) -> Slot:
        """The resources of a whole node, as a worker requests them from the cluster."""
        device = None if self.kind == "cuda" else ""
        return Slot(self.kind, self.kind, self.threads * self.shares, device, count=self.devices)

    def needs(self, slot: Slot) -> tuple[int, int]:
        """Return the number of devices that a run on `slot` takes, and the number of shares on each device."""
        if self.kind == "cpu":
            return len(slot.parts), 1
        return (slot.count, self.shares) if slot.count > 1 else (1, min(len(slot.parts), self.shares))

    def to_json(self) -> Mapping[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        if self.kind == "cpu":
            return f"{self.devices} × {self.threads} processor cores"
        return f"{number(self.devices, 'GPU')} with {self.shares} runs at a time on each"
