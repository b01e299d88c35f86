"""Tests of a child that really runs out of memory, because its limit is only a little above the size of its imports."""

import sys
import textwrap
from pathlib import Path

import pytest

from experiments.jobs.coordinator.work import work
from experiments.jobs.devices.slots import Slot
from experiments.jobs.engines.local import LocalEngine
from experiments.jobs.queue.queue import Queue
from experiments.processes.processor import allocates_by_tcmalloc
from experiments.store.layout import Store
from experiments.tasks.load import task_of

from .conftest import Cli, as_json

pytestmark = pytest.mark.slow

CHILD = """
import resource, sys
from pathlib import Path

import torch._dynamo, sentencepiece, sacrebleu, safetensors.torch
from experiments.child.run import main

[now] = [int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmSize")]
resource.setrlimit(resource.RLIMIT_AS, (now + {room_mb} * 2**20,) * 2)
sys.exit(main(Path(sys.argv[1])))
"""
DEEP = [
    "model.num_layers=6",
    "model.dropout=0.0",
    "model.d_ff=1024",
    "training.tokens_per_batch=4000",
    "training.train_steps=3",
]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
@pytest.mark.nightly
# The system's malloc reserves 64 MB of address space for each thread that allocates memory.
@pytest.mark.parametrize(
    ("allocating", "room_mb"),
    [("as the system does", 400), ("by tcmalloc", 260)],
)
def test_a_run_out_of_memory_goes_on_with_smaller_micro_batches_of_the_same_batch(
    cli: Cli, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allocating: str, room_mb: int
) -> None:
    if allocating == "as the system does":
        monkeypatch.setenv("LD_PRELOAD", "")
    elif not allocates_by_tcmalloc():
        pytest.skip("there is no tcmalloc: apt-get install libtcmalloc-minimal4")
    child = tmp_path / "child.py"
    child.write_text(textwrap.dedent(CHILD).format(room_mb=room_mb))
    asked = [tiny, "--rows", "base", *(word for setting in DEEP for word in ("--set", setting))]
    cli("queue", *asked, "--store", tmp_path / "store")
    store = Store.open(tmp_path / "store")
    command = (sys.executable, str(child))
    summary = work(store, [Slot("cpu:0", "cpu")], task_of, engine=LocalEngine(fork=False), child=command)
    queue = Queue(store.queue_db)
    [row] = queue.status()
    history = queue.history(row.run_id)
    queue.close()
    assert summary.finished == 1, row.error
    *short, last = [attempt["outcome"] for attempt in history]
    assert set(short) == {"out_of_memory"} and last == "finished"
    result = store.result(row.run_id)
    assert result is not None
    assert 64 <= result.pinned["micro_batch_tokens"] < 4000
    cli("run", *asked, "--store", tmp_path / "roomy", "--devices", "cpu:1")
    undisturbed, forced = (
        as_json(cli("report", *asked, "--store", tmp_path / name, "--format", "json"))[0]["ppl"]
        for name in ("roomy", "store")
    )
    assert forced == pytest.approx(undisturbed, rel=1e-4)


ROOM_GB = 0.55  # imports need 0.3 GB


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="memory is capped on Linux")
def test_a_run_told_its_memory_stays_below_it(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    asked = [tiny, "--rows", "base", *(word for setting in DEEP for word in ("--set", setting))]
    cli("run", *asked, "--store", tmp_path / "store", "--devices", f"cpu:1@{ROOM_GB}GB")
    store = Store.open(tmp_path / "store", create=False)
    with Queue(store.queue_db) as queue:
        [row] = queue.status()
        outcomes = [attempt["outcome"] for attempt in queue.history(row.run_id)]
    assert outcomes[0] == "out_of_memory" and outcomes[-1] == "finished"
    result = store.result(row.run_id)
    assert result is not None and result.pinned["micro_batch_tokens"] < 4000
    assert result.peak_memory_bytes < (ROOM_GB + 0.2) * 1e9  # shared pages of libraries are not counted


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="memory is capped on Linux")
def test_a_run_queued_for_more_memory_than_its_limit_says_so(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    """`work` checks no plan, so the child's libraries do not fit, and the error names the limit."""
    cli("queue", tiny, "--rows", "base", "--store", tmp_path / "store")
    cli("work", "--store", tmp_path / "store", "--devices", "cpu:1@0.1GB", code=1)
    shown = cli("status", "--store", tmp_path / "store").stdout
    assert "The run may use 0.1 GB (--devices)" in shown and ". ." not in shown
