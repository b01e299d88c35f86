"""Checkpoints saved during training have the state of their step, and errors of the saver are raised."""

import concurrent.futures
import errno
import threading

import pytest
import torch

from experiments.device import Device
from experiments.device_spec import DeviceSpec
from experiments.errors import DiskFull
from experiments.training import checkpoint
from experiments.training.saver import Saver
from tests.small_training import kinds, losses, pairs, run


@pytest.fixture
def saver():
    return Saver(Device.open(DeviceSpec(), "fp32"))


def test_what_is_written_is_what_was_there_when_the_save_began(saver):
    weight, go, seen = torch.zeros(3, 2).T, threading.Event(), []

    def write(copies):
        assert go.wait(60)
        seen.append(copies["w"].clone())

    saver.start({"w": weight}, write)
    weight += 1  # the next step, while the disk is slow
    saver.check()
    assert seen == []
    go.set()
    saver.start({"w": weight}, write)  # waits for the one before
    saver.wait()
    assert [float(copy.sum()) for copy in seen] == [0, 6]
    assert seen[0].shape == (2, 3)


def test_an_error_is_raised_once_by_the_next_look(saver):
    def fail(copies):
        raise OSError(errno.EIO, "bad disk")

    saver.start({}, fail)
    concurrent.futures.wait([saver._saving])
    with pytest.raises(OSError, match="bad disk"):
        saver.check()
    saver.check()
    saver.start({}, fail)
    saver.close()  # another error is under way
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("checkpoint")]


def test_a_disk_that_fills_up_ends_the_training_at_a_later_step(tmp_path, monkeypatch):
    written, events = checkpoint.write_tensors, []

    def full(path, tensors):
        if "00000008" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        return written(path, tensors)

    monkeypatch.setattr(checkpoint, "write_tensors", full)
    with pytest.raises(DiskFull, match="no space left"):
        run(tmp_path)
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step-00000004"], "the older one is untouched"
    assert not (tmp_path / "final").exists()
    monkeypatch.setattr(checkpoint, "write_tensors", written)
    _, facts, events = run(tmp_path / "again", earlier=[tmp_path])
    assert facts["resumed_from"] == 4
    _, _, straight = run(tmp_path / "straight")
    assert losses(events) == {step: loss for step, loss in losses(straight).items() if step > 4}


def test_a_slow_disk_holds_up_the_next_save_only(tmp_path, monkeypatch):
    written, go, stepped = checkpoint.write_tensors, threading.Event(), []

    def slow(path, tensors):
        assert go.wait(60)
        return written(path, tensors)

    monkeypatch.setattr(checkpoint, "write_tensors", slow)

    def batches_told(step):
        stepped.append(step)
        if step == 8:  # prepared ahead of its step, while the save of step 4 is still waiting
            go.set()
        return [pairs(step)]

    _, _, events = run(tmp_path, batches=batches_told)
    assert stepped[-1] == 12
    assert [e["step"] for e in kinds(events, "checkpoint")] == [4, 8, 12]
