"""The batch plan is a pure function of (seed, step), keeps its limits, loses no pair and gives right arrays."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.data.batching import BatchPlan, deal, split
from experiments.data.collate import Batch, collate
from experiments.data.encoding import sides as mapped
from experiments.data.encoding.sides import Side, Sides, SideWriter, piece_dtype
from experiments.data.encoding.tokenizer import BOS_ID, EOS_ID, PAD_ID
from experiments.errors import UserError
from experiments.tasks.train_network import to_tensors

PINNED = [[[6, 7], [3, 4], [0, 1, 2, 5]], [[3, 4], [0, 1, 2, 5], [6, 7]]]
LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=120)


def corpus_lengths(pairs: int = 4000) -> tuple[np.ndarray, np.ndarray]:
    """Return realistic sentence lengths: log-normal, and similar but not equal on both sides."""
    draw = np.random.default_rng(0)
    source = np.clip(np.exp(draw.normal(2.6, 0.45, pairs)), 2, 100).astype(int)
    target = np.clip(source * np.exp(draw.normal(0.05, 0.2, pairs)), 2, 100).astype(int)
    return source, target


def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return len(one) == len(other) and all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@given(LENGTHS, st.integers(40, 300), st.integers(0, 2**32), st.integers(0, 3))
def test_an_epoch_is_every_pair_once_within_the_caps(
    lengths: list[tuple[int, int]], cap: int, seed: int, epoch: int
) -> None:
    source, target = np.array(lengths).T
    batches = BatchPlan(source, target, cap, seed).epoch(epoch)
    assert sorted(np.concatenate(batches)) == list(range(len(source)))
    for batch in batches:
        assert len(batch) and source[batch].sum() <= cap and target[batch].sum() <= cap


def test_the_plan_is_a_function_of_seed_and_epoch() -> None:
    lengths = corpus_lengths()
    plan, again = (BatchPlan(*lengths, 1024, seed=7) for _ in range(2))
    again.epoch(3), again.epoch(0)  # what was asked before does not matter
    assert same(plan.epoch(1), again.epoch(1))
    assert not same(plan.epoch(1), BatchPlan(*lengths, 1024, seed=8).epoch(1))
    assert not same(plan.epoch(1), plan.epoch(2))


def test_the_plan_is_the_same_everywhere() -> None:
    """The order is pinned, because another order of batches is another training that run_id would not show."""
    plan = BatchPlan([3, 1, 2, 3, 5, 2, 4, 4], [2, 2, 2, 4, 5, 1, 4, 3], 10, seed=1)
    assert [[sorted(batch.tolist()) for batch in plan.epoch(epoch)] for epoch in (0, 1)] == PINNED


def test_a_plan_can_begin_at_any_step() -> None:
    lengths = corpus_lengths(300)
    plan = BatchPlan(*lengths, 512, seed=1)
    steps = [plan.batch(step) for step in range(40)]
    assert plan.locate(39)[0] >= 2
    assert [plan.locate(step) for step in range(len(plan.epoch(0)) + 1)][-1] == (1, 0)
    for step in (39, 17, 0, 38):
        np.testing.assert_array_equal(BatchPlan(*lengths, 512, seed=1).batch(step), steps[step])


def test_padding_is_small() -> None:
    source, target = corpus_lengths(20_000)
    plan = BatchPlan(source, target, 4096, seed=1)

    def padding(batches: list[np.ndarray]) -> float:
        places = sum(len(b) * (source[b].max() + target[b].max()) for b in batches)
        return float(1 - (source.sum() + target.sum()) / places)

    by_chance = np.array_split(np.random.default_rng(0).permutation(len(source)), len(plan.epoch(0)))
    assert padding(plan.epoch(0)) < 0.1 < 0.5 < padding(by_chance)


@pytest.mark.parametrize("cap", [1024, 4096])
def test_batches_are_about_equally_full(cap: int) -> None:
    source, target = corpus_lengths()
    batches = BatchPlan(source, target, cap, seed=1).epoch(0)
    full = [max(source[b].sum(), target[b].sum()) for b in batches]
    assert min(full) > 0.6 * cap and np.mean(full) > 0.9 * cap


def test_short_and_long_batches_come_in_any_order() -> None:
    lengths = corpus_lengths()
    plan = BatchPlan(*lengths, 1024, seed=1)
    drift = []
    for epoch in range(20):
        means = [lengths[0][batch].mean() for batch in plan.epoch(epoch)]
        drift.append(np.corrcoef(np.argsort(np.argsort(means)), np.arange(len(means)))[0, 1])
    assert abs(np.mean(drift)) < 0.1  # its standard deviation, were order chance, is 0.03


def test_epochs_differ_in_company() -> None:
    source, target = corpus_lengths()
    plan = BatchPlan(source, target, 1024, seed=1)
    company = []
    for epoch in (0, 1):
        of_pair = np.empty(len(source), int)
        for number, batch in enumerate(plan.epoch(epoch)):
            of_pair[batch] = number
        company.append(of_pair)
    one, other = np.random.default_rng(0).integers(0, len(source), (2, 200_000))
    together = (company[0][one] == company[0][other]) & (one != other)
    again = (company[1][one] == company[1][other])[together].mean()
    assert again < 0.6  # unchanged batches would give 1


def test_pairs_of_unique_lengths_change_company_too() -> None:
    lengths = np.arange(10, 410)
    plan = BatchPlan(lengths, lengths, 3000, seed=1)
    groups = [{frozenset(batch.tolist()) for batch in plan.epoch(epoch)} for epoch in (0, 1)]
    assert len(groups[0] & groups[1]) < len(groups[0]) / 4


def test_a_pair_longer_than_a_batch_is_named_with_the_remedy() -> None:
    with pytest.raises(UserError) as error:
        BatchPlan([5, 9, 3], [5, 12, 3], 10, seed=1)
    text = str(error.value)
    assert "training.tokens_per_batch = 10" in text and "training pair 2 of the 3 kept" in text
    assert "9 source and 12 target pieces" in text
    assert "tokens_per_batch to 12 or more, or data.max_pieces to 10 or less" in text
    BatchPlan([5, 9, 3], [5, 12, 3], 12, seed=1)


@given(LENGTHS, st.integers(1, 200))
def test_micro_batches_are_the_batch_again(lengths: list[tuple[int, int]], max_tokens: int) -> None:
    source, target = np.array(lengths).T
    indices = np.arange(len(source))[::-1].copy()
    parts = split(source, target, indices, max_tokens)
    assert sorted(np.concatenate(parts)) == sorted(indices)
    for part in parts:
        longest = max(source[part].max(), target[part].max())
        assert len(part) == 1 or len(part) * longest <= max_tokens


LINES = [([5, 6, 7], [8]), ([9], [10, 11]), ([], [12, 13, 14, 15])]


@pytest.fixture
def pairs(tmp_path: Path) -> Sides:
    dtype = piece_dtype(100)
    for side, name in enumerate(("source", "target")):
        writer = SideWriter(tmp_path, name, dtype)
        writer.add([line[side] for line in LINES])
        writer.close()
    return {name: Side(tmp_path, name, dtype) for name in ("source", "target")}


def by_hand(indices: list[int], shape: tuple[int, int, int] | None) -> Batch[list[list[int]]]:
    def padded(lines: list[list[int]], side: int) -> list[list[int]]:
        width = shape[side] if shape else max(map(len, lines))
        lines = lines + [[]] * (shape[0] - len(lines) if shape else 0)
        return [line + [PAD_ID] * (width - len(line)) for line in lines]

    source, target = ([LINES[i][side] for i in indices] for side in (0, 1))
    return Batch(
        padded([[*line, EOS_ID] for line in source], 1),
        padded([[BOS_ID, *line] for line in target], 2),
        padded([[*line, EOS_ID] for line in target], 2),
        sum(len(line) + 1 for line in source),
        sum(len(line) + 1 for line in target),
    )


@pytest.mark.parametrize("shape", [None, (3, 5, 6), (5, 4, 8)])
@pytest.mark.parametrize("indices", [[0, 1, 2], [2, 0], [1], [2]])
def test_arrays_are_what_a_loop_would_make(
    pairs: Sides, indices: list[int], shape: tuple[int, int, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped, "MAPPED_BYTES", 0)  # pages are given back after each reading
    for _ in range(2):
        batch = collate(pairs, np.array(indices), shape)
    hand = by_hand(indices, shape)
    for name in ("source", "target_input", "target_output"):
        array = getattr(batch, name)
        assert array.dtype == np.int64
        assert array.tolist() == getattr(hand, name)
    assert (batch.num_source_tokens, batch.num_target_tokens) == (hand.num_source_tokens, hand.num_target_tokens)
    assert (batch.target_output != PAD_ID).sum() == batch.num_target_tokens


def test_tensors_are_the_arrays(pairs: Sides) -> None:
    arrays = collate(pairs, np.array([0, 2]))
    tensors = to_tensors(arrays)
    for name in ("source", "target_input", "target_output"):
        assert getattr(tensors, name).tolist() == getattr(arrays, name).tolist()
        assert str(getattr(tensors, name).dtype) == "torch.int64"
    assert tensors.num_target_tokens == arrays.num_target_tokens


def test_no_pairs_are_one_row_of_padding(pairs: Sides) -> None:
    batch = collate(pairs, np.array([], np.int64))
    assert batch.source.tolist() == batch.target_input.tolist() == batch.target_output.tolist() == [[PAD_ID]]
    assert (batch.num_source_tokens, batch.num_target_tokens) == (0, 0)


def test_shares_are_the_batch_and_alike() -> None:
    lengths = corpus_lengths()
    batch = BatchPlan(*lengths, 3000, seed=1).epoch(0)[5]
    shares = [deal(*lengths, batch, (rank, 3)) for rank in range(3)]
    assert sorted(np.concatenate(shares)) == sorted(batch)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    tokens = [lengths[1][share].sum() for share in shares]
    assert max(tokens) < 1.1 * min(tokens)
    assert len(deal(*lengths, batch[:2], (2, 3))) == 0


@given(steps=st.integers(0, 60), seed=st.integers(0, 3))
def test_pairs_seen_are_those_of_the_batches(steps, seed):
    lengths = np.random.default_rng(seed).integers(1, 30, (2, 50))
    plan = BatchPlan(*lengths, 100, seed)
    taken = np.zeros(50, dtype=np.int64)
    for step in range(steps):
        np.add.at(taken, plan.batch(step), 1)
    assert (BatchPlan(*lengths, 100, seed).seen(steps) == taken).all()
