"""The verbs on a store's ledger and budget, with a command that trains nothing."""

import json

import pytest
from typer.testing import CliRunner

from ablations.cli.main import app
from experiments.errors import UserError
from experiments.store import ledger
from experiments.store.layout import Store

STUDY = """
name = "said"
title = "A command"
command = '''printf '{"accuracy": %s}\\n' "$(expr {rate} '*' {seed})" '''
[base]
rate = 3
[[metric]]
name = "accuracy"
[[variation]]
key = "base"
[[variation]]
key = "fast"
set = {rate = 5}
"""


@pytest.fixture
def call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "said.toml").write_text(STUDY)

    def run(*words, code=0, **more):
        done = CliRunner().invoke(app, list(map(str, words)), **more)
        if isinstance(done.exception, UserError):
            raise done.exception
        assert done.exit_code == code, (done.output, done.exception)
        return done.stdout

    return run


@pytest.mark.extra("bundles")
def test_what_was_tried_is_in_the_ledger_the_table_and_the_bundle(call, tmp_path):
    call("run", "said.toml", "--because", "a first look")
    assert "got results" not in call("report", "said.toml", "--format", "markdown")
    (tmp_path / "said.toml").write_text(STUDY.replace("rate = 5", "rate = 7"))  # another row of the same name
    call("run", "said.toml", "--because", "seven?")
    printed = call("report", "said.toml", "--format", "markdown")
    assert "Shown: 2 of 3 rows with results in this store." in printed
    assert "Shown: 1 of 3 rows with results in this store." in call(
        "report", "said.toml", "--rows", "base", "--format", "markdown"
    )
    store = Store.open("runs")
    found = json.loads(call("ledger", "said.toml", "--json"))
    requests = [entry for entry in found if entry["what"] == "request"]
    assert [(r["verb"], r["because"], list(r["rows"])) for r in requests] == [
        ("run", "a first look", ["base", "fast"]),
        ("run", "seven?", ["fast"]),
    ]
    ended = [entry for entry in found if entry["what"] == "end"]
    assert len(ended) == 3 and all(entry["outcome"] == "finished" and entry["seconds"] > 0 for entry in ended)
    assert len(call("ledger", "-n", "2").splitlines()) == 2 and "because=seven?" in call("ledger")
    (tmp_path / "table.md").write_text(printed)
    call("verify", "table.md")
    call("plan", "said.toml", "--json")
    assert ledger.entries(store)[-1]["planned"] == ["base", "fast"]
    for name, redacted in (("b.tar.gz", ()), ("a.tar.gz", ("--anonymous",))):
        call("bundle", "said.toml", "--out", name, *redacted)
        call("verify", name)
        assert "Shown: 2 of 3 rows with results in this store." in call("report", name, "--format", "markdown")
    (store.root / ledger.FILE).write_bytes(b"damaged\n")
    assert "Line 1 of the ledger" in call("verify", "table.md", code=1)
    assert len(json.loads(call("verify", "table.md", "--json", code=1))["ledger"]) == 1
    assert "so the number of rows with results is unknown" in call("report", "said.toml", "--format", "markdown")


def test_only_rows_that_got_results_are_counted_each_once(call, tmp_path):
    """Not what was planned, queued or failed, and not the same row again after an edit of the study."""
    study = tmp_path / "said.toml"
    call("run", "said.toml")
    study.write_text(STUDY.replace("rate = 5", "rate = 6"))
    call("queue", "said.toml")
    call("cancel", "fast")
    study.write_text(STUDY.replace("printf", "exit 3; printf"))
    call("run", "said.toml", code=1)
    study.write_text(STUDY.replace('title = "A command"', 'title = "Another title"\nseeds = 2'))
    call("run", "said.toml")
    assert "shown" not in call("report", "said.toml", "--format", "markdown")


@pytest.mark.extra("bundles")
def test_damaged_lines_are_named_and_the_verbs_go_on(call, tmp_path, capfd):
    call("run", "said.toml")
    path = tmp_path / "runs" / ledger.FILE
    whole = path.read_bytes()
    for key in (b'"settings"', b'"n"', b'"time"'):
        path.write_bytes(whole.replace(key, key[:-2] + b'_"', 1))
        assert "base" in call("report", "said.toml", "--format", "markdown")
        assert "Line " in call("plan", "said.toml").partition("budget: unknown. ")[2]
        assert len(json.loads(call("ledger", "--json"))) >= len(whole.splitlines()) - 1
        call("bundle", "said.toml", "--out", "b.tar.gz")
        assert "base" in call("report", "b.tar.gz", "--format", "markdown")
        call("verify", "b.tar.gz", code=1)
    with pytest.raises(UserError, match="No run is started"):
        call("run", "said.toml", "--seeds", "2")  # the damaged line may have been a limit


@pytest.mark.parametrize("hours", ["inf", "1e308"])
def test_hours_without_end_are_no_limit(call, hours):
    with pytest.raises(UserError, match="--hours"):
        call("budget", "--hours", hours)
    store = Store.open("runs")
    ledger.append(store, "budget", limits={"hours": float("inf")}, allowed="")  # as earlier versions accepted it
    found = json.loads(call("budget", "--json"), parse_constant=lambda name: pytest.fail(name))
    assert found["hours"] is None and json.loads(call("budget", "--hours", 2, "--json"))["hours"]["left"] == 2


