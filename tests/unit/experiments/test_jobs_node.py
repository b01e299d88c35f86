"""Tests of the slots of node workers: --devices with --workers, and the resources that a run requests."""

import socket
import uuid

import pytest

from ablations.service.coordination import WorkOptions
from experiments.errors import UserError
from experiments.jobs.coordinator.scheduler import place
from experiments.jobs.devices.node import Node
from experiments.jobs.devices.slots import join, most_together
from experiments.jobs.engines import node_worker
from experiments.jobs.queue.job import Waiting


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ("cpu:2", Node("cpu", 2, 1, 1)),
        ("cpu:2x4", Node("cpu", 2, 1, 4)),
        ("cuda:4", Node("cuda", 4, 1, 4)),
        ("cuda:4x3", Node("cuda", 4, 3, 1)),
        ("cuda:4x2x5", Node("cuda", 4, 2, 5)),
    ],
)
def test_devices_are_the_slots_of_one_node(text, node):
    assert Node.parse(text) == node
    slots = node.slots(3)
    assert len({slot.name for slot in slots}) == len(slots) == 3 * node.at_once
    assert node.whole.cores == node.devices * node.shares * node.threads


@pytest.mark.parametrize(
    "text", ["auto", "cuda:*", "cuda:0,1", "cuda:0", "cpu:0x2", "cpu:2x0", "cuda:2x2x0", "cpu:1x1x1", ""]
)
def test_other_devices_are_refused_with_the_grammar(text):
    with pytest.raises(UserError, match="slots of one node"):
        assert WorkOptions(devices=text, engine="slurm", workers=2).slots


def test_a_run_on_several_gpus_has_those_of_one_node():
    node = Node.parse("cuda:2x3")
    slots = node.slots(4)
    assert most_together(slots) == 2
    [(_, lease)] = place([Waiting("0" * 16, 0, 1.0, "", "", devices=4)], slots, slots)
    assert node.needs(join(lease, together=True)) == (2, 3), "at most a whole node, as GPUs of one's own"


def test_a_run_takes_a_share_and_one_that_ran_out_of_memory_the_whole_gpu():
    node = Node.parse("cuda:2x3")
    slots = node.slots(2)
    jobs = [Waiting("0" * 16, 0, 1.0, "", ""), Waiting("1" * 16, 0, 1.0, "", "", alone=True)]
    needs = {job.run_id: node.needs(join(lease)) for job, lease in place(jobs, slots, slots)}
    assert needs == {"0" * 16: (1, 1), "1" * 16: (1, 3)}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"workers": 0}, "--workers 0: write how many node workers"),
        ({"workers": -1}, "--workers -1: write how many"),
        ({"workers": 1, "engine": "local"}, "--workers needs a cluster: add --engine slurm"),
        ({"setup": ["true"], "engine": "local"}, "--setup needs a cluster"),
    ],
)
def test_what_cannot_be_is_refused(options, said):
    with pytest.raises(UserError, match=said):
        WorkOptions(**{"devices": "cpu:2", "engine": "slurm", **options})


def test_two_workers_on_a_node_without_a_mask_would_use_the_same_gpus(monkeypatch):
    """The second worker is simulated by a second socket instead of a process."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    name = f"\0test-{uuid.uuid4()}"
    monkeypatch.setattr(node_worker, "NODE_NAME", name)
    first = socket.socket(socket.AF_UNIX)
    monkeypatch.setattr(node_worker, "_NODE", first)
    assert node_worker._devices(Node.parse("cuda:2")) == ["0", "1"]
    with socket.socket(socket.AF_UNIX) as second:
        monkeypatch.setattr(node_worker, "_NODE", second)
        with pytest.raises(UserError, match=r"Two node workers are on .* gres=gpu:N"):
            node_worker._devices(Node.parse("cuda:2"))
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
        assert node_worker._devices(Node.parse("cuda:1")) == ["3"]
        assert node_worker._devices(Node.parse("cpu:2")) == ["0", "1"]
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
        first.close()
        assert node_worker._devices(Node.parse("cuda:1")) == ["0"], "the kernel frees the name"
