"""`ablations tabulate`: the same table from every source, tests as scipy's, and one sentence for each wrong use.

The exports in the folder exports are written by the programs' own libraries (make.py there).
"""

import csv
import gzip
import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from mlflow import MlflowClient
from typer.testing import CliRunner

from ablations.cli.main import app
from ablations.extras.imports.new_study import digits
from ablations.extras.imports.tests.tabulated import rows, tabulate, written
from experiments.errors import UserError
from reports.results.dunnett import t3

EXPORTS = Path(__file__).parent / "exports"
RUNS = EXPORTS / "runs.csv"


def cells(*words: object) -> dict[str, dict[str, Any]]:
    kept = ("acc_test", "acc_test_sd", "acc_test_change", "acc_test_p", "loss_test", "loss_test_sd", "n")
    return {row["row"]: {name: row.get(name) for name in kept} for row in rows(*words)}


def mlflow_of_csv(folder: Path) -> str:
    uri = f"sqlite:///{folder / 'theirs.db'}"
    client = MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment("optimizers", artifact_location=str(folder / "artifacts"))
    for line in csv.DictReader(RUNS.open()):
        run = client.create_run(experiment).info.run_id
        for name in ("optimizer", "seed"):
            client.log_param(run, name, line[name])
        for name in ("acc", "loss"):
            client.log_metric(run, name, float(line[name]))
        client.set_terminated(run)
    return f"mlflow:{uri}#optimizers"


@pytest.mark.parametrize(
    "source",
    ["trackio", "mlflow", *(pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in ("wandb", "tensorboard"))],
)
def test_every_source_gives_the_cells_of_the_csv_file(source: str, tmp_path: Path) -> None:
    expected = cells(RUNS)
    assert len(expected) == 5 and expected["adam"]["acc_test"] == np.mean([0.71875, 0.7138671875, 0.712890625])
    if source == "trackio":
        (tmp_path / "demo.db").write_bytes(gzip.decompress((EXPORTS / "trackio.db.gz").read_bytes()))
        words = f"trackio:{tmp_path / 'demo.db'}"
    elif source == "mlflow":
        words = mlflow_of_csv(tmp_path)
    else:
        pytest.importorskip(source)
        words = f"{source}:{EXPORTS / source}"
    assert cells(words, "--base", "optimizer=adam") == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([[0.9, 0.8], [0.7, 0.6]], 3),
        ([[0.91, 0.8]], 3),
        ([[0.25], [0.5]], 2),
        ([[150000000000.0], [12.0]], 0),
        ([[12345678.123, 12345679.5], [1.2e-05, 1.3e-05]], 7),
        ([[1.2e-05, 1.21e-05], [1.25e-05, 1.3e-05]], 8),
        ([[0.5, 0.25], [-0.5, 0.5], [0.0, 0.0]], 2),
        ([[1.25e-05], [0.5]], 7),
        ([[1e-30, 1e-30]], 12),
    ],
)
def test_guessed_digits_print_no_value_as_zero(values: list[list[float]], expected: int) -> None:
    assert digits(values) == expected


def test_logs_of_evaluations_pair_single_examples() -> None:
    printed = rows(f"inspect:{EXPORTS / 'inspect'}", "--significance", "sentences")
    shares = [json.loads(file.read_text()) for file in sorted((EXPORTS / "inspect").glob("*.json"))]
    by_row: dict[str, list[float]] = {}
    for log in shares:
        right = [sample["scores"]["match"]["value"] == "C" for sample in log["samples"]]
        by_row.setdefault(log["eval"]["task_args"]["optimizer"], []).append(float(np.mean(right)))
    assert {row["row"]: row["accuracy_answers"] for row in printed} == {k: np.mean(v) for k, v in by_row.items()}
    assert printed[1]["accuracy_answers_p"] is not None
    of_harness = rows(f"lm-eval:{EXPORTS / 'lm-eval'}", "--row", "tag", "--significance", "sentences")
    assert [row["row"] for row in of_harness] == ["a", "b"] and of_harness[1]["acc_tiny_p"] is not None


