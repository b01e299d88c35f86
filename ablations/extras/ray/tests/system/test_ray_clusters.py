"""Stub runs on a real Ray cluster with two nodes: nodes that die, coordinators that end, node workers."""

import threading

import pytest

from experiments.errors import UserError
from experiments.jobs.coordinator.work import work
from experiments.jobs.queue.queue import Queue
from tests.system.conftest import cli, shared_torch, tiny
from tests.system.stub_store import CHILD, assert_whole, make, none_doubled, outcomes, resumed_at, wait_for
from tests.system.test_clusters import SLOTS, OnWorkers, enqueue, store, under_way

__all__ = ["cli", "shared_torch", "store", "tiny"]


@pytest.mark.ray
class TestRay:
    @pytest.fixture(autouse=True)
    def cluster(self, ray_cluster):
        return ray_cluster

    def go(self, store, cluster, until="empty"):
        from ablations.extras.ray.engine import RayEngine

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

        from ablations.extras.ray.engine import RayEngine

        ray.shutdown()
        with pytest.raises(UserError, match="ray start"):
            RayEngine({"address": "127.0.0.1:1"})


@pytest.mark.ray
class TestWorkersOnRay:
    @pytest.fixture
    def workers(self, ray_cluster):
        return OnWorkers("ray", {"address": ray_cluster.address})

    @pytest.mark.nightly
    def test_five_runs_on_two_nodes_of_which_one_dies(self, store, ray_cluster, workers):
        enqueue(store, *(make(n, steps=100, step_s=0.2) for n in range(5)))
        working = threading.Thread(target=lambda: summaries.append(workers.go(store)))
        summaries = []
        working.start()
        wait_for(lambda: sum(under_way(store, n) for n in range(5)) >= 4, 600)
        ray_cluster.remove_node(ray_cluster.nodes.pop(), allow_graceful=False)
        working.join(900)  # the other node suffices
        ray_cluster.nodes.append(ray_cluster.add_node(num_cpus=2, object_store_memory=80_000_000))
        assert summaries[0].finished == 5
        none_doubled(store, range(5), 100)
        assert sorted(outcomes(store, n) for n in range(5)) == [["finished"]] * 3 + [["killed", "finished"]] * 2

    def test_a_setup_line_that_fails_is_said_with_its_output(self, store, workers):
        enqueue(store, make(1))
        assert workers.go(store, workers=1, setup=["ls /nowhere"]).failed == 1
        with Queue(store.queue_db) as queue:
            assert "--setup 'ls /nowhere' failed on the node" in queue.status()[0].error
            queue.retry([f"{1:016x}"])
        assert workers.go(store, workers=1, setup=["true"]).finished == 1
