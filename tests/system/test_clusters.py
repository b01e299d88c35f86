"""Stub runs on real Slurm and Ray with two nodes each: nodes that die, signals, coordinators that end."""

import pytest

from experiments.errors import UserError
from experiments.jobs.coordinator.work import work
from experiments.jobs.devices.slots import parse_cluster_slots
from experiments.jobs.queue.queue import Queue
from experiments.jobs.queue.states import State
from experiments.store.layout import Store

from .stub_store import CHILD, assert_whole, events, make, outcomes, resumed_at, row, wait_for

SLOTS = parse_cluster_slots("cpu:4")


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
        enqueue(store, *(make(n, steps=150, step_s=0.2) for n in range(4)))
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
            assert_whole(store, number, steps=150)
        for number in lost:
            assert outcomes(store, number) == ["killed", "finished"]
            assert resumed_at(store, 2, number)[0] >= 2 and self.node(store, number, 2) == "n2"

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


@pytest.mark.ray
class TestRay:
    @pytest.fixture(autouse=True)
    def cluster(self, ray_cluster):
        return ray_cluster

    def go(self, store, cluster, until="empty"):
        from experiments.jobs.engines.ray import RayEngine

        return work(store, SLOTS, engine=RayEngine({"address": cluster.address}), child=CHILD, until=until)

    def test_runs_finish_and_give_their_processors_back(self, store, cluster):
        enqueue(store, *(make(n, steps=10, step_s=0.1) for n in range(6)))
        assert self.go(store, cluster).finished == 6
        for number in range(6):
            assert_whole(store, number, steps=10)

    def test_runs_outlive_their_coordinator_and_are_adopted(self, store, cluster):
        enqueue(store, make(1, steps=100, step_s=0.2))
        self.go(store, cluster, until="submitted")
        wait_for(lambda: under_way(store, 1), 180)
        self.go(store, cluster)
        assert outcomes(store, 1) == ["finished"]
        assert_whole(store, 1, steps=100)

    def test_a_node_that_dies_costs_its_runs_nothing_but_time(self, store, cluster):
        enqueue(store, *(make(n, steps=300, step_s=0.2) for n in range(3)))
        self.go(store, cluster, until="submitted")
        wait_for(lambda: under_way(store, 0, 1, 2), 240)
        cluster.remove_node(cluster.nodes.pop(), allow_graceful=False)
        cluster.nodes.append(cluster.add_node(num_cpus=2, object_store_memory=80_000_000))
        assert self.go(store, cluster).finished == 3
        lost = [n for n in range(3) if len(outcomes(store, n)) > 1]
        assert 0 < len(lost) < 3
        for number in range(3):
            assert_whole(store, number, steps=300)
        for number in lost:
            assert outcomes(store, number) == ["killed", "finished"]
            assert resumed_at(store, 2, number)[0] >= 2

    def test_the_commands_of_the_guide(self, cli, tiny, tmp_path, cluster):
        cli("queue", tiny, "--rows", "base", "--store", tmp_path / "runs")
        options = ["--engine", "ray", "--address", cluster.address, "--devices", "cpu:2"]
        cli("work", *options, "--store", tmp_path / "runs")
        cli("report", tiny, "--rows", "base", "--store", tmp_path / "runs", "--strict")

    def test_no_cluster_is_said(self, store):
        import ray

        from experiments.jobs.engines.ray import RayEngine

        ray.shutdown()
        with pytest.raises(UserError, match="ray start"):
            RayEngine({"address": "127.0.0.1:1"})
