"""`ablations import --from`: rows trained elsewhere, marked, never half imported."""

import json
import re
import shlex
import sqlite3
import statistics
import subprocess
import time
import uuid
from contextlib import closing
from pathlib import Path

import pytest
from mlflow import MlflowClient

from ablations.extras.imports.external import ExternalRun
from ablations.extras.imports.mlflow_runs import read_mlflow
from experiments.store.layout import Store
from tests.slow import mostly_nightly
from tests.system.conftest import TINY, Cli, command, environment

OURS = """
name = "mixed"
title = "Ours and theirs"
command = "python3 walk.py {lr} {seed} {metrics}"
seeds = 3

[base]
lr = 0.5

[[metric]]
name = "loss"
better = "lower"

[[variation]]
key = "base"

[[variation]]
key = "theirs"
imported = true
set = {lr = 0.1}
"""
WALK = """
import json, pathlib, sys
pathlib.Path(sys.argv[3]).write_text(json.dumps({"loss": float(sys.argv[1]) + 0.01 * int(sys.argv[2])}))
"""
LONG = """row,seed,set,metric,value,lr,optimizer
theirs,1,test,loss,0.21,0.1,adam
theirs,2,test,loss,0.22,0.1,adam
theirs,3,test,loss,0.26,0.1,adam
"""


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    (tmp_path / "mixed.toml").write_text(OURS, encoding="utf-8")
    (tmp_path / "walk.py").write_text(WALK, encoding="utf-8")
    (tmp_path / "theirs.csv").write_text(LONG, encoding="utf-8")
    return tmp_path


def rows(cli: Cli, study: Path, store: Path) -> dict[str, dict[str, object]]:
    return {row["row"]: row for row in json.loads(cli("report", study, "--store", store, "--json").stdout)}


@pytest.mark.extra("bundles")
def test_rows_from_elsewhere_stand_beside_ours_marked_and_tested(mixed: Path, cli: Cli) -> None:
    study, store = mixed / "mixed.toml", mixed / "runs"
    said = cli("import", study, "--from", mixed / "theirs.csv", "--store", store)
    assert "3 runs of 1 row imported from theirs.csv" in said.stdout and "optimizer" in said.stderr
    trained = cli("run", study, "--store", store, "--devices", "cpu:2")  # trains base alone
    assert "6 runs: 3 done, 3 queued" in trained.stderr

    found = rows(cli, study, store)
    assert found["theirs"]["loss_test"] == statistics.fmean([0.21, 0.22, 0.26])
    assert found["theirs"]["loss_test_sd"] == statistics.stdev([0.21, 0.22, 0.26])
    assert (found["theirs"]["imported"], found["base"]["imported"]) == (True, False)
    assert found["theirs"]["loss_test_marked"] is True  # by Dunnett over seeds, as a row of ours

    printed = cli("report", study, "--store", store, "--format", "markdown").stdout
    line = next(line for line in printed.splitlines() if line.startswith("| theirs"))
    assert "0.23 ± 0.03" in line and "§" in line
    assert "§: trained elsewhere and imported from the CSV file theirs.csv (SHA-256 " in printed
    assert "Warning" not in printed
    assert "\\S{}" in cli("report", study, "--store", store, "--format", "latex").stdout

    explained = cli("explain", study, "theirs.loss_test", "--full", "--store", store).stdout
    assert "source: theirs.csv" in explained and "optimizer: adam" in explained
    setup = cli("report", study, "--store", store, "--format", "setup").stdout
    assert "We train 1 variation" in setup and "3 of them trained elsewhere and imported" in setup
    page = cli("report", study, "--store", store, "--format", "html").stdout
    assert "<td>imported</td>" in page and "trained elsewhere" in page

    file = mixed / "table.md"
    cli("report", study, "--store", store, "--format", "markdown", "--out", file)
    verified = cli("verify", file, study, "--store", store).stdout
    assert "all equal" in verified and "3 runs were trained elsewhere" in verified
    cli("bundle", study, "--store", store, "--out", mixed / "mixed.tar.gz")
    assert cli("report", mixed / "mixed.tar.gz", "--format", "markdown").stdout.partition("\n\n")[2] == printed