DAMAGED = {
    "no JSON": ("lm-eval", "results_1.json", "{"),
    "a list where tasks belong": ("lm-eval", "results_1.json", '{"results": [1]}'),
    "text where metrics belong": ("lm-eval", "results_1.json", '{"results": {"task": "acc"}}'),
    "nothing in it": ("lm-eval", "results_1.json", "{}"),
    "deep": ("lm-eval", "results_1.json", "[" * 100_000),
    "bytes of no text": ("inspect", "log.json", b"\xff\xfe{"),
    "an eval that is a number": ("inspect", "log.json", '{"eval": 7}'),
    "scorers without a name": ("inspect", "log.json", '{"eval": {}, "results": {"scores": [{}]}}'),
    "not packed": ("inspect", "log.eval", "no archive"),
    "no database": ("trackio", "demo.db", "SQLite format 3 no"),
    "an empty database": ("trackio", "demo.db", ""),
    "not W&B's": pytest.param(("wandb", "run-1.wandb", b"\0" * 7 + b"\1" * 40), marks=pytest.mark.wandb),
    "cut short": pytest.param(("wandb", "run-1.wandb", None), marks=pytest.mark.wandb),
    "no events": pytest.param(("tensorboard", "a/events.out.tfevents.1", b"\1" * 40), marks=pytest.mark.tensorboard),
}


@pytest.mark.parametrize("given", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_log_is_one_sentence(given: tuple[str, str, Any], tmp_path: Path) -> None:
    kind, name, content = given
    if kind in ("wandb", "tensorboard"):
        pytest.importorskip(kind)
    if content is None:
        content = min((EXPORTS / "wandb").glob("*.wandb")).read_bytes()[:200]
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=re.escape(str(tmp_path))) as raised:
        tabulate(f"{kind}:{file if kind == 'trackio' else tmp_path}")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("case", range(20))
def test_p_values_are_those_of_scipy(case: int, tmp_path: Path) -> None:
    draw = np.random.default_rng(case)
    count, seeds = int(draw.integers(1, 5)), int(draw.integers(3, 7))
    values = draw.normal(draw.normal(50, 1, (count + 1, 1)), 1, (count + 1, seeds)).round(6)
    lines = ["model,seed,acc", *(f"m{i},{s + 1},{v}" for i, row in enumerate(values) for s, v in enumerate(row))]
    (tmp_path / "runs.csv").write_text("\n".join(lines))
    paired = [row.get("acc_test_p") for row in rows(tmp_path / "runs.csv", "--pair", "seed")][1:]
    expected = [min(1.0, scipy.stats.ttest_rel(row, values[0]).pvalue * count) for row in values[1:]]
    assert paired == pytest.approx(expected, abs=1e-6)
    independent = [row.get("acc_test_p") for row in rows(tmp_path / "runs.csv", "--significance", "seeds")][1:]
    equal = scipy.stats.dunnett(*values[1:], control=values[0], random_state=np.random.default_rng(0)).pvalue
    unequal = [t3(values[0], row, count).p(row.mean() - values[0].mean(), seeds) for row in values[1:]]
    assert independent == pytest.approx(list(np.maximum(equal, unequal)), abs=2e-3)
    if count == 1:
        welch = scipy.stats.ttest_ind(values[1], values[0], equal_var=False).pvalue
        assert independent == pytest.approx([welch], abs=1e-6)


FOLDS = {"a": {1: 10.0, 2: 20.0, 3: 30.0, 4: 40.0}, "b": {2: 21.0, 3: 31.1, 4: 40.9}, "c": {4: 39.0, 2: 22.0, 1: 11.0}}


