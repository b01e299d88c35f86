"""The two tables of files in docs/architecture.md name exactly the files that handle the value in a real run."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.house import ROOT, named_files

from .conftest import command, environment

pytestmark = pytest.mark.slow

STUDY = """
name = "way"
title = "One row"
[base]
model = {num_layers = 1, d_model = 32, d_ff = 64, num_heads = 2, d_k = 8, d_v = 8, dropout = 0.0}
data = {vocab_size = 200, builtin_pairs = 300}
training = {train_steps = 150, warmup_steps = 50, tokens_per_batch = 1000, precision = "fp32"}
evaluation = {beam_size = 2, max_extra_length = 3}
[[variation]]
key = "h3"
set = {model.num_heads = 3}
"""


def documented(section: str) -> set[str]:
    """Return the files that a section's table names."""
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    lines = page.partition(f"## {section}")[2].partition("\n## ")[0].splitlines()
    return set(named_files("\n".join(line for line in lines if line.startswith("|"))))


def traced(folder: Path, value: object, *lines: str) -> dict[str, set[str]]:
    """Run commands and return the files that run, hold the value or name it, also in child processes."""
    out = folder / "traced"
    out.unlink(missing_ok=True)
    given = environment()
    given |= {"TRACED": str(out), "TRACED_ROOT": str(ROOT), "TRACED_VALUE": json.dumps(value)}
    given["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tests/traced"), given["PYTHONPATH"]])
    for line in lines:
        words = command(*line.format(study=folder / "way.toml", folder=folder).split())
        done = subprocess.run(words, env=given, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    files: dict[str, set[str]] = {"runs": set(), "holds": set(), "names": set()}
    for line in out.read_text(encoding="utf-8").splitlines():
        files[line.split()[0]].add(line.split()[1])
    return files


@pytest.mark.nightly
def test_the_files_of_the_two_ways_are_those_that_run(tmp_path: Path) -> None:
    (tmp_path / "way.toml").write_text(STUDY)
    way = documented("The path of a setting")
    files = traced(tmp_path, {"num_heads": 3}, "run {study} --store {folder}/a --devices cpu:1")
    assert len(way) <= 24 and way <= files["holds"]
    aside = {"model/search/quick.py", "model/search/quick_decoder.py"}
    assert files["names"] <= way | aside
    results = [json.loads(path.read_text()) for path in tmp_path.glob("a/runs/*/evaluations/*/result.json")]
    (score,) = (result["metrics"]["bleu"] for result in results)
    assert score > 0
    way = documented("The path of a score")
    run = "run {study} --store {folder}/b --devices cpu:1"  # trains to the same score
    files = traced(tmp_path, score, run, "report {study} --store {folder}/b --format latex")
    assert len(way) <= 16 and way <= files["runs"]
    # These files do not hold the score: decoding comes before it; the others handle its column, table or text.
    others = {"experiments/evaluation/trained.py", "experiments/tasks/columns.py"}
    others |= {"reports/spec/table_spec.py", "reports/render/latex.py"}
    assert way - files["holds"] <= others