def test_the_same_file_again_changes_nothing_and_other_numbers_need_a_word(mixed: Path, cli: Cli) -> None:
    study, store, file = mixed / "mixed.toml", mixed / "runs", mixed / "theirs.csv"
    cli("import", study, "--from", file, "--store", store)
    before = {path: path.read_bytes() for path in store.rglob("result.json")}
    assert "0 runs of 1 row imported" in cli("import", study, "--from", file, "--store", store).stdout
    file.write_text(LONG.replace("0.26", "0.36"), encoding="utf-8")
    assert "--replace" in cli("import", study, "--from", file, "--store", store, code=2).stderr
    assert before == {path: path.read_bytes() for path in store.rglob("result.json")}
    assert "1 replaced" in cli("import", study, "--from", file, "--store", store, "--replace").stdout
    assert rows(cli, study, store)["theirs"]["loss_test"] == statistics.fmean([0.21, 0.22, 0.36])


def in_mlflow(store: Path) -> dict[str, object]:
    """The imported runs as MLflow shows them: name, tags of their place, scores, times."""
    copy = store / f"{uuid.uuid4()}.db"  # MLflow keeps a file open, even once `rebuild` has replaced it
    with closing(sqlite3.connect(store / "mlflow.db")) as db, closing(sqlite3.connect(copy)) as to:
        db.backup(to)  # with what is not yet in the file itself
    client = MlflowClient(tracking_uri=f"sqlite:///{copy}")
    runs = client.search_runs([e.experiment_id for e in client.search_experiments()], "tags.imported LIKE '%'")
    return {
        run.info.run_name: (
            {k: run.data.tags[k] for k in ("study", "row", "imported", "run_id")},
            run.data.params["lr"], run.data.metrics, run.info.status, run.info.start_time, run.info.end_time,
        )
        for run in runs
    }  # fmt: skip


def test_mlflow_shows_them_marked_and_a_rebuilt_database_too(mixed: Path, cli: Cli) -> None:
    study, store = mixed / "mixed.toml", mixed / "runs"
    cli("import", study, "--from", mixed / "theirs.csv", "--store", store)
    shown = in_mlflow(store)
    assert sorted(shown) == [f"theirs · seed {seed}, imported" for seed in (1, 2, 3)]
    tags, lr, metrics, status, *_ = shown["theirs · seed 3, imported"]
    assert (tags["study"], tags["row"], tags["imported"]) == ("mixed", "theirs", "csv: theirs.csv")
    assert (lr, metrics["loss.test"], status) == ("0.1", 0.26, "FINISHED")
    cli("ui", "--rebuild", "mlflow", "--store", store)
    assert in_mlflow(store) == shown
    (mixed / "theirs.csv").write_text(LONG.replace("0.26", "0.36"), encoding="utf-8")
    cli("import", study, "--from", mixed / "theirs.csv", "--store", store, "--replace")
    replaced = in_mlflow(store)
    assert len(replaced) == 3 and replaced["theirs · seed 3, imported"][2]["loss.test"] == 0.36


def killed_before_mlflow(store: Path, *words: str | Path) -> None:
    """An import that is killed when its runs are in place: MLflow's own import takes two more seconds."""
    importing = subprocess.Popen(command("import", *words, "--store", store), env=environment())
    while len(list(store.glob("runs/[0-9a-f]*/result.json"))) < 3:
        assert importing.poll() is None
        time.sleep(0.01)
    importing.kill()
    importing.wait()
    assert not (store / "mlflow.db").exists()


