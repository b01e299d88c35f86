"""Branches of one parent run equal undisturbed runs, and every command supports them."""

from pathlib import Path
from typing import Any

import pytest

from experiments.events.event_log import read_events
from experiments.store.checksummed import read_json
from experiments.store.layout import Store
from tests.chaos import FIVE_KILLS, table

from .conftest import TINY, Cli, as_json

pytestmark = pytest.mark.slow

STEPS = 60


def head(steps: int) -> str:
    return TINY.partition("[[variation]]")[0].replace(
        "train_steps = 6,", f'train_steps = {steps}, schedule = "constant",'
    )


def study_of(steps: int = STEPS) -> str:
    """Return a study with a parent row and three branches.

    One branch starts after two thirds of the parent's steps and changes nothing. The other two start at the parent's
    end and train for a third and for a tenth more steps.
    """
    return f"""{head(steps)}
[[variation]]
key = "base"

[[variation]]
key = "same"
from = {{row = "base", step = {steps * 2 // 3}}}

[[variation]]
key = "decay"
from = {{row = "base", step = {steps}}}
set = {{training = {{schedule = "warmup_stable_decay", stable_ratio = 0.75, train_steps = {steps * 4 // 3}}}}}

[[variation]]
key = "smooth"
from = {{row = "base", step = {steps}}}
set = {{training = {{label_smoothing = 0.3, train_steps = {steps * 11 // 10}}}}}
"""


STUDY = study_of()
WHOLE = f"""{head(STEPS)}
[[variation]]
key = "base"

[[variation]]
key = "decay"
set = {{training = {{schedule = "warmup_stable_decay", stable_ratio = 0.75, train_steps = {STEPS * 4 // 3}}}}}

[[variation]]
key = "longer"
set = {{training.train_steps = {STEPS * 4 // 3}}}
"""
LONGER = f"""
[[variation]]
key = "longer"
from = {{row = "base", step = {STEPS}}}
set = {{training.train_steps = {STEPS * 4 // 3}}}
"""


def write(folder: Path, text: str, name: str = "branches") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.toml").write_text(text)
    return folder / f"{name}.toml"


def rows(cli: Cli, study: Path, store: Path) -> dict[str, Any]:
    return {run["row"]: run for run in as_json(cli("plan", study, "--store", store, "--json"))}


def weights(store: Path, run_id: str) -> Any:
    folder = Store.open(store).weights_folder(run_id)
    assert folder is not None
    return (read_json(folder / "final" / "meta.json") or {})["files"]["model.safetensors"]["sha256"]


def events(store: Path, run_id: str) -> list[dict[str, Any]]:
    return [event for folder in sorted(store.glob(f"runs/{run_id}/attempts/*")) for event in read_events(folder)]


def test_a_parent_run_and_two_branches_equal_two_undisturbed_runs(cli: Cli, tmp_path: Path) -> None:
    """Weights are bit-identical if no setting differs before the branch. The costs of parent and branch add up."""
    store, other = tmp_path / "store", tmp_path / "other"
    branched, whole = write(tmp_path, STUDY + LONGER), write(tmp_path, WHOLE, "whole")
    cli("run", branched, "--store", store, "--devices", "cpu:2")
    cli("run", whole, "--store", other, "--devices", "cpu:2")
    ours, theirs = rows(cli, branched, store), rows(cli, whole, other)
    assert ours["base"]["run_id"] == theirs["base"]["run_id"], "a parent run is named as any run"
    assert weights(store, ours["base"]["run_id"]) == weights(other, theirs["base"]["run_id"])
    for row in ("decay", "longer"):
        mine, its = ours[row]["run_id"], theirs[row]["run_id"]
        assert mine != its and weights(store, mine) == weights(other, its)
        records = [Store.open(at).result(name) for at, name in ((store, mine), (other, its))]
        base = Store.open(store).result(ours["base"]["run_id"])
        assert base and records[0] and records[1]
        for name in ("flops", "target_tokens"):
            parts = getattr(base, name) + getattr(records[0], name)
            assert parts == pytest.approx(getattr(records[1], name), rel=1e-12)
        assert records[0].continues is None and records[0].parent_run.step == STEPS
        found = [
            list(at.glob(f"runs/{name}/evaluations/*/translations.txt")) for at, name in ((store, mine), (other, its))
        ]
        assert found[0][0].read_text() == found[1][0].read_text()
    assert weights(store, ours["same"]["run_id"]) == weights(store, ours["base"]["run_id"])
    assert weights(store, ours["smooth"]["run_id"]) not in {weights(other, run["run_id"]) for run in theirs.values()}


