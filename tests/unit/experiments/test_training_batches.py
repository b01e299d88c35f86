"""Micro-batches of a run are padded to few shapes in bf16, and have the same pairs in any precision."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.attempt_context import AttemptContext
from experiments.config.run_config import RunConfig
from experiments.config.training import TrainingConfig
from experiments.data.collate import Batch
from experiments.data.shapes import MOST_SHAPES
from experiments.device import Device
from experiments.device_spec import DeviceSpec
from experiments.run_spec import RunSpec
from experiments.store.spec import AttemptSpec
from experiments.tasks import pair_batches
from experiments.tasks.pair_batches import Batches
from experiments.tasks.train_network import to_tensors
from experiments.tasks.translation import TASK
from experiments.training.loss import Objective, real_places
from model.network import build_model
from tests.lines import random_config
from tests.slow import mostly_slow

STEPS = range(1, 41)
Sentences = Counter[tuple[int, ...]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    TASK.prepare(_config(), folder, lambda *_: None)
    return folder


def _config(**training: object) -> RunConfig:
    return RunConfig.from_mapping(
        {
            "model": {"num_layers": 1, "d_model": 8, "d_ff": 8, "num_heads": 2, "d_k": 4, "d_v": 4},
            "data": {"vocab_size": 300, "builtin_pairs": 400},
            "training": {"tokens_per_batch": 400, **training},
        }
    )


def _batches(
    store: Path, precision: str, pinned: int = 0, config: RunConfig | None = None, kind: str = "cpu", **known: object
) -> Batches:
    config, device = config or _config(), DeviceSpec(kind)
    known |= {"precision": precision, **({"micro_batch_tokens": pinned} if pinned else {})}
    attempt = AttemptSpec(RunSpec("x", {}, TASK.inputs(config, store)), str(store), 1, device, pinned=known)
    context = AttemptContext(attempt, store, lambda *_, **__: None, lambda: False)
    return Batches(config, context, TASK.encoded(config, context).train)


def _sentences(parts: list[Batch[torch.Tensor]]) -> Sentences:
    rows = (row[row != 0].tolist() for part in parts for row in part.target_output)
    return Counter(tuple(row) for row in rows if row)


def test_in_bf16_a_training_has_few_shapes_and_the_same_pairs(store: Path) -> None:
    free, few = _batches(store, "fp32"), _batches(store, "bf16")
    shapes = {(*part.source.shape, part.target_input.shape[1]) for step in STEPS for part in few(step)}
    assert len(shapes) <= MOST_SHAPES
    assert len(shapes) < len({(*part.source.shape, part.target_input.shape[1]) for s in STEPS for part in free(s)})
    for step in STEPS:
        assert _sentences(few(step)) == _sentences(free(step))
        assert [part.num_target_tokens for part in few(step)] == [part.num_target_tokens for part in few(step)]
        for one in ("num_source_tokens", "num_target_tokens"):
            assert sum(getattr(part, one) for part in few(step)) == sum(getattr(part, one) for part in free(step))
    assert few.describe()["shapes"] <= MOST_SHAPES
    assert 0 < free.describe()["padding"] < few.describe()["padding"] < 0.25


def test_shapes_do_not_depend_on_what_was_asked_before(store: Path) -> None:
    straight, resumed = _batches(store, "bf16"), _batches(store, "bf16")
    expected = [straight(step) for step in STEPS][19]
    assert all(torch.equal(a.source, b.source) for a, b in zip(expected, resumed(20), strict=True))


def test_a_batch_that_padding_makes_a_little_too_large_is_not_cut(store: Path) -> None:
    whole = _batches(store, "fp32", pinned=400)
    assert {len(whole(step)) for step in STEPS} == {1}
    places = [max(p.source.numel(), p.target_input.numel()) for step in STEPS for p in whole(step)]
    assert 400 < max(places) <= 400 * pair_batches.LARGEST_UNCUT
    cut = _batches(store, "fp32", pinned=100)
    assert all(max(p.source.numel(), p.target_input.numel()) <= 100 for step in STEPS for p in cut(step))


@pytest.mark.parametrize("pinned", [0, 400])
def test_the_pairs_of_a_batch_that_is_not_cut_are_in_the_order_of_their_lengths(store: Path, pinned: int) -> None:
    """As those of a part are. Another order puts the same dropout on other pairs: other numbers."""
    free = _batches(store, "fp32", pinned=pinned)
    for step in STEPS:
        (part,) = free(step)
        lengths = torch.maximum((part.source != 0).sum(1), (part.target_output != 0).sum(1))
        assert torch.equal(lengths, lengths.sort(stable=True).values)


def test_a_network_whose_products_depend_on_the_data_keeps_its_free_shapes(store: Path) -> None:
    line = "N * (self_attention, experts(count=2))"
    config = RunConfig.from_mapping(
        {**_config().model_dump(), "model": {**_config().model_dump()["model"], "encoder": line}}
    )
    assert "shapes" not in _batches(store, "bf16", config=config).describe()


def test_places_of_real_tokens_come_with_the_batch_and_pinned() -> None:
    ids = np.array([[5, 3, 0], [4, 5, 3]])
    batch = to_tensors(Batch(ids, ids, ids, 5, 5))
    assert batch.real is not None and batch.real.tolist() == [0, 1, 3, 4, 5]
    device = Device(torch.device("cpu"), "fp32", 1)
    objective = Objective(build_model(random_config(PADDED[0]), 20), TrainingConfig())
    ahead, here = (objective.inputs(one, device) for one in (batch, replace(batch, real=None)))
    assert all(torch.equal(a, b) for a, b in zip(ahead[2:5], here[2:5], strict=True))
    assert ahead[4].tolist() == [5, 3, 4, 5, 3]
    assert ahead[5] is here[5] is None
    pinned: list[int] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(tensor.numel()) or tensor)
        to_tensors(Batch(ids, ids, ids, 5, 5), pin=True)
    assert pinned == [6, 6, 6, 5]


@pytest.fixture
def unpinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)


@pytest.mark.usefixtures("unpinned")
def test_on_a_gpu_a_step_is_one_micro_batch_of_one_of_few_shapes(store: Path) -> None:
    gpu, free = _batches(store, "fp32", kind="cuda"), _batches(store, "fp32")
    shapes = {tuple(shape) for shape in gpu.pinned["shapes"]}
    assert 1 < len(shapes) <= MOST_SHAPES
    for step in STEPS:
        (part,) = gpu(step)
        assert (*part.source.shape, part.target_input.shape[1]) in shapes
        assert _sentences([part]) == _sentences(free(step))
        assert part.real is not None
        rows = min(part.target_output.numel(), _config().training.tokens_per_batch)
        assert len(part.real) == len(part.real.unique()) == rows >= part.num_target_tokens
        labels = part.target_output.flatten()[part.real]
        assert (labels[: part.num_target_tokens] != 0).all() and (labels[part.num_target_tokens :] == 0).all()
    padding = gpu.describe()["padding"]
    assert free.describe()["padding"] < padding <= free.describe()["padding"] + pair_batches.MORE_PADDING["cuda"]


@pytest.mark.usefixtures("unpinned")
@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_batch_is_split_only_above_the_largest_micro_batch(
    store: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    for most, split in ((400, False), (100, True)):
        monkeypatch.setattr(pair_batches, "MICRO_BATCH_TOKENS", {kind: most})
        found = _batches(store, "fp32", kind=kind)
        assert found.pinned["micro_batch_tokens"] == most
        assert any(len(found(step)) > 1 for step in STEPS) == split


@pytest.mark.usefixtures("unpinned")
@pytest.mark.parametrize(("kind", "precision"), [("cpu", "bf16"), ("cpu", "fp32"), ("cuda", "bf16")])
def test_a_later_attempt_keeps_micro_batches_and_shapes_of_the_first(
    store: Path, monkeypatch: pytest.MonkeyPatch, kind: str, precision: str
) -> None:
    first = _batches(store, precision, kind=kind)
    expected, free = first(7), first.pinned["shapes"] == []
    assert free == (precision == "fp32")
    monkeypatch.setattr(pair_batches, "MORE_PADDING", {"cpu": -1.0, "cuda": -1.0})  # new shapes would be refused
    monkeypatch.setattr(pair_batches, "MICRO_BATCH_TOKENS", {"cpu": 100, "cuda": 100})
    later = _batches(store, precision, kind=kind, **first.pinned)
    assert later.pinned == first.pinned and later.describe() == first.describe()
    for one, other in zip(expected, later(7), strict=True):
        assert torch.equal(one.source, other.source) and torch.equal(one.target_output, other.target_output)


PADDED = [seed for seed in range(200) if not random_config(seed).not_compiled()]


@pytest.mark.parametrize("seed", mostly_slow(PADDED, 6))
def test_rows_and_columns_of_padding_change_no_gradient_of_any_network(seed: int) -> None:
    torch.manual_seed(1)
    model = build_model(random_config(seed), 20).double()
    full = model.config.softmax == "full"
    objective = Objective(model, TrainingConfig())
    device = Device(torch.device("cpu"), "fp32", 1)
    ids = torch.randint(4, 20, (3, 5))
    found = []
    # as it is; padded; padded, with rows of padding in the loss as well
    for rows, columns, labels in ((0, 0, 0), (2, 3, 0), (2, 3, 20 * full)):
        sides = [torch.nn.functional.pad(side, (0, columns, 0, rows)) for side in (ids, ids.flip(0), ids.flip(1))]
        batch = Batch(*sides, 15, 15, real=real_places(sides[2], labels))
        loss, nll = objective(*objective.inputs(batch, device))
        parameters = [p for p in model.parameters() if p.requires_grad]
        found.append((loss, nll, *torch.autograd.grad(loss, parameters, allow_unused=True)))
    for tight, *others in zip(*found, strict=True):
        for padded in others:
            assert (tight is None) == (padded is None)
            if tight is not None:
                torch.testing.assert_close(padded, tight, atol=1e-10, rtol=1e-9)