@pytest.mark.slow
def test_an_import_that_is_killed_before_mlflow_is_completed(mixed: Path, cli: Cli) -> None:
    """By the same command, or by `work`; `status` says that it is needed."""
    words, store = (mixed / "mixed.toml", "--from", mixed / "theirs.csv"), mixed / "runs"
    killed_before_mlflow(store, *words)
    said = f"3 finished runs are not in MLflow: `ablations work --store {store}` adds them"
    assert said in cli("status", "--store", store).stdout
    assert "0 runs of 1 row imported" in cli("import", *words, "--store", store).stdout
    shown = in_mlflow(store)
    assert sorted(shown) == [f"theirs · seed {seed}, imported" for seed in (1, 2, 3)]
    assert "MLflow" not in cli("status", "--store", store).stdout

    (mixed / "theirs.csv").write_text(LONG.replace("0.26", "0.36"), encoding="utf-8")
    with closing(sqlite3.connect(store / "mlflow.db")) as db, closing(sqlite3.connect(mixed / "before.db")) as to:
        db.backup(to)
    (mixed / "before.jsonl").write_bytes((store / "mlflow.jsonl").read_bytes())
    cli("import", *words, "--store", store, "--replace")
    with closing(sqlite3.connect(mixed / "before.db")) as db, closing(sqlite3.connect(store / "mlflow.db")) as to:
        db.backup(to)  # as a kill leaves it
    (store / "mlflow.jsonl").write_bytes((mixed / "before.jsonl").read_bytes())
    assert "1 finished run has rows or scores that are newer than MLflow" in cli("status", "--store", store).stdout
    assert "0 runs of 1 row imported" in cli("import", *words, "--store", store).stdout
    shown = in_mlflow(store)
    assert len(shown) == 3 and shown["theirs · seed 3, imported"][2]["loss.test"] == 0.36

    copy = mixed / "copy"
    killed_before_mlflow(copy, store)
    assert "3 missing runs added to MLflow" in cli("work", "--store", copy, "--devices", "cpu:1").stderr
    assert in_mlflow(copy) == shown
    assert "0 runs imported" in cli("import", store, "--store", copy).stdout


def test_import_and_forget_speak_json(mixed: Path, cli: Cli) -> None:
    study, where = mixed / "mixed.toml", ("--store", mixed / "runs")
    done = json.loads(cli("import", study, "--from", mixed / "theirs.csv", *where, "--json").stdout)
    assert (done["imported"], done["rows"], done["other_settings"]) == (3, ["theirs"], ["optimizer"])
    other = json.loads(cli("import", mixed / "runs", "--store", mixed / "copy", "--json").stdout)
    assert [run["how"] for run in other["runs"]] == ["taken"] * 3
    assert "--yes" in cli("forget", study, *where, "--json", code=2).stderr
    gone = json.loads(cli("forget", study, *where, "--json", "--yes").stdout)
    assert len(gone["forgotten"]) == 3 and not in_mlflow(mixed / "runs")


def test_numbers_are_those_that_stand_there(mixed: Path, cli: Cli) -> None:
    """Seeds without end are numbered in their order; 2024_01 and what is too large for a number are text."""
    rest = f"2024_01,{'9' * 400},\x7f\x07"
    text = f"row,seed,metric,value,day,id,bell\ntheirs,{'7' * 5000},loss,0.3,{rest}\ntheirs,-2,loss,0.1,{rest}\n"
    (mixed / "theirs.csv").write_text(text, encoding="utf-8")
    cli("import", mixed / "new.toml", "--from", mixed / "theirs.csv", "--store", mixed / "runs")
    assert 'day = "2024_01"' in (mixed / "new.toml").read_text()
    assert rows(cli, mixed / "new.toml", mixed / "runs")["theirs"]["n"] == 2