@pytest.mark.nightly
def test_killed_at_random_the_table_is_the_same_byte_for_byte(cli: Cli, tmp_path: Path) -> None:
    """The parent run, its branches and the coordinator are killed, as in tests/chaos.py."""
    study = write(tmp_path, study_of(600))
    one, pause_s = ["--seeds", "1"], (0.2, 1.2)
    done = table(tmp_path, kills=5, seed=FIVE_KILLS, study=str(study), options=one, pause_s=pause_s, call=cli)
    assert done["rows"] == 4


@pytest.mark.nightly
@pytest.mark.extra("bundles")
@pytest.mark.extra("imports")
def test_every_verb_knows_them(cli: Cli, tmp_path: Path) -> None:
    text = study_of(30)
    study, store = write(tmp_path, text), ("--store", tmp_path / "store")
    assert "begins with base (seed 1) after step 30" in cli("plan", study, *store).stdout
    tried = cli("run", study, *store, "--devices", "cpu:2", "--smoke")
    assert "4 of 4 rows passed" in tried.stderr
    cli("queue", study, *store)
    why = {job["members"][0]["row"]: job["doing"] for job in as_json(cli("status", *store, "--json"))}
    assert why == {"base": "", **dict.fromkeys(("same", "decay", "smooth"), "waits for its parent run")}
    table = cli("run", study, *store, "--devices", "cpu:2").stdout
    assert "- ‡: decay and smooth branch from base after step 30." in table
    assert "‡: same branches from base after step 20" in table
    assert table.count("‡ ") == 6 and "nothing to train" in cli("run", study, *store).stderr
    for format_, name in (("latex", "t.tex"), ("html", "t.html"), ("markdown", "t.md"), ("csv", "t.csv")):
        cli("report", study, *store, "--format", format_, "--out", tmp_path / name)
        assert "all equal to the store's" in cli("verify", tmp_path / name, study, *store).stdout
    assert "parent run steps: 30" in cli("explain", study, "smooth.ppl", "--full", *store).stdout
    assert "begins with the state of run" in cli("log", "smooth", *store).stdout
    assert "branch from base after step 30" in cli("report", study, *store, "--format", "setup").stdout
    alone = cli("report", study, *store, "--rows", "smooth").stdout
    assert "include its share of the parent run" in alone
    packed, whole = tmp_path / "tiny.tar.gz", tmp_path / "whole.tar.gz"
    assert "2 runs" in cli("bundle", study, *store, "--rows", "smooth", "--out", packed).stdout
    assert cli("report", packed).stdout.partition("\n\n")[2] == alone
    cli("bundle", study, *store, "--out", whole)
    assert cli("report", whole).stdout.partition("\n\n")[2] == table
    assert "2 runs imported" in cli("import", packed, "--store", tmp_path / "other").stdout
    elsewhere = cli("report", study, "--rows", "smooth", "--store", tmp_path / "other").stdout
    of_the_store = "- Shown: 1 of 3 rows with results in this store.\n"
    assert elsewhere == alone.replace(of_the_store, "")
    assert '"row": "smooth"' in cli("evaluate", study, *store, "--set", "evaluation.beam_size=1", "--json").stdout
    again = as_json(cli("plan", study, *store, "--set", "training.tokens_per_batch=300", "--json"))
    assert {run["state"] for run in again} == {"missing"}


