"""Every micro-batch of every epoch has one of a few shapes, with little padding."""

from collections.abc import Callable

import numpy as np
import pytest

from experiments.data.batching import BatchPlan, Indices, deal, split
from experiments.data.shapes import MOST_SHAPES, Shapes, _seen


def lengths(pairs: int = 20000) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(1)
    source = np.clip(np.exp(draw.normal(2.6, 0.45, pairs)), 2, 100).astype(int)
    return source, np.clip(source * np.exp(draw.normal(0.05, 0.12, pairs)), 2, 100).astype(int)


def cut_of(plan: BatchPlan, max_tokens: int, share: tuple[int, int] = (0, 1)) -> Callable[[Indices], list[Indices]]:
    return lambda batch: split(*plan.lengths, deal(*plan.lengths, batch, share), max_tokens)


def measured(plan: BatchPlan, shapes: Shapes, max_tokens: int, epochs: range) -> tuple[float, float, int]:
    """Return (share of padding, the same share with free shapes, number of micro-batches that were split)."""
    source, target = plan.lengths
    real = places = free = cut = 0
    for epoch in epochs:
        for batch in plan.epoch(epoch):
            for part in split(source, target, batch, max_tokens):
                fitted = shapes.fit(part)
                assert sorted(np.concatenate([some for some, _ in fitted])) == sorted(part)
                for some, shape in fitted:
                    assert shape in shapes.shapes
                    assert len(some) <= shape[0]
                    assert source[some].max() <= shape[1]
                    assert target[some].max() <= shape[2]
                    places += shape[0] * (shape[1] + shape[2])
                real += int(source[part].sum() + target[part].sum())
                free += len(part) * int(source[part].max() + target[part].max())
                cut += len(fitted) - 1
    return 1 - real / places, 1 - real / free, cut


@pytest.mark.parametrize(("tokens", "max_tokens"), [(4000, 4000), (16000, 4000)])
def test_later_epochs_fit_and_padding_is_small(tokens: int, max_tokens: int) -> None:
    plan = BatchPlan(*lengths(), tokens, seed=3)
    shapes = Shapes.fitted(plan, cut_of(plan, max_tokens))
    assert len(shapes.shapes) <= MOST_SHAPES
    padding, free, cut = measured(plan, shapes, max_tokens, range(20, 22))
    assert free < padding < free + 0.05
    assert cut < 5


def test_a_micro_batch_that_nothing_holds_is_cut() -> None:
    source, target = lengths(500)
    plan = BatchPlan(source, target, 1000, seed=1)
    shapes = Shapes.fitted(plan, cut_of(plan, 1000), most=4)
    assert len(shapes.shapes) <= 4
    fitted = shapes.fit(np.arange(500))
    assert len(fitted) > 1
    assert sorted(np.concatenate([part for part, _ in fitted])) == list(range(500))


def test_shapes_are_a_function_of_the_plan_and_of_the_share() -> None:
    plan = BatchPlan(*lengths(3000), 2000, seed=3)
    plan.epoch(7)  # what was asked before does not matter
    again = BatchPlan(*lengths(3000), 2000, seed=3)
    whole = Shapes.fitted(plan, cut_of(plan, 2000))
    assert whole.shapes == Shapes.fitted(again, cut_of(again, 2000)).shapes
    half = Shapes.fitted(plan, cut_of(plan, 2000, (1, 2)))
    batch = plan.epoch(1)[3]
    assert len(half.fit(deal(*plan.lengths, batch, (1, 2)))) == 1
    assert max(rows for rows, _, _ in half.shapes) < max(rows for rows, _, _ in whole.shapes)


def test_no_micro_batch_has_a_cheaper_shape_and_no_shape_is_larger_than_what_it_holds() -> None:
    plan = BatchPlan(*lengths(4000), 2000, seed=3)
    shapes, (source, target) = Shapes.fitted(plan, cut_of(plan, 2000)), plan.lengths
    held: dict[tuple[int, int, int], list[tuple[int, int, int]]] = {shape: [] for shape in shapes.shapes}
    seen = [(len(part), int(source[part].max()), int(target[part].max())) for part in _seen(plan, cut_of(plan, 2000))]
    for rows, wide, long in seen:
        over = [s for s in shapes.shapes if rows <= s[0] and wide <= s[1] and long <= s[2]]
        held[min(over, key=lambda s: s[0] * (s[1] + s[2]))].append((rows, wide, long))
    widest = (1, int(source.max()), int(target.max()))
    for shape, parts in held.items():
        assert shape == widest or shape == tuple(np.max(parts, axis=0))


def test_a_micro_batch_that_fits_no_shape_is_cut_in_halves_in_order():
    source, target = np.full(7, 5), np.full(7, 6)
    shapes = Shapes((source, target), [(1, 5, 6), (2, 5, 6), (9, 4, 9)])
    fitted = shapes.fit(np.arange(7))
    assert [(some.tolist(), shape) for some, shape in fitted] == [
        ([0], (1, 5, 6)), ([1, 2], (2, 5, 6)), ([3, 4], (2, 5, 6)), ([5, 6], (2, 5, 6)),
    ]  # fmt: skip
