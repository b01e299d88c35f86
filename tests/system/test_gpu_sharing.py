"""Runs that share a GPU with `--devices auto`: a coordinator with stub runs that report a throughput on a fake GPU."""

import re
import time
from dataclasses import replace

import pytest

from experiments.jobs.coordinator import throughput
from experiments.jobs.devices import gpu_occupancy, slots
from experiments.jobs.devices.slots import parse_slots
from experiments.jobs.queue.job import State
from experiments.jobs.queue.queue import Queue
from experiments.store.checksummed import read_json
from experiments.store.layout import Store
from tests.fake_gpus import gpu, put_nvidia_smi
from tests.system.stub_store import in_thread, make, outcomes, row, wait_for


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "store")


@pytest.fixture
def one_gpu(monkeypatch, tmp_path):
    """Return the slots of `auto` with eight cores and one GPU of 85.5 GB. Throughput windows last half a second."""
    put_nvidia_smi(monkeypatch, tmp_path, [gpu(0, "GPU-a")])
    monkeypatch.setattr(slots, "available_cores", lambda: 8)
    monkeypatch.setattr(slots, "memory_gb", lambda: 64.0)
    monkeypatch.setattr(throughput, "WINDOW_S", 0.5)
    return parse_slots("auto", {})


def job(number, folder, tokens_per_s, **more):
    made = make(number, step_s=0.05, **{"evaluate": False, "gpu_memory_gb": 2.0, **more})
    gpu_of = {"folder": str(folder), "tokens_per_s": tokens_per_s}
    config = made.spec.config
    with_gpu = {**config, "stub": {**config["stub"], "gpu": gpu_of}}
    return replace(made, spec=replace(made.spec, config=with_gpu))


def notes(store):
    with Queue(store.queue_db) as queue:
        return queue.notes().get("sharing", "")


def lives(store, numbers):
    """Return (begin, end, slot) of the runs' first attempts."""
    with Queue(store.queue_db) as queue:
        history = [queue.history(f"{number:016x}")[0] for number in numbers]
    return [(one["started"], one["ended"], one["slot"]) for one in history]


@pytest.mark.nightly
def test_a_coordinator_grows_from_one_to_four_at_once_and_stops(store, one_gpu, tmp_path):
    """Two and four runs raise the throughput by factors of 1.8 and 1.78. Eight runs do not raise it further."""
    folder = tmp_path / "gpu"
    folder.mkdir()
    each = {"1": 100.0, "2": 90.0, "3": 85.0, "4": 80.0, "5": 64.0, "6": 53.3, "7": 45.7, "8": 40.0}
    numbers = range(1, 29)
    seen: list[str] = []
    settled = 0.0
    thread = in_thread(store, *(job(number, folder, each, steps=120) for number in numbers), slots=one_gpu)
    while thread.is_alive():
        note = notes(store)
        if note and (not seen or seen[-1] != note):
            seen.append(note)
            settled = settled or (time.time() if "8 at once gave" in note else 0.0)
        thread.join(0.05)
    assert all(row(store, number).state is State.FINISHED for number in numbers)
    limits = [int(match[1]) for note in seen if (match := re.search(r"at most (\d+) at once", note))]
    assert list(dict.fromkeys(limits)) == [1, 2, 4, 8], "the numbers that were tried"
    assert limits[-1] == 4 and "8 at once gave 1.00 × the throughput of 4" in seen[-1]
    spans = sorted(lives(store, numbers))
    beside = {start: sum(begin < start < end for begin, end, _ in spans) for start, _, _ in spans}
    assert beside[spans[0][0]] == 0 and max(beside.values()) == 7
    after = [others for start, others in beside.items() if start > settled]
    assert after and max(after) <= 3, "with three others at most, once eight had not been worth it"
    assert notes(store) == "", "nothing trains any more"


def test_a_run_that_ran_out_of_memory_beside_others_gets_the_gpu_alone(store, one_gpu, tmp_path):
    folder = tmp_path / "gpu"
    folder.mkdir()
    each, small = {"1": 100.0}, {"cost": 1e9, "steps": 40}  # the known load allows four at the same time
    failing = job(1, folder, each, attempts={"1": {"at": 3, "do": "out_of_memory"}}, **small)
    thread = in_thread(store, failing, *(job(number, folder, each, **small) for number in (2, 3, 4)), slots=one_gpu)
    thread.join(300)
    assert outcomes(store, 1) == ["out_of_memory", "finished"]
    with Queue(store.queue_db) as queue:
        first, again = queue.history(f"{1:016x}")
    assert first["slot"].startswith("cuda:0/") and again["slot"] == "cuda:0"
    ends = [end for _, end, _ in lives(store, (2, 3, 4))]
    assert again["started"] >= max(ends)
    device = read_json(store.attempt_folder(f"{2:016x}", 1) / "spec.json")["device"]
    assert device == {"kind": "cuda", "threads": 1, "memory_gb": 2.5, "count": 1, "share": 0.25}


def test_a_trainer_of_unknown_memory_shares_once_a_run_was_measured(store, one_gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_occupancy, "SAMPLE_S", 0.1)
    monkeypatch.setattr(gpu_occupancy.GpuMemory.__init__, "__defaults__", (lambda: {"GPU-a": 3.0},))
    folder = tmp_path / "gpu"
    folder.mkdir()
    numbers = (1, 2, 3)
    unknown = {"gpu_memory_gb": 0.0, "cost": 1e9, "steps": 40}
    thread = in_thread(store, *(job(n, folder, {"1": 9.0}, **unknown) for n in numbers), slots=one_gpu)
    wait_for(lambda: "alone on the GPU: the memory of the run is unknown" in notes(store))
    thread.join(300)
    spans = sorted(lives(store, numbers))
    assert [slot for *_, slot in spans] == ["cuda:0", "cuda:0/0", "cuda:0/1"]
    assert spans[0][1] <= spans[1][0] and spans[2][0] < spans[1][1]
    with Queue(store.queue_db) as queue:
        assert queue.measured_gpu_gb("stub", "s") == 3.0
        assert queue.measured_gpu_gb("stub", "another study") == 0.0
        queue.enqueue([job(4, folder, {}, **unknown)])
    with Queue(store.queue_db) as queue:
        assert queue._read("SELECT gpu_memory_gb FROM jobs WHERE run_id=?", (f"{4:016x}",)) == [(3.0,)]