def test_fewer_seeds_are_a_gap(mixed: Path, cli: Cli) -> None:
    (mixed / "theirs.csv").write_text("row,seed,metric,value\ntheirs,2,loss,0.2\n", encoding="utf-8")
    cli("import", mixed / "mixed.toml", "--from", mixed / "theirs.csv", "--store", mixed / "runs")
    found = rows(cli, mixed / "mixed.toml", mixed / "runs")["theirs"]
    assert (found["loss_test"], found["n"], found["seeds"]) == (None, 1, 3)
    printed = cli("report", mixed / "mixed.toml", "--store", mixed / "runs", "--format", "markdown").stdout
    assert "Not imported yet, or not for every seed: theirs" in printed


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1"),
        ("row,seed,metric,value\ntheirs,1,loss,1\ntheirs,01,loss,2\n", "2 runs have the seed 1"),
        ("row,seed,metric,value\ntheirs,1,loss,1\ntheirs,1.0,loss,2\n", "2 runs have the seed 1"),
        ("row,seed,metric,value\ntheirs,1,loss,1_5\n", "value = '1_5' is not a number"),
        ("row,seed,metric,value\ntheirs,1,lo\0ss,1\n", "NUL"),
        pytest.param(f"row,seed,loss,{','.join(map(str, range(10**5)))}\n", "has 100,003 columns", id="wide"),
        ("row,seed,metric,value\n", "no lines below"),
        ("name,seed,metric,value\na,1,loss,2\n", "--row-by NAME"),
        (
            "row,seed,metric,value\ntheirs,1,loss,2\ntheirs,2,loss,much\n",
            "line 3, column 4: value = 'much' is not a number",
        ),
        (
            "row,seed,metric,value\ntheirs,1,loss,2\ntheirs,1,loss,3\n",
            "line 3: test/loss stands there twice",
        ),
        ("row,seed,metric,value\ntheirs,1,loss\n", "line 2 has 3 cells"),
        ("row,seed,metric,value\nthiers,1,loss,2\n", "no imported row 'thiers'. Nearest imported rows: theirs"),
        ("row,seed,metric,value\nbase,1,loss,2\n", "no imported row 'base'"),
        ("row,seed,metric,value,lr\ntheirs,1,loss,2,0.3\n", "lr is 0.3, and the row theirs of the study has 0.1"),
        ("row,seed,metric,value\n" + "".join(f"theirs,{n},loss,2\n" for n in range(4)), "seeds = 4"),
        ("row,seed,accuracy\ntheirs,1,0.9\n", "has no metric of the study"),
        ("row,seed,loss\na b,1,0.9\na+b,2,0.8\n", "'a b' and 'a+b' would both get the key 'a-b'"),
        ("row,seed,loss\ntheirs,1,0.9\ntheirs,,0.8\n", "2 runs, and not every run has a seed (line 2, line 3)"),
    ],
)
def test_a_bad_file_is_one_paragraph_and_leaves_nothing(mixed: Path, cli: Cli, text: str, said: str) -> None:
    (mixed / "theirs.csv").write_text(text, encoding="utf-8")
    done = cli("import", mixed / "mixed.toml", "--from", mixed / "theirs.csv", "--store", mixed / "runs", code=2)
    assert said in done.stderr and "Traceback" not in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (mixed / "runs").exists()


def test_a_wide_file_without_a_study_becomes_one(tmp_path: Path, cli: Cli) -> None:
    lines = ["base;42;;0.1;26.1;25.3", "base;1337;;0.1;26.3;25.1", "big;42;A;0.2;28.0;27.4"]
    text = "\n".join(["row;seed;group;lr;dev/bleu;test/bleu", *lines, ""])
    (tmp_path / "wide.csv").write_text(text, encoding="utf-8-sig")
    study, store = tmp_path / "bleu.toml", tmp_path / "runs"
    assert "2 rows imported" in cli("import", study, "--from", tmp_path / "wide.csv", "--store", store).stdout
    found = rows(cli, study, store)
    assert found["base"]["bleu_dev"] == pytest.approx(26.2) and found["big"]["bleu_test"] == 27.4
    assert found["big"]["bleu_test_change"] == pytest.approx(27.4 - 25.2) and found["big"]["settings"] == {"lr": 0.2}
    records = [Store.open(store).result(run_id) for run_id in Store.open(store).run_ids()]
    assert sorted((r.config["seed"], r.imported.seed) for r in records) == [(1, "42"), (1, "42"), (2, "1337")]
    refused = cli("run", study, "--store", store, "--devices", "cpu:1").stderr
    assert "nothing to train" in refused