@pytest.mark.nightly
def test_a_parent_run_without_the_checkpoint_is_trained_again_and_says_so(cli: Cli, tmp_path: Path) -> None:
    """The parent run was trained before the branch was added to the study, or its checkpoints were pruned."""
    store = tmp_path / "store"
    before = write(tmp_path, head(30) + '\n[[variation]]\nkey = "base"\n', "before")
    cli("run", before, "--store", store, "--devices", "cpu:1")
    after = write(tmp_path, study_of(30))
    base = rows(cli, after, store)["base"]
    first = weights(store, base["run_id"])
    words = "fewer checkpoints than a branch from step 20, 30 needs"
    assert words in cli("plan", after, "--store", store).stdout
    assert "trained again" in cli("run", after, "--store", store, "--devices", "cpu:2").stderr
    assert Store.open(store).attempts(base["run_id"]) == [1, 2]
    assert weights(store, base["run_id"]) == first, "the same weights: scores stay"
    whole = {row: weights(store, run["run_id"]) for row, run in rows(cli, after, store).items()}
    cli("forget", "--checkpoints", "--store", store, "--yes")
    assert "nothing to train" in cli("run", after, "--store", store).stderr, "branches have begun already"
    cli("evaluate", after, "--store", store, "--set", "evaluation.beam_size=1")
    assert Store.open(store).attempts(base["run_id"])[-1] < 5
    (store / "runs" / rows(cli, after, store)["smooth"]["run_id"] / "result.json").unlink()
    cli("run", after, "--store", store, "--rows", "smooth", "--devices", "cpu:2")
    assert {row: weights(store, run["run_id"]) for row, run in rows(cli, after, store).items()} == whole


@pytest.mark.nightly
def test_a_branch_of_a_failed_parent_run_waits_and_says_why(cli: Cli, tmp_path: Path) -> None:
    study = write(
        tmp_path, study_of(30).replace('schedule = "constant"', 'schedule = "constant", learning_rate = 1e30')
    )
    store = tmp_path / "store"
    for _ in range(2):  # the second command trains the parent run again
        done = cli("run", study, "--store", store, "--devices", "cpu:2", code=1)
        assert "Branches without a number, because their parent run is missing" in done.stdout
        jobs = {job["members"][0]["row"]: job for job in as_json(cli("status", "--store", store, "--json"))}
        assert jobs["base"]["state"] == "failed"
        assert {jobs[row]["state"] for row in ("same", "decay", "smooth")} == {"waiting"}
        for row, step in (("same", 20), ("decay", 30), ("smooth", 30)):
            assert (
                f"held: it branches from base (seed 1, run {jobs['base']['run_id']}) after step {step}"
                in jobs[row]["why"]
            )
            assert "has failed without a checkpoint of that step" in jobs[row]["why"]


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ((f"step = {STEPS}", "step = 61"), 'it branches from step 61, and its parent run "base" has 60 steps'),
        (("label_smoothing = 0.3,", "warmup_steps = 20,"), "the learning rate differs already at step 1 "),
        (("{label_smoothing = 0.3,", "{seed = 2,"), "seed"),
        (("set = {training = {label_smoothing = 0.3,", "set = {model.d_model = 16, training = {"), "in model.d_model"),
        ((f'row = "base", step = {STEPS * 2 // 3}', 'row = "decay", step = 40'), "is a branch itself"),
    ],
)  # fmt: skip
def test_mistakes_are_one_paragraph(cli: Cli, tmp_path: Path, change: tuple[str, str], part: str) -> None:
    study, store = write(tmp_path, STUDY.replace(*change)), tmp_path / "store"
    for verb in ("plan", "run", "queue"):
        done = cli(verb, study, "--store", store, code=2)
        assert part in done.stderr and len(done.stderr.strip().splitlines()) == 1
        assert not done.stdout and not store.exists()
