"""Whether runs should share a device, and the utilisation by one run."""

import pytest

from experiments.client.ablations_task.process import CONTEXT_GB
from experiments.jobs.attempts.probe import Measured, _measured
from experiments.jobs.devices.sharing import counts, gain, most_worth, shares, worth_sharing
from experiments.jobs.devices.slots import Slot
from experiments.store.results import TrainingResult


@pytest.mark.parametrize(
    ("alone", "together", "expected"),
    [
        (10.0, [6.0, 6.0], True),  # 1.2 times
        (10.0, [5.5, 5.5], True),  # 1.1 times: the limit counts
        (10.0, [5.4, 5.5], False),
        (10.0, [9.0, 1.0], False),  # one starves the other
        (10.0, [4.0, 4.0, 4.0], True),
    ],
)
def test_sharing_must_gain_a_tenth(alone, together, expected):
    assert worth_sharing(alone, together) is expected
    assert gain(alone, together) == pytest.approx(sum(together) / alone)


def test_a_speed_of_nothing_is_refused():
    with pytest.raises(ValueError, match="speed of 0"):
        gain(0, [1.0])


def test_utilisation_is_work_over_the_measured_rate():
    measured = Measured(0.5, target_tokens_per_s=2000.0, flops_per_token=1e6, matrix_flops=8e9)
    assert measured.mfu == pytest.approx(0.25)
    assert Measured(0.5, target_tokens_per_s=2000.0).mfu is None


def test_the_first_point_warms_up_and_is_left_out():
    def point(step, t, rate):
        speeds = {"target_tokens_per_s": rate, "source_tokens_per_s": 2 * rate, "padding": 0.1}
        return {"kind": "metrics", "step": step, "t": t, "metrics": {"loss": 1.0, **speeds}}

    events = [point(10, 100.0, 1.0), point(15, 101.0, 30.0), point(20, 102.0, 50.0)]
    events.append({"kind": "probed", "matrix_flops": 4e9})
    result = TrainingResult(peak_memory_bytes=7, flops_per_token=5, precision="bf16", device="d")
    found = _measured(events, result)
    assert found == Measured(0.2, 80.0, 40.0, 0.1, 5, 4e9, 7, "bf16", "d")


def cpu(threads):
    return Slot("cpu:0", "cpu", threads, room_gb=16.0)


@pytest.mark.parametrize(
    ("slot", "needs_gb", "expected"),
    [
        (cpu(1), 0.0, [1]),
        (cpu(2), 0.0, [1, 2]),
        (cpu(12), 0.0, [1, 2, 4, 12]),  # every run has as many threads
        (cpu(7), 0.0, [1, 7]),
        (cpu(16), 5.0, [1, 2]),  # a third would not fit
        (Slot("cuda:0", "cuda", 16, room_gb=130.0), 20.0, [1, 2, 4]),
        (Slot("cuda:0", "cuda", 3), 20.0, [1, 2, 4, 8]),  # threads are no limit; memory not known
        (cpu(4), 17.0, []),
    ],
)
def test_how_many_are_tried(slot, needs_gb, expected):
    assert list(counts(slot, needs_gb)) == expected
    for count in expected:
        parts = shares(slot, count)
        assert len({part.name for part in parts}) == count
        if slot.kind == "cpu":
            assert sum(part.threads for part in parts) == slot.threads
        elif slot.room_gb:
            contexts = (count - 1) * CONTEXT_GB  # one is outside of the slot's own
            assert sum(part.memory_gb for part in parts) == pytest.approx(slot.room_gb - contexts, abs=0.01 * count)


def test_each_number_must_gain_a_tenth_over_the_one_before():
    rates = {1: [10.0], 2: [7.0, 7.0], 4: [3.9] * 4, 8: [2.1] * 8}
    assert most_worth([1, 2, 4, 8], rates.__getitem__) == [(1, 10.0), (2, 14.0), (4, pytest.approx(15.6))]
    assert most_worth([1, 4, 8], rates.__getitem__)[-1][0] == 4
    assert most_worth([1, 2], {1: [10.0], 2: [0.0]}.__getitem__) == [(1, 10.0)], "two could not be measured"
    assert most_worth([], rates.__getitem__) == []
