"""The schedule against the paper's formula in another form: a line, then a root."""

import pytest

from experiments.training.schedules import learning_rate


@pytest.mark.parametrize("warmup", [1, 400, 4000])
@pytest.mark.parametrize("d_model", [8, 512])
def test_it_is_a_line_up_to_a_peak_and_an_inverse_root_after(warmup, d_model):
    peak = (d_model * warmup) ** -0.5
    for step in range(1, 3 * warmup, max(1, warmup // 7)):
        expected = peak * step / warmup if step <= warmup else peak * (warmup / step) ** 0.5
        assert learning_rate(step, d_model, warmup) == pytest.approx(expected, rel=1e-12)


def test_the_papers_base_peaks_at_seven_ten_thousandths():
    rates = [learning_rate(step, 512, 4000) for step in range(1, 20_000)]
    assert max(rates) == rates[3999] == pytest.approx(6.99e-4, rel=1e-3)


def test_the_scale_is_a_factor():
    assert learning_rate(123, 64, 100, 2.5) == pytest.approx(2.5 * learning_rate(123, 64, 100))


def test_there_is_no_step_zero():
    with pytest.raises(ValueError, match="from 1"):
        learning_rate(0, 512, 4000)