@pytest.mark.parametrize("name", [str, "fold{}".format, "0{}".format, lambda n: ["mon", "tue", "wed", "thu"][n - 1]])
def test_runs_pair_by_the_value_of_their_fold(name: Any, tmp_path: Path) -> None:
    """Whatever the order of the lines, and whichever folds a row lacks; Δ, interval and test are of the same pairs."""
    lines = [f"{row},{name(fold)},{acc}" for row, accs in FOLDS.items() for fold, acc in accs.items()]
    file = written(tmp_path, ["row,fold,acc", *sorted(lines, reverse=True)])
    importing = ["import", tmp_path / "s.toml", "--from", file, "--seed-by", "fold", "--metric", "acc"]
    done = CliRunner().invoke(app, [*map(str, importing), "--store", str(tmp_path / "runs")])
    assert done.exit_code == 0, done.output
    report = CliRunner().invoke(
        app,
        ["report", str(tmp_path / "s.toml"), "--store", str(tmp_path / "runs"), "--significance", "paired", "--json"],
    )
    stored = json.loads(report.stdout)
    base = stored[0]["row"]
    for printed in (rows(file, "--pair", "fold", "--base", f"row={base}"), stored):
        for row in printed[1:]:
            common = sorted(FOLDS[row["row"]].keys() & FOLDS[base].keys())
            ours, theirs = ([FOLDS[key][fold] for fold in common] for key in (row["row"], base))
            test = scipy.stats.ttest_rel(ours, theirs)
            interval = test.confidence_interval(1 - 0.05 / 2)  # Bonferroni: two rows
            assert row["acc_test"] == pytest.approx(np.mean(list(FOLDS[row["row"]].values())))
            assert row["acc_test_change"] == pytest.approx(np.subtract(ours, theirs).mean())
            assert row["acc_test_p"] == pytest.approx(min(1.0, 2 * test.pvalue))
            assert [row["acc_test_low"], row["acc_test_high"]] == pytest.approx([interval.low, interval.high])
    assert ("use only runs that form pairs") in tabulate(
        file, "--pair", "fold", "--base", f"row={base}", "--format", "markdown"
    )[0]


WRONG = {
    "a seed twice with other values": (["m,seed,acc", "a,1,1", "a,1,2", "a,2,3"], (), "2 runs have the seed 1"),
    "no such row": (["model,seed,acc", "a,1,1", "b,1,2"], ("--row", "modle"), "model"),
    "no such seed": (["model,seeed,acc", "a,1,1", "b,1,2"], ("--seed", "seed"), "seeed"),
    "no such metric": (["model,seed,acc", "a,1,1", "b,1,2"], ("--metric", "ac"), "acc"),
    "no such direction": (["model,seed,acc", "a,1,1", "b,1,2"], ("--metric", "acc:up"), "acc:min if lower is better"),
    "no such base": (["model,seed,acc", "a,1,1", "b,1,2"], ("--base", "model=c"), "a, b"),
    "both": (["model,seed,acc", "a,1,1", "b,1,2"], ("--row", "acc", "--metric", "acc"), "acc"),
    "mixed types": (["model,seed,acc", "a,1,1", "b,1,much"], ("--metric", "acc"), "line 3, column 3: acc = 'much'"),
    "no metric": (["model,seed,width", "a,1,1", "b,1,2"], (), "--metric"),
    "no such file": ([], (), "nothing.csv"),
    "too many": (["model,seed,acc", *(f"a,{i},1" for i in range(20_001))], (), "20,000"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_use_is_one_sentence_with_the_nearest_names(case: str, tmp_path: Path) -> None:
    lines, words, named = WRONG[case]
    file = written(tmp_path, lines) if lines else tmp_path / "nothing.csv"
    with pytest.raises(UserError, match=named) as raised:
        tabulate(file, *words)
    assert "\n" not in str(raised.value)


def test_gaps_and_single_seeds_are_said_and_the_choice_is_a_study(tmp_path: Path) -> None:
    file = written(tmp_path, ["model,when,acc,loss", "a,mon,0.5,1.5", "b,tue,0.75,"])
    study = tmp_path / "chosen.toml"
    printed, said = tabulate(file, "--row", "model", "--metric", "acc,loss:max", "--write", study)
    assert "loss is missing in 1 run of 2 (line 3" in said and "One seed" in printed and "§" in printed
    assert 'better = "higher"' in study.read_text()
    store = tmp_path / "runs"
    [line] = [line for line in said.splitlines() if "ablations import" in line]
    words = shlex.split(line.partition(": ablations ")[2])
    done = CliRunner().invoke(app, [*words, "--store", str(store)])
    assert done.exit_code == 0, done.output
    again = CliRunner().invoke(app, ["report", str(study), "--store", str(store), "--json"])
    assert [row["acc_test"] for row in json.loads(again.stdout)] == [0.5, 0.75]
    assert not list(tmp_path.glob("ablations*")) and {p.name for p in tmp_path.iterdir()} == {
        "runs.csv",
        "chosen.toml",
        "runs",
    }