def test_a_budget_of_runs_holds_for_stale_runs_that_are_trained_again(call, tmp_path):
    script = "import sys\nprint('{\"accuracy\": ' + sys.argv[1] + '}')\nchange = "
    (tmp_path / "train.py").write_text(f"{script}1")
    (tmp_path / "said.toml").write_text(STUDY.replace("""printf '{"accuracy": %s}\\n' "$(expr {rate} '*' {seed})" """,
                                                      "python3 train.py {rate} {seed}"))  # fmt: skip
    call("run", "said.toml")
    (tmp_path / "train.py").write_text(f"{script}2")
    assert "stale" in call("plan", "said.toml")
    call("budget", "--runs", 1)
    call("run", "said.toml", "--stale", "rerun", code=1)
    (tmp_path / "train.py").write_text(f"{script}3")
    call("run", "said.toml", "--stale", "rerun", code=1)
    assert json.loads(call("budget", "--json"))["runs"] == {"limit": 1, "used": 1, "left": 0}
    assert len(list((tmp_path / "runs" / "runs").glob("*/attempts/*"))) == 3


@pytest.mark.extra("bundles")
def test_a_bundle_tells_of_other_studies_only_when_and_of_people_nothing_if_anonymous(call, tmp_path):
    (tmp_path / "other.toml").write_text(STUDY.replace('"said"', '"secret_study"').replace("rate = 5", "rate = 9"))
    call("run", "other.toml", "--because", "nobody else's business", "--rows", "fast")
    call("run", "said.toml", "--because", "for the paper")
    who = ledger.entries(Store.open("runs"))[0]["who"]
    call("bundle", "said.toml", "--out", "b.tar.gz")
    call("bundle", "said.toml", "--out", "a.tar.gz", "--anonymous")
    import tarfile

    def content(name):
        with tarfile.open(name) as archive:
            return archive.extractfile(ledger.FILE).read().decode()

    whole, anonymous = content("b.tar.gz"), content("a.tar.gz")
    assert "secret_study" not in whole and "business" not in whole and "for the paper" in whole
    assert "for the paper" not in anonymous and f'"{who}"' not in anonymous and '"request"' in anonymous
    bundle = Store.open(tmp_path / "opened")
    (bundle.root / ledger.FILE).write_text(whole)
    assert not ledger.damaged(bundle)
    assert [e["n"] for e in ledger.entries(bundle)] == [e["n"] for e in ledger.entries(Store.open("runs"))]


def test_a_budget_is_lowered_raised_and_removed(call):
    with pytest.raises(UserError, match="does not exist"):
        call("budget")
    found = json.loads(call("budget", "--hours", 8, "--runs", 2, "--until", "23:59", "--json"))
    assert (found["hours"]["left"], found["runs"]["limit"]) == (8, 2)
    call("budget", "--runs", 1, "--because", "tonight")
    assert "of 7 slot hours" in call("budget", "--hours", 7)
    call("run", "said.toml", code=1)
    assert json.loads(call("budget", "--json"))["runs"] == {"limit": 1, "used": 1, "left": 0}
    assert "budget left: " in call("plan", "said.toml") and "the budget of 1 runs is used up" in call("status")
    call("budget", "--runs", 5)
    call("run", "said.toml")
    call("budget", "--remove")
    assert "no budget is set" in call("budget")
    changes = [entry for entry in ledger.entries(Store.open("runs")) if entry["what"] == "budget"]
    assert [entry["allowed"] for entry in changes] == ["", "", "", "any", "none"]


@pytest.mark.parametrize("until", ["7", "25:00", "yesterday", "2020-01-01"])
def test_a_time_that_is_none(call, until):
    with pytest.raises(UserError, match="--until"):
        call("budget", "--until", until)


def test_a_reason_with_control_characters_is_refused_before_anything_is_done(call, tmp_path):
    with pytest.raises(UserError, match="--because"):
        call("run", "said.toml", "--because", "a\x1b[2Jb")
    assert not (tmp_path / "runs").exists()


def test_cancel_retry_and_forget_are_recorded(call):
    call("queue", "said.toml")
    call("cancel", "fast", "--because", "too dear")
    call("retry", "fast")
    call("work")
    call("forget", "said.toml", "--rows", "fast", "--yes")
    found = json.loads(call("ledger", "--json"))
    assert [entry["what"] for entry in found if entry["what"] not in ("start", "end")] == [
        *("request", "cancel", "retry", "forget")
    ]
    [cancelled] = [entry for entry in found if entry["what"] == "cancel"]
    assert (cancelled["verb"], cancelled["because"], len(cancelled["run_ids"])) == ("cancel", "too dear", 1)
    assert "Shown: 1 of 2 rows with results in this store." in call(
        "report", "said.toml", "--rows", "base", "--format", "markdown"
    )