def test_names_that_a_study_cannot_have_are_changed_and_said(tmp_path: Path, cli: Cli) -> None:
    """A group is changed as a row's name is; a setting that became one of the study is not said to be none."""
    text = "row,group,seed,test/acc,lr$\nbase,G & <b>,1,93,0.1\nb,G & <b>,1,94,0.2\n"
    (tmp_path / "odd.csv").write_text(text, encoding="utf-8")
    study, store = tmp_path / "odd.toml", tmp_path / "runs"
    said = cli("import", study, "--from", tmp_path / "odd.csv", "--store", store)
    assert "not settings of this study" not in said.stderr and 'group = "G-b"' in study.read_text()
    assert rows(cli, study, store)["b"]["settings"] == {"lr_": 0.2}
    setup = cli("report", study, "--store", store, "--format", "setup").stdout
    assert "**Computing infrastructure**: not recorded" in setup
    (tmp_path / "odd.csv").write_text("row,seed,test/acc,lr$,lr_\nbase,1,2,3,4\nb,1,2,3,5\n")
    cli("import", tmp_path / "x.toml", "--from", tmp_path / "odd.csv", "--store", store)
    assert rows(cli, tmp_path / "x.toml", store)["b"]["settings"] == {"lr_": 5}
    (tmp_path / "bad.csv").write_text("row,seed,test/acc,lr\nbase,1,2,3\nbase,1,2,4\n")
    refused = cli("import", tmp_path / "y.toml", "--from", tmp_path / "bad.csv", "--store", store, code=2).stderr
    assert ".importing-" not in refused and not (tmp_path / "y.toml").exists()


def test_runs_of_another_mlflow_become_rows(tmp_path: Path, cli: Cli) -> None:
    database = tmp_path / "their.db"
    client = MlflowClient(f"sqlite:///{database}")
    home = client.create_experiment("sweep", (tmp_path / "files").as_uri())
    for optimizer in ("adam", "sgd"):
        for seed in (0, 1, 2):
            run = client.create_run(home, run_name=f"{optimizer}-{seed}")
            client.log_param(run.info.run_id, "optimizer", optimizer)
            client.log_param(run.info.run_id, "seed", seed)
            client.log_metric(run.info.run_id, "val_accuracy", 80 + seed + (optimizer == "sgd"), step=1)
            client.log_metric(run.info.run_id, "val_accuracy", 90 + seed + (optimizer == "sgd"), step=2)
            client.set_terminated(run.info.run_id, "FAILED" if (optimizer, seed) == ("sgd", 2) else "FINISHED")
    before = database.read_bytes()
    study, store = tmp_path / "sweep.toml", tmp_path / "runs"
    said = cli("import", study, "--from", f"mlflow:sqlite:///{database}", "--store", store, "--metric", "val_accuracy")
    assert "left out: run sgd-2: its status is FAILED" in said.stderr and "5 runs of 2 rows" in said.stdout
    found = rows(cli, study, store)
    assert (found["adam"]["accuracy_val"], found["sgd"]["accuracy_val"]) == (91.0, 91.5)
    assert database.read_bytes() == before and not list(tmp_path.glob("their.db-*"))


