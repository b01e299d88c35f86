"""Stub runs on real Slurm and Ray clusters of two nodes: nodes die, signals arrive, and coordinators end."""

import contextlib
import json
import re
import signal
import subprocess
import threading
from dataclasses import dataclass

import pytest

from experiments.errors import UserError
from experiments.jobs.coordinator.work import work
from experiments.jobs.devices.node import Node
from experiments.jobs.devices.slots import parse_cluster_slots
from experiments.jobs.engines.by_name import load_engine
from experiments.jobs.engines.worker_pool import WorkerPool
from experiments.jobs.queue.job import State
from experiments.jobs.queue.queue import Queue
from experiments.store.layout import Store

from .conftest import command, environment
from .stub_store import CHILD, assert_whole, events, make, none_doubled, outcomes, resumed_at, row, wait_for

SLOTS = parse_cluster_slots("cpu:4")
NODE = Node.parse("cpu:2")


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "store")


def enqueue(store, *jobs):
    queue = Queue(store.queue_db)
    queue.enqueue(jobs)
    queue.close()


def ref(store, number):
    queue = Queue(store.queue_db)
    found = queue.job(f"{number:016x}").ref
    queue.close()
    return found


def under_way(store, *numbers):
    return all(any(e["kind"] == "checkpoint" for e in events(store, 1, n)) for n in numbers)


def on_slurm(store, **settings):
    from experiments.jobs.engines.slurm import SlurmEngine

    return SlurmEngine(store.root / "slurm", settings)


