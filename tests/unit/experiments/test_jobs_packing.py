"""Whether runs share a device, and how busy one run keeps it."""

import pytest

from experiments.jobs.packing import gain, worth_sharing
from experiments.jobs.probe import Measured, _measured


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
        return {
            "kind": "metrics", "step": step, "t": t, "loss": 1.0,
            "target_tokens_per_s": rate, "source_tokens_per_s": 2 * rate, "padding": 0.1,
        }  # fmt: skip

    events = [point(10, 100.0, 1.0), point(15, 101.0, 30.0), point(20, 102.0, 50.0)]
    events.append({"kind": "probed", "matrix_flops": 4e9})
    found = _measured(events, {"peak_memory_bytes": 7, "flops_per_token": 5, "precision": "bf16", "device": "d"})
    assert found == Measured(0.2, 80.0, 40.0, 0.1, 5, 4e9, 7, "bf16", "d")
