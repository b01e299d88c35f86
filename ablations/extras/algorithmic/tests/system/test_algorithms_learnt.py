"""Algorithms from the command line: copying is learnt, the table has accuracy by length, a killed run goes on."""

from pathlib import Path
from typing import Any

import pytest

from tests.system.conftest import Cli, as_json

pytestmark = pytest.mark.slow

STUDY = """
name = "algorithms"
title = "Copy and reverse"
task = "algorithmic"

[base]
model = {num_layers = 1, d_model = 32, d_ff = 64, num_heads = 2, d_k = 16, d_v = 16, dropout = 0}
data = {symbols = 6, train_lengths = "2-6", dev_lengths = "2-6", test_lengths = ["7-9", "10-14"], builtin_pairs = 2000}
training = {train_steps = 900, warmup_steps = 100, tokens_per_batch = 500, label_smoothing = 0, precision = "fp32"}

[[variation]]
key = "copy"

[[variation]]
key = "reverse"
set = {data.algorithm = "reverse"}

[[variation]]
key = "untrained"
fixed = {training.train_steps = 0}
"""


def by_row(done: Any) -> dict[str, Any]:
    return {row["row"]: row for row in as_json(done)}


@pytest.mark.nightly
def test_short_inputs_are_learnt_and_accuracy_falls_beyond_them(cli: Cli, tmp_path: Path) -> None:
    study, store = tmp_path / "algorithms.toml", tmp_path / "store"
    study.write_text(STUDY)
    rows = by_row(cli("run", study, "--store", store, "--json"))
    for name in ("copy", "reverse"):
        assert rows[name]["exact"] > 90 and rows[name]["pieces"] > 97
        assert rows[name]["exact_7-9"] >= rows[name]["exact_10-14"]
        assert rows[name]["exact"] > rows[name]["exact_10-14"] + 30
    assert rows["untrained"]["exact"] == 0
    table = cli("report", study, "--store", store).stdout
    assert "exact % (10-14)" in table and "BLEU" not in table and "copy (" in table
    assert "nothing to train" in cli("run", study, "--store", store).stderr
    more = cli("run", study, "--store", store, "--json", "--set", 'data.test_lengths=["7-9", "20-20"]')
    ids = [{name: row["run_ids"] for name, row in each.items()} for each in (rows, by_row(more))]
    assert ids[0] == ids[1]  # nothing was trained again
