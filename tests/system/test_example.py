"""Run a short form of examples/personality as its README describes, and examples/digits as the main README does."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Cli, as_json

pytestmark = pytest.mark.slow

DIGITS = Path(__file__).parents[2] / "examples" / "digits"
FOLDER = Path(__file__).parents[2] / "examples" / "personality"
STUDY, SIXTEEN = FOLDER / "personality.toml", FOLDER / "sixteen.toml"


@pytest.mark.nightly
def test_the_example_runs_from_elsewhere_and_shows_cases(cli: Cli, tmp_path: Path) -> None:
    options = ["--profile", "short", "--store", tmp_path / "store", "--rows", "Simple-LSTM,Fa-whl-BLSTM"]
    rows = as_json(cli("run", STUDY, *options, "--seeds", "1", "--devices", "cpu:2", "--json", cwd=tmp_path))
    assert [row["row"] for row in rows] == ["Simple-LSTM", "Fa-whl-BLSTM"]
    for row in rows:
        assert all(0 <= row[f"accuracy_{name}"] <= 100 for name in ("train", "dev", "test"))
        assert row["num_params"] > 1000 and row["paper"]["accuracy_test"] > 80
    table = cli("report", STUDY, *options, "--examples", "test", "--limit", "3").stdout.splitlines()
    assert len(table) == 2 + 3 and "P(E)" in table[0] and "요" in table[2]
    lines = cli("report", STUDY, *options, "--examples", "test", "--limit", "0", "--format", "csv").stdout.splitlines()
    assert len(lines) == 1 + 38
    seven = cli("report", STUDY, *options, "--examples", "published", "--format", "csv").stdout.splitlines()
    assert len(seven) == 1 + 7 and "사람" in seven[3] and "neutral" in seven[3]
    assert ",0.1953," in seven[1] and ",0.1941," in seven[1]  # the paper's two answers to "혼자", as P(E)
    assert "no outputs" in (
        cli("report", STUDY, *options, "--examples", "train", code=2).stderr.lower().replace("no row has", "no")
    )


@pytest.mark.nightly
def test_sixteen_types_stand_beside_the_cited_numbers(cli: Cli, tmp_path: Path) -> None:
    options = ["--profile", "short", "--store", tmp_path / "store", "--seeds", "1", "--devices", "cpu:2", "--json"]
    rows = {row["row"]: row for row in as_json(cli("run", SIXTEEN, *options, cwd=tmp_path))}
    assert rows["four"]["num_params"] > 2 * rows["sixteen"]["num_params"]
    for key in ("sixteen", "four"):
        assert rows[key]["accuracy_test"] <= min(rows[key][f"{pair}_test"] for pair in ("EI", "NS", "FT", "JP"))
    printed = cli("report", SIXTEEN, *options[:6], cwd=tmp_path).stdout
    assert all(number in printed for number in ("20.29", "23", "38"))


@pytest.mark.parametrize(
    ("setting", "text", "message"),
    [
        ("data", '{"question": "q", "answer": "a", "label": "E"}\n{"question"\n', "line 2: this is not JSON"),
        ("data", '{"question": "q", "answer": "a", "label": "X"}\n', "line 1: unknown label 'X'"),
        ("vectors", "2 3\na 1 2 3\nb 1 2\n", "line 3 has 2 numbers, and 3 are expected"),
    ],
)
def test_wrong_files_are_refused_when_planned(cli: Cli, tmp_path: Path, setting: str, text: str, message: str) -> None:
    (tmp_path / "file").write_text(text)
    options = ["--profile", "short", "--store", tmp_path / "store", "--set", f"{setting}={tmp_path / 'file'}"]
    said = cli("run", STUDY, *options, code=2).stderr
    assert f"{tmp_path / 'file'}" in said and message in said and "Traceback" not in said and ".. " not in said
    assert not (tmp_path / "store" / "runs").exists()


def test_a_table_from_a_script_that_exists(cli: Cli, tmp_path: Path) -> None:
    """In an empty folder, three commands suffice, without edits to the script or the study."""
    (tmp_path / "train.py").write_bytes((DIGITS / "train.py").read_bytes())
    cli("new", "digits", "--from", f"{sys.executable} train.py", cwd=tmp_path)
    cli("run", "digits.toml", "--devices", "cpu:2", cwd=tmp_path)
    latex = cli("report", "digits.toml", "--format", "latex", cwd=tmp_path).stdout
    lines = [line for line in latex.splitlines() if r"$\pm$" in line and line.endswith(r"\\")]
    assert len(lines) == 3 and lines[0].startswith("base")
    accuracies = [float(value) for line in lines for value in re.findall(r"([\d.]+) \$\\pm", line)]
    assert all(80 < value < 100 for value in accuracies)
    assert (tmp_path / "train.py").read_bytes() == (DIGITS / "train.py").read_bytes()


def test_the_study_of_the_readme_shows_a_narrow_network(cli: Cli, tmp_path: Path) -> None:
    text = (DIGITS / "digits.toml").read_text()
    assert f"```toml\n{text}```" in (DIGITS.parents[1] / "README.md").read_text()
    folder = tmp_path / "examples/digits"  # in a repository, as its patch names it
    shutil.copytree(DIGITS, folder)
    (folder / "digits.toml").write_text(text.replace('"python ', f'"{sys.executable} '))
    who = ("-c", "user.name=A", "-c", "user.email=a@b.c")
    for words in (("init", "-q"), ("add", "-A"), (*who, "commit", "-qm", "The example")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    options = ("--rows", "base,narrow,one-conv", "--seeds", "1", "--json")
    rows = {row["row"]: row for row in as_json(cli("run", "digits.toml", *options, cwd=folder))}
    assert rows["narrow"]["acc_test_change"] < -5 and rows["one-conv"]["acc_test_change"] < 0
