"""A study to which options, metrics, patterns, columns, rows and seeds are added. No finished run trains again."""

import sys
from pathlib import Path

import pytest

from .conftest import Cli, as_json

pytestmark = pytest.mark.slow

TRAIN = """
import argparse, os
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--dropout", type=float, default=0.1)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
with open(os.environ["STARTS"], "a") as starts:
    starts.write(f"{args.lr} {args.dropout} {args.seed}\\n")
open("data/words.txt").read()
for epoch in (1, 2):
    print(f"epoch {epoch}/2 loss {args.lr / epoch:.3f}")
print(f"final acc {100 * args.lr + 10 * args.dropout + args.seed / 10:.2f} f1 {args.lr:.3f}")
""".lstrip()
HEAD = f"""
name = "grows"
title = "TITLE"
command = "{sys.executable} train.py --lr {{lr}} --seed {{seed}}"
"""
WITH_DROPOUT = HEAD.replace("{lr}", "{lr} --dropout {dropout}")
ACC = "{name = 'acc', pattern = 'acc ([\\d.]+)'}"
LOSS = "{name = 'loss', pattern = 'loss ([\\d.]+)', better = 'lower'}"
F1 = "{name = 'f1', pattern = 'f1 ([\\d.]+)'}"


def study(head: str, base: str, metrics: list[str], rows: list[str], more: str = "") -> str:
    """Return the text of a study."""
    entries = "".join(f"    {{{row}}},\n" for row in rows)
    return f"{head}base = {{{base}}}\n{more}\nmetric = [{', '.join(metrics)}]\nvariation = [\n{entries}]\n"


@pytest.mark.nightly
def test_a_study_that_grows_trains_only_what_is_new(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts, folder = tmp_path / "starts.txt", tmp_path / "mine"
    monkeypatch.setenv("STARTS", str(starts))
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "words.txt").write_text("words\n")
    (folder / "train.py").write_text(TRAIN)

    def trained(text: str) -> list[str]:
        """Write and run the study. Return the settings with which the trainer started."""
        before = starts.read_text().splitlines() if starts.exists() else []
        (folder / "study.toml").write_text(text)
        cli("run", "study.toml", "--devices", "cpu:2", cwd=folder)
        return sorted(starts.read_text().splitlines()[len(before) :])

    def numbers(metric: str) -> dict[str, float]:
        """Return the printed number of each row, to four digits."""
        table = as_json(cli("report", "study.toml", "--format", "json", cwd=folder))
        return {row["row"]: round(row[f"{metric}_test"], 4) for row in table}

    base, rows = "lr = 0.1", ["key = 'base'"]
    assert trained(study(HEAD, base, [ACC], rows)) == ["0.1 0.1 1"]
    rows.append("key = 'lr2', set = {lr = 0.2}")
    assert trained(study(HEAD, base, [ACC], rows)) == ["0.2 0.1 1"]
    # A new metric, and a new pattern of the first metric, are read from the kept logs.
    assert trained(study(HEAD, base, [ACC, LOSS], rows)) == []
    assert numbers("loss") == {"base": 0.05, "lr2": 0.1}
    other = ACC.replace("acc (", "final acc (")
    assert trained(study(HEAD, base, [other, LOSS], rows)) == []
    assert numbers("acc") == {"base": 11.1, "lr2": 21.1}
    # A new option with the value that the script used before trains nothing.
    base = "lr = 0.1, dropout = 0.1"
    assert trained(study(WITH_DROPOUT, base, [ACC, LOSS], rows)) == []
    rows.append("key = 'drop', set = {dropout = 0.3}")
    assert trained(study(WITH_DROPOUT, base, [ACC, LOSS], rows)) == ["0.1 0.3 1"]
    # Settings for progress, columns, notes and links train nothing.
    renamed = WITH_DROPOUT.replace("TITLE", "Another title")
    for more in ("progress = 'epoch (\\d+)/(\\d+)'", "columns = {lr = 'rate'}", "notes = ['A note.']"):
        assert (more, trained(study(renamed, base, [ACC, LOSS, F1], rows, more))) == (more, [])
    assert trained(study(renamed, base, [ACC, LOSS, F1], rows, "links = ['train.py', 'data']")) == []
    assert numbers("f1") == {"base": 0.1, "lr2": 0.2, "drop": 0.1}
    # A second seed trains only that seed.
    new = ["0.1 0.1 2", "0.1 0.3 2", "0.2 0.1 2"]
    assert trained(study(renamed, base, [ACC, LOSS, F1], rows, "seeds = 2")) == new
    # A changed default gives other runs for rows that use it. The earlier runs return when it is changed back.
    moved = study(renamed, base.replace("lr = 0.1", "lr = 0.15"), [ACC], rows, "seeds = 2")
    (folder / "study.toml").write_text(moved)
    plan = cli("plan", "study.toml", cwd=folder).stdout
    assert "0.1" in plan and "0.15" in plan and "lr" in plan
    assert trained(moved) == ["0.15 0.1 1", "0.15 0.1 2", "0.15 0.3 1", "0.15 0.3 2"]
    assert trained(study(renamed, base, [ACC, F1], rows, "seeds = 2")) == []
    # A changed default gives other runs for rows that do not set it.
    below = study(renamed, base.replace("dropout = 0.1", "dropout = 0.2"), [ACC], rows, "seeds = 2")
    assert trained(below) == ["0.1 0.2 1", "0.1 0.2 2", "0.2 0.2 1", "0.2 0.2 2"]
    assert trained(study(renamed, base, [ACC, LOSS], rows, "seeds = 2")) == []
    assert numbers("acc") == {"base": 11.15, "lr2": 21.15, "drop": 13.15}
    assert len(list(folder.glob("runs/runs/*/result.json"))) == 14
