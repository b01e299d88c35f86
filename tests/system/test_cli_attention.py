"""The table of the study `attention` contains values that runs measure before their first update."""

import json
from pathlib import Path

import pytest

from .conftest import Cli

pytestmark = pytest.mark.slow

SMALL = (
    "training.train_steps=2", "data.builtin_pairs=300", "data.vocab_size=200", "evaluation.beam_size=1",
    "evaluation.max_extra_length=1",
)  # fmt: skip
MEASURED = ("start_entropy_encoder", "start_entropy_decoder", "start_entropy_cross", "start_gradient_norm")


@pytest.mark.nightly
def test_the_table_shows_entropies_and_gradient_norms(cli: Cli, tmp_path: Path) -> None:
    sets = [word for setting in SMALL for word in ("--set", setting)]
    chosen = ("attention", "--profile", "demo", "--rows", "base,dot-dk64", "--store", tmp_path, *sets)
    printed = cli("run", *chosen, "--devices", "cpu:1x1", "--notes", "full").stdout
    heads = next(line for line in printed.splitlines() if "PPL (dev)" in line)
    assert all(head in heads for head in ("comparison", "entropy (encoder)", "entropy (cross)", "gradient norm"))
    assert printed.count("- Entropy: ") == printed.count("- Gradient norm: ") == 1
    rows = {row["row"]: row for row in json.loads(cli("report", *chosen, "--json").stdout)}
    for key, row in rows.items():
        (run_id,) = row["run_ids"]
        (result,) = (tmp_path / "runs" / run_id).glob("attempts/*/result.json")
        recorded = json.loads(result.read_text())["start"]
        assert {name: row[name] for name in MEASURED} == {n: recorded[n.removeprefix("start_")] for n in MEASURED}, key
    for name in MEASURED[:3]:
        assert rows["dot-dk64"][name] < 0.7 * rows["base"][name]
    plain = cli("report", "table3", "--profile", "demo", "--rows", "base", "--store", tmp_path, *sets).stdout
    assert "entropy" not in plain