@pytest.mark.slurm
class TestSlurm:
    @pytest.fixture(autouse=True)
    def cluster(self, slurm):
        return slurm

    def go(self, store, until="empty"):
        return work(store, SLOTS, engine=on_slurm(store), child=CHILD, until=until)

    def node(self, store, number, attempt=1):
        log = store.attempt_folder(f"{number:016x}", attempt) / "log.txt"
        return log.read_text().split()[-1]

    def test_runs_finish_on_both_nodes_as_one_array(self, store):
        enqueue(store, *(make(n, steps=10, step_s=0.2) for n in range(4)))
        assert self.go(store).finished == 4
        for number in range(4):
            assert_whole(store, number, steps=10)
        assert {self.node(store, n) for n in range(4)} == {"n1", "n2"}
        scripts = list((store.root / "slurm").glob("*_submission.sh"))
        assert len(scripts) == 1 and "--array=0-3" in scripts[0].read_text()

    def test_detached_runs_are_taken_in_by_a_later_command(self, store, cluster):
        enqueue(store, make(1, steps=10, step_s=0.2), make(2, attempts={"1": {"at": 3, "do": "bug"}}))
        self.go(store, until="submitted")
        assert not store.coordinator() and row(store, 1).state is State.RUNNING
        wait_for(lambda: any(e["kind"] == "finished" for e in events(store, 1, 1)), 120)
        wait_for(lambda: (store.attempt_folder(f"{1:016x}", 1) / "exit.json").exists(), 30)
        wait_for(lambda: (store.attempt_folder(f"{2:016x}", 1) / "exit.json").exists(), 60)
        work(store, [], engine=on_slurm(store), until="settled")
        assert_whole(store, 1, steps=10)
        assert row(store, 2).state is State.FAILED and "stub says bug" in row(store, 2).error

    @pytest.mark.nightly
    def test_a_later_coordinator_goes_on_watching_what_still_runs(self, store):
        enqueue(store, make(1, steps=30, step_s=0.2))
        self.go(store, until="submitted")
        wait_for(lambda: under_way(store, 1), 120)
        work(store, [], engine=on_slurm(store), until="settled")
        assert row(store, 1).state is State.RUNNING
        self.go(store)
        assert outcomes(store, 1) == ["finished"], "the same attempt, not another one"
        assert_whole(store, 1, steps=30)

    def test_the_signal_before_a_time_limit_saves_and_the_run_is_submitted_anew(self, store, cluster):
        enqueue(store, make(1, steps=60, step_s=0.1))
        self.go(store, until="submitted")
        wait_for(lambda: under_way(store, 1), 120)
        cluster.call("scancel", "--signal=USR2", ref(store, 1)["id"])
        self.go(store)
        assert outcomes(store, 1) == ["preempted", "finished"]
        assert resumed_at(store, 2, 1)[0] >= 2
        assert_whole(store, 1, steps=60)

    def test_a_node_that_dies_costs_its_runs_nothing_but_time(self, store, cluster):
        enqueue(store, *(make(n, steps=90, step_s=0.2) for n in range(4)))
        self.go(store, until="submitted")
        wait_for(lambda: under_way(store, 0, 1, 2, 3), 180)
        lost = [n for n in range(4) if self.node(store, n) == "n1"]
        assert 0 < len(lost) < 4
        cluster.kill_node("n1")
        try:
            assert self.go(store).finished == 4
        finally:
            cluster.start_node("n1")
        for number in range(4):
            assert_whole(store, number, steps=90)
        for number in lost:
            assert outcomes(store, number) == ["killed", "finished"]
            assert resumed_at(store, 2, number)[0] >= 2 and self.node(store, number, 2) == "n2"

    @pytest.mark.nightly
    def test_cancelled_while_detached_ends_at_the_next_command(self, store):
        enqueue(store, make(1, steps=2000, step_s=0.1))
        self.go(store, until="submitted")
        wait_for(lambda: under_way(store, 1), 120)
        queue = Queue(store.queue_db)
        queue.cancel([f"{1:016x}"])
        queue.close()
        self.go(store)
        assert row(store, 1).state is State.CANCELLED
        assert [e["kind"] for e in events(store, 1, 1)][-1] == "preempted"

    def test_the_commands_of_the_guide(self, cli, tiny, tmp_path):
        where = ["--store", tmp_path / "runs", "--state-dir", tmp_path / "state"]
        cli("queue", tiny, "--rows", "base", *where)
        settings = ["--engine-set", "partition=main", "--engine-set", "time=30"]
        cli("work", "--engine", "slurm", "--devices", "cpu:2", *settings, *where, "--detach")
        wait_for(lambda: "1 finished" in cli("status", *where).stdout, 180)
        cli("report", tiny, "--rows", "base", *where, "--strict")

    def test_what_slurm_refuses_is_the_users_to_mend(self, store):
        enqueue(store, make(1))
        with pytest.raises(UserError, match="Slurm refused"):
            work(store, SLOTS, engine=on_slurm(store, partition="no-such"), child=CHILD)
        assert self.go(store).finished == 1

    def test_another_engine_is_refused_while_runs_are_out(self, store):
        enqueue(store, make(1, steps=50, step_s=0.1))
        self.go(store, until="submitted")
        with pytest.raises(UserError, match="--engine slurm"):
            work(store, SLOTS, child=CHILD)
        self.go(store)


@dataclass
class OnWorkers:
    """Runs a coordinator whose node workers have two slots each."""

    engine: str
    settings: dict[str, str]

    def go(self, store, until="empty", workers=2, node=NODE, setup=(), **settings):
        pool = WorkerPool(workers, node)
        engine = load_engine(self.engine, {**self.settings, **settings}, store.root, workers, pool, setup)
        slots = node.slots(workers if until == "empty" else 20) if until != "settled" else []
        return work(store, slots, engine=engine, child=CHILD, until=until)


def worker_jobs(cluster):
    listed = cluster.call("squeue", "--noheader", "--array", "--format=%i %N", "--states=RUNNING").split()
    return dict(zip(listed[1::2], listed[::2], strict=True))


