"""A probe measures the seconds per step between its first and last point."""

import pytest

from experiments.errors import UserError
from experiments.jobs.attempts import probe
from experiments.jobs.attempts.probe import ProbePoint, Speed, keep, kept
from experiments.store.layout import Store
from experiments.store.results import TrainingResult

RESULT = TrainingResult(precision="bf16")


def point(step, t, **metrics):
    return {"kind": "metrics", "step": step, "t": t, "metrics": {"loss": 1.0, **metrics}}


def test_the_first_point_only_starts_the_clock():
    """What was measured up to it, when all was cold, does not count; a measurement on dev is no point."""
    dev = {"kind": "metrics", "step": 6, "t": 99.0, "metrics": {"dev_perplexity": 9.0}}
    events = [
        {"kind": "started", "t": 0.0}, point(2, 10.0), point(4, 11.0),
        dev, point(7, 13.0),
    ]  # fmt: skip
    found = probe._measured(events, RESULT)
    assert found.seconds_per_step == pytest.approx(3.0 / 5) and found.precision == "bf16"
    assert probe._measured([point(1, 1.0), point(2, 1.5)], TrainingResult()) == (0.5, "")


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([], "fewer than two points"),
        ([point(3, 1.0)], "fewer than two points"),
        ([point(3, 1.0), point(3, 2.0)], "fewer than two points"),
        (
            [{"kind": "failed", "t": 1.0, "message": "one"}, {"kind": "failed", "t": 2.0, "message": "the last"}],
            "the last",
        ),
    ],
)
def test_without_two_points_nothing_is_measured(events, words):
    with pytest.raises(UserError, match=words):
        probe._measured(events, RESULT)


def test_measurements_are_kept(tmp_path):
    store = Store.open(tmp_path / "store")
    assert kept(store) == []
    one = ProbePoint("cpu", 2, 1e9, 0.5, "fp32")
    keep(store, [one])
    keep(store, [ProbePoint("cpu", 2, 1e9, 0.25, "fp32")])
    keep(store, [ProbePoint("cpu", 2, 1e9, 0.75, "bf16")])
    assert [(p.precision, p.seconds) for p in kept(store)] == [("fp32", 0.25), ("bf16", 0.75)]


def test_a_speed_is_of_one_kind_of_device_threads_and_precision():
    points = [ProbePoint("cpu", 2, 1e9, seconds, "fp32") for seconds in (1.0, 3.0, 2.0)]
    points += [
        ProbePoint("cpu", 1, 1e9, 9.0, "fp32"),
        ProbePoint("cuda", 2, 1e9, 0.1, "bf16"),
        ProbePoint("cpu", 2, 1e9, 5.0, "bf16"),
    ]
    assert Speed(points, "cpu", 2, "fp32").seconds(1e9) == 2.0, "the median of the measured"
    assert Speed(points, "cpu", 2, "auto").seconds(1e9) == 5.0 and Speed(points, "cpu", 1, "auto").seconds(1e9) == 9.0
    assert not Speed(points, "cpu", 2) and not Speed(points, "cuda", 1, "bf16") and not Speed([], "cpu", 1)
    assert Speed(points, "cpu", 2, "fp32").seconds(1e9 * 1.0009) == 2.0
    assert (
        Speed(points, "cpu", 1, "fp32").seconds(2e9) == pytest.approx(18.0) and Speed([], "cpu", 1).seconds(1.0) == 0.0
    )
