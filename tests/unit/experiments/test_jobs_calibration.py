"""Tests of predictions from measurements: the fit, the usable measurements, and memory from a configuration."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from experiments.config.run_config import RunConfig
from experiments.config.training import OPTIMIZERS, TrainingConfig
from experiments.jobs.attempts.probe import ProbePoint, Speed, keep, kept, of_results
from experiments.jobs.devices.slots import Slot
from experiments.jobs.engines.engine import child_environment
from experiments.jobs.engines.keeper import environment
from experiments.store.checksummed import write_json
from experiments.store.layout import Store
from experiments.tasks import network as footprint
from experiments.tasks.network import LOGIT_TOKENS, disk_bytes, memory_bytes
from experiments.tasks.translation import TASK
from experiments.training import loss
from experiments.training.optimizers import make_optimizers, optimizer_tensors, update
from model import cost as count
from model.config import ModelConfig
from model.network import build_model

COSTS = st.floats(1e8, 1e12)


def points(*pairs, kind="cpu", threads=1):
    return [ProbePoint(kind, threads, cost, seconds) for cost, seconds in pairs]


class TestSpeed:
    @given(st.floats(0, 1), st.floats(1e-12, 1e-9), st.lists(st.floats(1e8, 1e12), min_size=2, max_size=6))
    def test_a_fixed_and_a_proportional_share_are_found(self, fixed, per_operation, costs):
        if max(costs) < 1.5 * min(costs):
            return
        speed = Speed(points(*((c, fixed + per_operation * c) for c in costs)), "cpu", 1)
        cost = sum(costs) / len(costs)
        assert speed.seconds(cost) == pytest.approx(fixed + per_operation * cost, rel=1e-3)

    def test_one_measurement_is_taken_as_proportional(self):
        assert Speed(points((1e9, 0.5)), "cpu", 1).seconds(3e9) == pytest.approx(1.5)

    @given(st.lists(st.tuples(COSTS, st.floats(1e-3, 1e2)), min_size=1, max_size=6), COSTS)
    def test_never_negative(self, pairs, cost):
        assert Speed(points(*pairs), "cpu", 1).seconds(cost) >= 0

    def test_what_was_measured_of_the_same_model_counts_before_the_fit(self):
        speed = Speed(points((1e9, 1.0), (1e9, 3.0), (1e9, 2.0), (5e9, 1.0)), "cpu", 1)
        assert speed.seconds(1.0001e9) == 2.0

    def test_a_gpu_that_was_not_asked_has_bf16_if_it_was_measured(self):
        fp32 = ProbePoint("cuda", 1, 1e9, 0.5, "fp32")
        assert Speed([fp32], "cuda", 1, "auto").seconds(1e9) == 0.5
        assert Speed([fp32, ProbePoint("cuda", 1, 1e9, 0.2, "bf16")], "cuda", 1, "auto").seconds(1e9) == 0.2

    def test_other_devices_and_precisions_do_not_count(self):
        assert not Speed(points((1e9, 1.0)), "cpu", 1, "fp32")
        assert not Speed(points((1e9, 1.0), kind="cuda"), "cpu", 1)
        assert not Speed(points((1e9, 1.0), threads=2), "cpu", 1)


class TestMeasured:
    @pytest.fixture
    def store(self, tmp_path):
        store = Store.open(tmp_path / "store")
        run, folder = "a" * 16, store.run_folder("a" * 16) / "evaluations" / ("e" * 16)
        folder.mkdir(parents=True)
        facts = {"device_kind": "cpu", "threads": 2, "step": 30, "resumed_from": 10, "seconds": 5.0, "attempt": 2}
        facts |= {"precision": "bf16"}
        write_json(store.run_folder(run) / "result.json", facts)
        write_json(folder / "result.json", {"wall_s": 7.0, "precision": "fp32"})
        return store

    def test_only_the_steps_of_the_attempt_that_was_timed(self, store):
        steps, evaluations = of_results(store, {"a" * 16: 1e9, "b" * 16: 1e9})
        assert steps == [ProbePoint("cpu", 2, 1e9, 0.25, "bf16")]
        assert evaluations == [ProbePoint("cpu", 2, 1e9, 7.0, "fp32")]

    def test_probes_are_kept_and_replaced(self, store):
        assert kept(store) == []
        keep(store, points((1e9, 1.0), (2e9, 2.0)))
        keep(store, points((1e9, 1.5)))
        assert {(p.cost, p.seconds) for p in kept(store)} == {(1e9, 1.5), (2e9, 2.0)}


class TestFootprint:
    BASE = ModelConfig()

    @pytest.mark.parametrize(("kind", "each"), [("cpu", 16 + 12), ("cuda", 16)])
    def test_weights_gradients_and_moments_and_a_copy_to_be_saved(self, kind, each):
        small = memory_bytes(self.BASE, (16, 16), 28, kind)
        large = memory_bytes(self.BASE, (10_016, 10_016), 28, kind)
        rows = 10_000 * self.BASE.d_model * each + 28 * 10_000 * 4  # of the embedding; logits of one sentence
        assert large - small == pytest.approx(rows)

    @pytest.mark.parametrize("optimizer", OPTIMIZERS)
    def test_an_optimizers_state_is_what_it_keeps(self, optimizer):
        sizes = self.BASE.model_copy(update={"num_layers": 2, "d_model": 64, "d_ff": 256, "d_k": 8, "d_v": 8})
        settings, vocab = TrainingConfig(optimizer=optimizer), 512
        model = build_model(sizes, vocab)
        optimizers = make_optimizers(model, settings)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        update(optimizers)
        kept = sum(t.numel() for t in optimizer_tensors(model, optimizers, 1).values())
        params = count.num_params(sizes, vocab)
        found = footprint.state_numbers(sizes, (vocab, vocab), settings)
        assert found == pytest.approx(kept / params, abs=0.05)
        plain, its = (memory_bytes(sizes, (vocab, vocab), 28, "cpu", state=state) for state in (2, found))
        assert plain - its == pytest.approx(2 * 4 * (2 - found) * params)  # itself, and the copy to be saved
        assert disk_bytes(params, 3, state=found) == pytest.approx(4 * params * (1 + 3 * (1 + found)))

    def test_logits_are_those_of_the_losss_chunks(self):
        assert LOGIT_TOKENS == {
            "cpu": loss.WEIGHT_CHUNKS * loss.CPU_CHUNK,
            "cuda": (loss.WEIGHT_CHUNKS + 1) * loss.CUDA_CHUNK,
        }

    def test_weights_are_held_once_with_gradient_moments_and_copy(self):
        narrow = ModelConfig(num_layers=1, d_model=16, d_ff=16, num_heads=1, d_k=16, d_v=16)
        small, large = (memory_bytes(narrow, (size, size), 28, "cpu") for size in (16, 10_016))
        each = 16 + 12  # weight, gradient, Adam's two moments; the copy being saved has no gradient
        assert large - small == pytest.approx(10_000 * 16 * each + 28 * 10_000 * 4)

    def test_bf16_halves_activations_and_keeps_kernels(self):
        def needs(tokens, precision, heap, **processor):
            return memory_bytes(self.BASE, (16, 16), tokens, "cpu", precision, heap, **processor)

        for heap in ("glibc", "tcmalloc"):
            kernels = footprint.KERNELS * footprint.KERNEL_BYTES[heap]
            assert needs(28, "bf16", heap) - needs(28, "fp32", heap) > kernels
        wide, narrow = (needs(4096, p, "tcmalloc") - needs(28, p, "tcmalloc") for p in ("fp32", "bf16"))
        assert 0.5 * wide < narrow < 0.6 * wide  # the residual stream stays fp32
        # kernels lie between glibc's activations
        assert needs(4096, "bf16", "glibc") > needs(4096, "fp32", "glibc") == needs(4096, "fp32", "tcmalloc")
        # a processor without instructions for bf16 has none
        plain = [needs(4096, "bf16", heap, kernels=False) for heap in ("glibc", "tcmalloc")]
        assert plain[0] == plain[1] == needs(4096, "bf16", "tcmalloc") - kernels < needs(4096, "fp32", "tcmalloc")

    def test_activations_grow_with_the_batch_up_to_a_micro_batch(self):
        sizes = [memory_bytes(self.BASE, (100, 100), tokens, "cpu") for tokens in (1024, 4096, 25_000)]
        assert sizes[0] < sizes[1] == sizes[2]
        assert memory_bytes(self.BASE, (100, 100), 25_000, "cuda") > sizes[2]

    def test_a_batch_of_a_gpu_has_padding_among_its_activations(self):
        some, more = (memory_bytes(self.BASE, (16, 16), tokens, "cuda") for tokens in (2_800, 5_600))
        logits = 2_800 * 16 * 4
        sentences = count.activation_bytes(self.BASE, 120, 28, 28)  # of 100 without padding
        assert more - some == pytest.approx(sentences + logits)

    def test_graphs_hold_a_second_pass_and_two_more_sets_of_gradients(self):
        def needs(tokens, graphs):
            return memory_bytes(self.BASE, (16, 16), tokens, "cuda", graphs=graphs)

        gradients = 4 * count.num_params(self.BASE, 16)
        one_pass = needs(2_800, graphs=False) - 4 * gradients - footprint.PROCESS_BYTES["cuda"]
        assert needs(2_800, graphs=True) - needs(2_800, graphs=False) == pytest.approx(one_pass + 2 * gradients)

    def test_graphs_count_on_a_gpu_alone(self):
        plain, graphs = (RunConfig(training=TrainingConfig(graphs=graphs)) for graphs in (False, True))
        assert TASK.memory_bytes(plain, "cpu") == TASK.memory_bytes(graphs, "cpu")
        assert TASK.memory_bytes(graphs, "cuda") > 1.5 * TASK.memory_bytes(plain, "cuda")

    def test_disk_holds_weights_and_the_checkpoints_that_are_kept(self):
        params = count.num_params(self.BASE, 100, 100)
        assert disk_bytes(params, 2) == 4 * params + 2 * 12 * params


def test_a_childs_environment_on_a_node_is_the_launchs_and_the_jobs_own():
    wanted, given_ = {"PATH": "/launch", "OMP_NUM_THREADS": "2"}, {
        "PATH": "/node", "HOME": "/root", "CUDA_VISIBLE_DEVICES": "3", "SLURM_JOB_ID": "7", "OMP_NUM_THREADS": "64",
    }  # fmt: skip
    assert environment(wanted, given_) == {
        "PATH": "/launch", "OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "3", "SLURM_JOB_ID": "7",
    }  # fmt: skip
    assert environment({**wanted, "CUDA_VISIBLE_DEVICES": ""}, given_)["CUDA_VISIBLE_DEVICES"] == ""


def test_of_the_job_and_of_mps_the_node_knows_more_than_the_coordinator():
    """The coordinator may run as a job on a node whose MPS daemon it cannot see."""
    wanted = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "9", "CUDA_MPS_PIPE_DIRECTORY": "/login", "CUDA_DEVICE_ORDER": "x"}
    given_ = {"SLURM_JOB_ID": "7", "CUDA_MPS_PIPE_DIRECTORY": "/node"}
    assert environment(wanted, given_) == {**given_, "CUDA_DEVICE_ORDER": "x"}
    assert environment(wanted, {}) == {"CUDA_DEVICE_ORDER": "x"}


def test_children_number_gpus_as_nvidia_smi_does(monkeypatch):
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    assert child_environment(Slot("cuda:0", "cuda", 2, "1"), 2)["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    assert child_environment(Slot("cuda:0", "cuda", 2, "1"), 2)["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"
