"""`ablations probe`: its measurements of each row; it leaves nothing behind."""

import itertools
import re
from pathlib import Path

import pytest

from experiments.jobs.devices.hardware import available_cores

from .conftest import Cli, as_json

pytestmark = pytest.mark.slow


def test_a_probe_tells_speed_work_memory_and_time(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    store = tmp_path / "runs"
    options = ("--store", store, "--devices", "cpu:1", "--steps", 20)
    found = as_json(cli("probe", tiny, "--rows", "base", *options, "--together", 2, "--json"))
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
        assert (row["together"], row["share"]) == (2, row["gain"] >= 1.1)
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


def test_run_measures_how_many_share_the_processor(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    store = tmp_path / "runs"
    said = cli("run", tiny, "--rows", "base", "--seeds", 1, "--store", store, "--devices", "cpu:auto").stderr
    sums = {int(count): float(rate) for count, rate in re.findall(r"(\d+) at once: (\S+) steps/s", said)}
    cores = available_cores()
    assert 1 in sums
    taken = int(re.search(r"chose (\d+):", said)[1])  # type: ignore[index]
    assert f"--devices cpu:{taken}x{cores // taken}\n" in said
    for before, after in itertools.pairwise(sorted(sums)):
        ratio = sums[after] / sums[before]  # of numbers that were rounded for reading
        assert ratio > 1.09 if after <= taken else ratio < 1.11
    assert [row["state"] for row in as_json(cli("status", "--store", store, "--json"))] == ["finished"]
    again = cli("run", tiny, "--rows", "base", "--seeds", 2, "--store", store, "--devices", "cpu:auto").stderr
    assert "at once" not in again, "known in this store: the table goes on as it began"
    assert f"--devices cpu:{taken}x{cores // taken}\n" in again


def test_sharing_is_measured_by_run_alone(cli: Cli, tmp_path: Path) -> None:
    refused = cli("work", "--store", tmp_path / "runs", "--devices", "cpu:auto", code=2).stderr
    assert "only `ablations run` measures" in refused
