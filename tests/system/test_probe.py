"""`ablations probe`: its measurements of each row; it leaves nothing behind."""

from pathlib import Path

import pytest

from .conftest import Cli, as_json

pytestmark = pytest.mark.slow


def test_a_probe_tells_speed_work_memory_and_time(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    store = tmp_path / "runs"
    options = ("--store", store, "--devices", "cpu:1", "--steps", 20)
    found = as_json(cli("probe", tiny, "--rows", "base", *options, "--json"))
    assert [row["row"] for row in found] == ["base"]
    for row in found:
        assert row["source_tokens_per_s"] > 0
        assert row["target_tokens_per_s"] > 0
        assert 0 < row["padding"] < 1
        assert row["peak_memory_bytes"] > 2**20
        expected = row["flops_per_token"] * row["target_tokens_per_s"] / row["matrix_flops"]
        assert row["mfu"] == pytest.approx(expected)
        assert 0 < row["mfu"] < 1
        assert row["hours"] == pytest.approx(6 * row["seconds_per_step"] / 3600)
    assert not list(store.glob(".probe-*"))
    assert not list((store / "runs").glob("*"))

    text = cli("probe", tiny, "--rows", "h1", *options).stdout
    assert "MFU = operations of a training step" in text
    assert "fp32; matrix product" in text


def test_a_row_that_cannot_be_trained_is_said(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    broken = cli(
        "probe", tiny, "--rows", "base", "--store", tmp_path / "runs", "--devices", "cpu:1",
        "--set", "training.tokens_per_batch=8", code=2,
    )  # fmt: skip
    assert "training.tokens_per_batch = 8 is less than the longest training sentence" in broken.stderr