def test_an_old_folder_of_mlflow_is_read(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = MlflowClient((tmp_path / "mlruns").as_uri())
    run = client.create_run(client.create_experiment("old"), run_name="only")
    client.log_metric(run.info.run_id, "test.f1", 0.5)
    client.set_tag(run.info.run_id, "row", "base")
    client.set_terminated(run.info.run_id)
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE")
    words = ("import", tmp_path / "old.toml", "--from", f"mlflow:{tmp_path / 'mlruns'}", "--store", tmp_path / "runs")
    secret = tmp_path / "secret"
    secret.write_text("a file of the reader's own")
    next(tmp_path.glob("mlruns/*/*/tags")).joinpath("row").rename(tmp_path / "row")
    next(tmp_path.glob("mlruns/*/*/tags")).joinpath("row").symlink_to(secret)
    assert "is a link; copy the folder without links" in cli(*words, code=2).stderr
    (tmp_path / "row").rename(next(tmp_path.glob("mlruns/*/*/tags")) / "row")
    cli(*words)
    assert rows(cli, tmp_path / "old.toml", tmp_path / "runs")["base"]["f1_test"] == 0.5


@pytest.mark.parametrize("content", [None, b"text", b"SQLite format 3\0"])
def test_what_is_no_mlflow_is_refused_and_not_changed(tmp_path: Path, cli: Cli, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "x.db").write_bytes(content)
    uri = f"sqlite:///{tmp_path / 'x.db'}"
    done = cli("import", tmp_path / "s.toml", "--from", f"mlflow:{uri}", "--store", tmp_path / "runs", code=2)
    assert "mlflow:" in done.stderr and "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ([] if content is None else ["x.db"])
    assert content is None or (tmp_path / "x.db").read_bytes() == content


@pytest.mark.nightly
def test_the_database_that_this_program_writes_is_read(mixed: Path, cli: Cli) -> None:
    """Its trainings; what it writes for the table's page is no run. Two stores of one study give one table."""
    study, store = mixed / "mixed.toml", mixed / "runs"
    cli("import", study, "--from", mixed / "theirs.csv", "--store", store)
    cli("run", study, "--store", store, "--devices", "cpu:2")
    before = rows(cli, study, store)
    database = f"mlflow:sqlite:///{store / 'mlflow.db'}"
    done = cli("tabulate", database, "--metric", "loss.test", "--json")
    found = {row["row"]: row["loss_test"] for row in json.loads(done.stdout)}
    assert found == {key: pytest.approx(row["loss_test"]) for key, row in before.items()}
    assert "for the table's page" in done.stderr
    words = ("import", mixed / "again.toml", "--from", database, "--metric", "loss.test", "--store", mixed / "others")
    assert "6 runs of 2 rows imported" in cli(*words).stdout


def test_the_page_on_importing_runs_as_printed(tmp_path: Path, cli: Cli) -> None:
    """Its files are those named before each block; its commands run in their order."""
    page = (Path(__file__).parents[2] / "import.md").read_text(encoding="utf-8")
    for name, content in re.findall(r"`([\w.]+)`[^`\n]*\n\n```\w+\n(.*?)```", page, re.DOTALL):
        (tmp_path / name).write_text(content, encoding="utf-8")
    assert {path.name for path in tmp_path.iterdir()} >= {"runs.csv", "mixed.toml", "train.py", "theirs.csv"}
    commands = re.findall(r"^    ablations (.*)$", page, re.MULTILINE)
    assert len(commands) >= 5
    for line in commands:
        cli(*shlex.split(line), cwd=tmp_path)
    found = {row["row"]: row for row in json.loads(cli("report", "mixed.toml", "--json", cwd=tmp_path).stdout)}
    assert found["base"]["loss_test"] == pytest.approx(0.52) and found["theirs"]["loss_test"] == pytest.approx(0.23)
    tabulated = cli("tabulate", "runs.csv", "--json", cwd=tmp_path).stdout
    assert [round(row["acc_test"], 2) for row in json.loads(tabulated)] == [80.97, 79.07, 80.03]


def their_mlflow(folder: Path) -> Path:
    """A database of one finished run, adam, with a score of 90."""
    client = MlflowClient(f"sqlite:///{folder / 'their.db'}")
    run = client.create_run(client.create_experiment("sweep", (folder / "files").as_uri()), run_name="adam").info.run_id
    client.log_param(run, "opt", "adam")
    client.log_metric(run, "acc", 90.0)
    client.set_terminated(run)
    return folder / "their.db"


@pytest.mark.slow
@pytest.mark.parametrize("by_command", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_database_of_an_older_mlflow_is_read_and_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_command: bool
) -> None:
    """MLflow itself brings a copy up to date that lacks tables; where only columns differ, its command does."""
    from alembic.command import downgrade
    from mlflow.store.db import utils

    database = their_mlflow(tmp_path)
    downgrade(utils._get_alembic_config(f"sqlite:///{database}"), "17e22815139b")
    before = database.read_bytes()
    if by_command:
        checks = iter([True])  # at the first look
        real = utils._all_tables_exist
        monkeypatch.setattr(utils, "_all_tables_exist", lambda engine: next(checks, False) or real(engine))
    [found] = read_mlflow(f"sqlite:///{database}")
    assert isinstance(found, ExternalRun) and (found.metrics, dict(found.settings)) == ({"acc": 90.0}, {"opt": "adam"})
    assert database.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "said"),
    mostly_nightly(
        [
            ("UPDATE params SET value = x'fffe00'", "'opt' is neither text nor a number"),
            ("UPDATE latest_metrics SET value = '<x>'", "'acc' is neither text nor a number"),
            ("UPDATE params SET value = CAST(x'ff41' AS TEXT)", "Could not decode to UTF-8"),
            ("ALTER TABLE latest_metrics RENAME COLUMN value TO valeur", "no such column"),
            (
                "WITH RECURSIVE n(i) AS (SELECT 10 UNION ALL SELECT i + 1 FROM n WHERE i < 600) INSERT INTO "
                "experiments (experiment_id, name, lifecycle_stage, workspace) "
                "SELECT i, 'e' || i, 'active', 'default' FROM n",
                "and 573 others",
            ),
        ],
        1,
    ),
)
def test_a_hostile_mlflow_is_refused_in_one_sentence(tmp_path: Path, cli: Cli, change: str, said: str) -> None:
    with closing(sqlite3.connect(their_mlflow(tmp_path))) as database, database:
        database.execute("PRAGMA ignore_check_constraints = 1")
        database.execute(change)
    name = "#none" if "others" in said else ""
    uri = f"sqlite:///{tmp_path / 'their.db'}"
    done = cli("import", tmp_path / "s.toml", "--from", f"mlflow:{uri}{name}", "--store", tmp_path / "runs", code=2)
    assert said in done.stderr
    assert "Traceback" not in done.stderr and len(done.stderr) < 1500 and not (tmp_path / "s.toml").exists()