@pytest.mark.slurm
class TestWorkersOnSlurm:
    @pytest.fixture(autouse=True)
    def cluster(self, slurm):
        return slurm

    @pytest.fixture
    def workers(self):
        return OnWorkers("slurm", {})

    @pytest.mark.nightly
    def test_eight_runs_through_two_allocations_of_which_one_dies(self, store, cluster, workers):
        enqueue(store, *(make(n, steps=60, step_s=0.2) for n in range(8)))
        working = threading.Thread(target=lambda: summaries.append(workers.go(store)))
        summaries = []
        working.start()
        wait_for(lambda: sum(under_way(store, n) for n in range(8)) >= 4, 600)
        assert sorted(worker_jobs(cluster)) == ["n1", "n2"]
        assert sum(bool(store.attempts(f"{n:016x}")) for n in range(8)) == 4, "as many as there are slots"
        cluster.kill_node("n1")
        try:
            working.join(900)
        finally:
            cluster.start_node("n1")
        assert summaries[0].finished == 8
        none_doubled(store, range(8), 60)
        killed = [n for n in range(8) if outcomes(store, n) == ["killed", "finished"]]
        assert len(killed) == 2 and all(outcomes(store, n) == ["finished"] for n in set(range(8)) - set(killed))
        wait_for(lambda: not worker_jobs(cluster), 60)

    def test_a_worker_whose_time_ends_hands_its_runs_over(self, store, cluster, workers):
        enqueue(store, *(make(n, steps=50, step_s=0.2) for n in range(2)))
        working = threading.Thread(target=lambda: summaries.append(workers.go(store, workers=1)))
        summaries = []
        working.start()
        wait_for(lambda: under_way(store, 0, 1), 180)
        [first] = worker_jobs(cluster).values()
        cluster.call("scancel", "--signal=USR2", first)  # Slurm sends this signal before a time limit
        working.join(900)
        assert summaries[0].finished == 2
        none_doubled(store, range(2), 50)
        assert [outcomes(store, n) for n in range(2)] == [["preempted", "finished"]] * 2

    def test_a_table_equals_a_local_one_though_a_node_dies(self, cluster, tiny, tmp_path):
        table = [str(tiny), "--rows", "base,h1", "--seeds", "2", "--set", "training.train_steps=120"]
        local = call("run", *table, "--store", tmp_path / "local", "--devices", "cpu:2")
        assert local.returncode == 0, local.stderr
        options = ["--engine", "slurm", "--workers", "2", "--devices", "cpu:2", "--engine-set", "partition=main"]
        with begun("run", *table, "--store", tmp_path / "runs", *options, log=tmp_path / "log") as command:
            wait_for(lambda: trained_on(tmp_path / "runs", "n1"), 900)
            encoded = inodes(tmp_path / "runs" / "corpora")
            cluster.kill_node("n1")
            try:
                assert command.wait(1800) == 0, (tmp_path / "log").read_text()
            finally:
                cluster.start_node("n1")
        stores = [tmp_path / "local", tmp_path / "runs"]
        made, again = (
            scores(call("report", *table, "--strict", "--json", "--store", store).stdout) for store in stores
        )
        assert made == again and sum(len(run_ids) for _, run_ids, *_ in made) == 4
        with Queue(Store.open(tmp_path / "runs").queue_db) as queue:
            ends = [tuple(attempt["outcome"] for attempt in queue.history(job.run_id)) for job in queue.status()]
        assert set(ends) == {("finished",), ("killed", "finished")}
        assert inodes(tmp_path / "runs" / "corpora") == encoded, "the nodes only read the corpus"

    @pytest.mark.nightly
    def test_ctrl_c_of_the_command_ends_runs_after_a_checkpoint_and_gives_the_nodes_back(self, cluster, tiny, tmp_path):
        table = [str(tiny), "--rows", "base", "--seeds", "3", "--set", "training.train_steps=100000"]
        options = ["--engine", "slurm", "--workers", "1", "--devices", "cpu:2", "--store", tmp_path / "runs"]
        with begun("run", *table, *options, log=tmp_path / "log") as command:
            wait_for(lambda: trained_on(tmp_path / "runs", ""), 900)
            command.send_signal(signal.SIGINT)
            assert command.wait(900) == 128 + signal.SIGINT
        wait_for(lambda: not worker_jobs(cluster), 120)
        store = Store.open(tmp_path / "runs")
        with Queue(store.queue_db) as queue:
            assert [job.state for job in queue.status()] == [State.WAITING] * 3
        assert not list(store.root.glob("workers/*/taken/*")) + list(store.root.glob("workers/items/*"))

    def test_setup_lines_are_seen_by_the_runs(self, store, workers):
        enqueue(store, make(1))
        workers.go(store, workers=1, setup=["export SLURMD_NODENAME=of-the-setup-lines"])
        log = store.attempt_folder(f"{1:016x}", 1) / "log.txt"
        assert log.read_text().split()[-1] == "of-the-setup-lines"

    def test_a_setup_line_that_fails_is_said_with_its_output(self, store, workers):
        enqueue(store, make(1), make(2))
        lines = ["module() { echo $1 $2: unknown module; return 7; }", "module load no/such"]
        assert workers.go(store, setup=lines).failed == 2
        with Queue(store.queue_db) as queue:
            errors = [job.error for job in queue.status()]
            queue.retry([job.run_id for job in queue.status()])
        for said in errors:
            assert re.search(r"--setup 'module load no/such' failed on the node n[12] \(exit code 7\)", said)
            assert "load no/such: unknown module" in said
        assert workers.go(store).finished == 2

    def test_a_partition_that_slurm_does_not_have_is_the_users_to_mend(self, store, workers):
        enqueue(store, make(1))
        with pytest.raises(UserError, match="Slurm refused"):
            workers.go(store, partition="no-such")
        assert workers.go(store).finished == 1

    @pytest.mark.nightly
    def test_a_store_that_nodes_do_not_see_is_said(self, tiny, tmp_path):
        """The command writes to a private mount that slurmd does not see."""
        if subprocess.run(["unshare", "-m", "true"], check=False).returncode:
            pytest.skip("needs the right to mount a disk")
        mine = tmp_path / "mine"
        mine.mkdir()
        words = command("run", tiny, "--rows", "base", "--store", mine / "runs", "--engine", "slurm", "--workers", "1")
        mounted = f'mount -t tmpfs none {mine} && exec "$@" --devices cpu:2'
        shell = ["unshare", "-m", "sh", "-c", mounted, "sh", *words]
        done = subprocess.run(shell, capture_output=True, text=True, env=environment(), check=False)
        assert done.returncode == 2 and "Traceback" not in done.stderr
        assert "ended before it began" in done.stderr and f"does not see the store {mine / 'runs'}" in done.stderr


