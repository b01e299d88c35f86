"""examples/personality, as its README says, in short form."""

from pathlib import Path

import pytest

from .conftest import Cli, as_json

pytestmark = pytest.mark.slow

STUDY = Path(__file__).parents[2] / "examples" / "personality" / "personality.toml"


def test_the_example_runs_from_elsewhere_and_shows_cases(cli: Cli, tmp_path: Path) -> None:
    options = ["--profile", "short", "--store", tmp_path / "store", "--rows", "Simple-LSTM,Fa-whl-BLSTM"]
    rows = as_json(cli("run", STUDY, *options, "--seeds", "1", "--devices", "cpu:2", "--json", cwd=tmp_path))
    assert [row["row"] for row in rows] == ["Simple-LSTM", "Fa-whl-BLSTM"]
    for row in rows:
        assert all(0 <= row[f"accuracy_{name}"] <= 100 for name in ("train", "dev", "test"))
        assert row["num_params"] > 1000 and row["paper"]["accuracy_test"] > 80
    table = cli("cases", STUDY, *options, "--limit", "3").stdout.splitlines()
    assert len(table) == 2 + 3 and "P(E)" in table[0] and "요" in table[2]
    lines = cli("cases", STUDY, *options, "--limit", "0", "--format", "csv").stdout.splitlines()
    assert len(lines) == 1 + 38
    assert "no outputs" in (
        cli("cases", STUDY, *options, "--of", "train", code=2).stderr.lower().replace("no row has", "no")
    )