def wandb_runs() -> list[dict[str, object]]:
    """As the API gives them: config and summary apart, W&B's own entries among them."""
    return [
        {
            "id": f"id{number}", "name": f"sweet-sun-{number}", "state": "crashed" if number == 4 else "finished",
            "config": {"lr": lr, "seed": seed, "_wandb": {"cli_version": "0.31.0"}, "model": {"depth": 4}},
            "summary": {"_runtime": 12, "_step": 100, "test/acc": acc, "train/loss": 0.1},
        }
        for number, (lr, seed, acc) in enumerate(
            [(0.1, 7, 90.0), (0.1, 8, 91.0), (0.2, 7, 92.0), (0.2, 8, 93.0), (0.2, 9, 1)]
        )
    ]  # fmt: skip


def test_runs_exported_from_wandb_as_json(tmp_path: Path, cli: Cli) -> None:
    file = tmp_path / "runs.json"
    file.write_text(json.dumps(wandb_runs()), encoding="utf-8")
    said = cli(
        "import", tmp_path / "w.toml", "--from", f"wandb:{file}", "--store", tmp_path / "runs", "--metric", "test/acc"
    )
    assert "left out: run sweet-sun-4: its status is crashed" in said.stderr
    found = rows(cli, tmp_path / "w.toml", tmp_path / "runs")
    assert (found["lr0.1"]["acc_test"], found["lr0.2"]["acc_test"]) == (90.5, 92.5)
    assert "depth = 4" in (tmp_path / "w.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("config", "score", "said"),
    [
        ('{"layers": null, "sizes": [1, null]}', "90", ""),
        ('{"a": "\\ud800"}', "90", "surrogates not allowed"),
        ("[" * 100_000, "90", "recursion"),
        ("{}", "9" * 400, ""),
    ],
    ids=["null", "half a character", "deep", "endless"],
)
def test_what_no_study_can_have_is_left_out_or_refused(
    tmp_path: Path, cli: Cli, config: str, score: str, said: str
) -> None:
    """A run's name cannot add lines to what is said."""
    run = f'{{"name": "a", "config": {config}, "summary": {{"acc": {score}}}}}'
    (tmp_path / "runs.json").write_text(f'[{run}, {{"name": "b\\nc", "state": "crashed"}}]', encoding="utf-8")
    words = ("import", tmp_path / "w.toml", "--from", f"wandb:{tmp_path / 'runs.json'}", "--store", tmp_path / "runs")
    done = cli(*words, code=2 if said else 0)
    assert said in done.stderr and len(done.stderr.splitlines()) == 1
    assert said or (
        "left out: run b c: its status" in done.stderr and rows(cli, tmp_path / "w.toml", tmp_path / "runs")
    )