def call(*arguments):
    return subprocess.run(command(*arguments), capture_output=True, text=True, env=environment(), check=False)


@contextlib.contextmanager
def begun(*arguments, log):
    """Start a command and yield its process. Kill the process at the end if it still runs."""
    with log.open("w") as out:
        process = subprocess.Popen(command(*arguments), stdout=out, stderr=out, env=environment())
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def trained_on(root, node):
    """Return whether a training on the node has saved a checkpoint and still runs."""
    for path in root.glob("runs/*/attempts/*/events.jsonl"):
        text = path.read_text()
        if '"checkpoint"' in text and '"trained"' not in text and node_of(path.parent).endswith(node):
            return True
    return False


def node_of(attempt):
    """Return the name of the node whose worker has taken this attempt, or "?" if none has."""
    run, number = attempt.parent.parent.name, attempt.name
    for taken in attempt.parents[3].glob(f"workers/*/taken/*-{run}-{number}"):
        return json.loads((taken.parents[1] / "began.json").read_text())["host"]
    return "?"


def scores(text):
    names = ("row", "run_ids", "ppl", "ppl_sd", "bleu", "bleu_sd")
    return [tuple(row[name] for name in names) for row in json.loads(text)]


def inodes(folder):
    return {str(path): path.stat().st_ino for path in folder.rglob("*") if path.is_file()}
