"""A node worker: a program that takes attempts and runs them on the slots of one node of a cluster.

Each node worker is one job of the cluster. Near the end of the job's time, or before a preemption, the keeper of the
worker sends it SIGTERM. The worker then takes no more attempts, lets its runs save a checkpoint, and ends. The
coordinator starts the unfinished runs again on other workers.
"""

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from experiments.errors import UserError
from experiments.jobs.devices.node import Node
from experiments.jobs.engines.keeper import Keeper, node_name
from experiments.jobs.engines.work_items import BEGAN, FAILED, JOB, KILL, WORKER, WorkItem, WorkItems
from experiments.store.checksummed import read_json, write_json

LOOK_S = 0.5
IDLE_S = 60.0  # seconds; the worker ends after this time without a run, so that others can use the node
KNOWN_S = 120.0  # longest time in seconds from the worker's start until the coordinator has recorded the worker's job
# Abstract socket name, which only one process of a node can hold. The kernel frees it when the process ends.
NODE_NAME = "\0ablations-node-worker"
_NODE = socket.socket(socket.AF_UNIX)
log = logging.getLogger("node worker")


@dataclass(frozen=True)
class Running:
    """An attempt that runs on this node, with the devices on which it holds shares."""

    item: WorkItem
    devices: Sequence[str]
    keeper: Keeper


class NodeWorker:
    """Takes attempts and runs them on the devices of a node.

    devices: names of GPUs as in CUDA_VISIBLE_DEVICES, or numbers of CPU slots.
    """

    def __init__(self, items: WorkItems, name: str, node: Node, devices: Sequence[str]) -> None:
        self._items, self._name, self._node = items, name, node
        self._free = dict.fromkeys(devices, node.shares)
        self._running: dict[str, Running] = {}
        self._busy_at = time.monotonic()
        self._stopping = False

    def run(self) -> None:
        """Take and run attempts until the worker's time ends, or until there is no attempt for IDLE_S."""
        signal.signal(signal.SIGTERM, self._stop)
        while not self._over():
            try:
                self._collect()
                self._obey()
                if not self._stopping:
                    self._take()
            except (OSError, UserError) as error:  # the network disk may not answer for a while
                log.warning("%s", error)
            time.sleep(LOOK_S)

    def _stop(self, _number: int, _frame: FrameType | None) -> None:
        self._stopping = True

    def _over(self) -> bool:
        if self._running:
            self._busy_at = time.monotonic()
        return not self._running and (self._stopping or time.monotonic() - self._busy_at > IDLE_S)

    def _collect(self) -> None:
        for name, one in list(self._running.items()):
            if not one.keeper.living:
                log.info("%s ended with exit code %s", name, one.keeper.wait())
                self._items.done(name, self._name)
                self._lease(one.devices, -one.item.shares)
                del self._running[name]

    def _obey(self) -> None:
        """Pass the coordinator's requests on to single attempts. If the worker must end, ask all attempts to end."""
        if self._stopping:
            for one in self._running.values():
                one.keeper.terminate()
        for name, what in self._items.requests():
            if name in self._running:
                keeper = self._running[name].keeper
                (keeper.kill if what == KILL else keeper.terminate)()

    def _take(self) -> None:
        """Take work items, the oldest first.

        If an item needs more free shares than there are now, do not take it or any later item. Otherwise, later items
        could delay it forever.
        """
        if not any(self._free.values()):
            return
        for item in self._items.waiting():
            if not item.fits(self._node):
                continue
            devices = self._suited(item)
            if len(devices) < item.devices:
                return
            if self._items.take(item, self._name):
                self._start(item, devices)

    def _suited(self, item: WorkItem) -> list[str]:
        """Return devices with enough free shares for an item, but at most `item.devices` of them.

        Devices with the most free shares come first.
        """
        enough = [device for device, free in self._free.items() if free >= item.shares]
        return sorted(enough, key=lambda device: -self._free[device])[: item.devices]

    def _start(self, item: WorkItem, devices: Sequence[str]) -> None:
        changes = {"CUDA_VISIBLE_DEVICES": ",".join(devices)} if item.kind == "cuda" else {}
        log.info("%s starts on %s %s", item.name, item.kind, ",".join(devices))
        try:
            keeper = Keeper(Path(item.folder), changes)
        except (OSError, KeyError) as error:
            log.warning("%s could not be started: %s", item.name, error)
            self._items.done(item.name, self._name)
            return
        self._running[item.name] = Running(item, devices, keeper)
        self._lease(devices, item.shares)

    def _lease(self, devices: Sequence[str], shares: int) -> None:
        for device in devices:
            self._free[device] -= shares


def work_in(folder: Path) -> None:
    """Run the worker whose files are in `folder` until it ends. Raise UserError if it cannot work on this node."""
    node = Node(**(read_json(folder / WORKER) or {}))
    devices = _devices(node)
    _wait_until_known(folder)
    (folder / "taken").mkdir(exist_ok=True)
    write_json(folder / BEGAN, {"host": node_name(), "pid": os.getpid()})
    log.info("on %s: %s", node_name(), node)
    NodeWorker(WorkItems(folder.parent), folder.name, node, devices).run()


def _devices(node: Node) -> list[str]:
    if node.kind == "cpu":
        return [str(number) for number in range(node.devices)]
    given = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    if not given:  # this cluster does not assign GPUs to jobs
        try:
            _NODE.bind(NODE_NAME)
        except OSError:
            raise UserError(
                f"Two node workers are on {node_name()}, and the cluster gives them no separate GPUs "
                "(CUDA_VISIBLE_DEVICES is not set): both would use the same ones. Request GPUs in the way of this "
                "cluster (on Slurm often --engine-set gres=gpu:N), or use --workers 1."
            ) from None
    found = given or [str(number) for number in range(node.devices)]
    if len(found) < node.devices:
        raise UserError(
            f"The cluster gave the node worker on {node_name()} {len(found)} GPUs (CUDA_VISIBLE_DEVICES is "
            f"{','.join(found)}), but --devices names {node.devices}."
        )
    return found[: node.devices]


def _wait_until_known(folder: Path) -> None:
    """Wait until a coordinator has recorded the cluster's job of this worker. Raise UserError after KNOWN_S.

    Coordinators do not see the attempts of a worker whose job is not recorded, and would start them a second time.
    """
    until = time.monotonic() + KNOWN_S
    while not any(path.name == JOB for path in folder.iterdir()):
        if time.monotonic() > until:
            raise UserError("The command that submitted this node worker ended before it recorded the job.")
        time.sleep(LOOK_S)


def main(folder: Path) -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    try:
        work_in(folder)
    except UserError as error:
        log.error("%s", error)
        write_json(folder / FAILED, {"error": str(error)})
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