def test_runs_exported_from_wandb_as_csv(tmp_path: Path, cli: Cli) -> None:
    head = '"Name","State","Notes","User","Tags","Created","Runtime","Sweep","lr","seed","test/acc"\n'
    lines = [
        f'"{run["name"]}","{run["state"]}","-","me","","2026-01-02T03:04:05.000Z","12","",'
        f'"{run["config"]["lr"]}","{run["config"]["seed"]}","{run["summary"]["test/acc"]}"\n'
        for run in wandb_runs()
    ]
    (tmp_path / "w.csv").write_text(head + "".join(lines), encoding="utf-8")
    cli("import", tmp_path / "w.toml", "--from", f"wandb:{tmp_path / 'w.csv'}", "--store", tmp_path / "runs")
    found = rows(cli, tmp_path / "w.toml", tmp_path / "runs")
    assert (found["lr0.1"]["acc_test"], found["lr0.2"]["acc_test"]) == (90.5, 92.5)


def test_built_in_tasks_print_no_change_from_scores_on_unknown_sentences(tmp_path: Path, cli: Cli) -> None:
    study = (
        TINY[: TINY.index("[[variation]]")]
        + '[[variation]]\nkey = "base"\n\n[[variation]]\nkey = "fairseq"\nimported = true\n'
    )
    (tmp_path / "tiny.toml").write_text(study, encoding="utf-8")
    (tmp_path / "f.csv").write_text(
        "row,set,metric,value\nfairseq,dev,bleu,26.0\nfairseq,dev,perplexity,4.4\n", encoding="utf-8"
    )
    store = tmp_path / "runs"
    cli("import", tmp_path / "tiny.toml", "--from", tmp_path / "f.csv", "--store", store)
    cli("run", tmp_path / "tiny.toml", "--store", store, "--devices", "cpu:1")
    found = rows(cli, tmp_path / "tiny.toml", store)
    assert found["fairseq"]["bleu"] == 26.0 and found["fairseq"]["bleu_change"] is None
    printed = cli("report", tmp_path / "tiny.toml", "--store", store, "--format", "markdown").stdout
    assert "was measured over different tokens, sentences or signatures" in printed and "**26.0**" not in printed
