"""Attacks on guarded studies (docs/threat-model.md): each is refused, or visible in what is printed and verified.

Attacks by a trainer are lines of Python that a trainer runs before it reports its score; they return what they won.
The two of RewardHackingAgents are test leakage (`read the sealed file` and those after it) and evaluator tampering
(`change the scorer` and those after it).
"""

import json
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from experiments.processes.wall import Wall
from experiments.store import ledger
from experiments.store.layout import Store
from experiments.store.results import RESULT_FILE, EvaluationResult

from .conftest import Cli, as_json

pytestmark = pytest.mark.slow
SECRET, LEAKED, HONEST = "forty-two", 97.25, 61.5

# What a trainer may call: `sealed`, `store`, `own` (its run's folder), `base` (another run's), `home` (this program).
BY_TRAINER = {
    "read the sealed file": "open(sealed).read()",
    "read the sealed folder": "os.listdir(study + '/more')",
    "read it through a symbolic link": "os.symlink(sealed, link := folder + '/link') or open(link).read()",
    "read it through a hard link": "os.link(sealed, link := folder + '/hard') or open(link).read()",
    "read it through another name of its folder": "open('/proc/self/root' + sealed).read()",
    "read it as another process sees it": "''.join(other(f'/proc/{pid}/root{sealed}') for pid in pids())",
    "read it from another's working directory": "''.join(other(f'/proc/{p}/cwd/data/test.txt') for p in pids())",
    "take the hiding away": "(libc.umount2(sealed.encode(), 2), open(sealed).read())[1]",
    "take it away in new ones": "(libc.unshare(0x10020000), libc.umount2(sealed.encode(), 2), open(sealed).read())[-1]",
    "enter the namespace of another process": "[p for p in outside() if entered(p)]",
    "read the memory of another process": "[p for p in outside() if libc.ptrace(0x4206, p, 0, 0) == 0]",
    "make a device of the disk": "os.mknod(folder + '/disk', 0o60600, os.makedev(8, 0)) or 'made'",
    "mount the store writable": "(libc.mount(b'none', store.encode(), b'', 4096 | 32, 0), wrote(store + '/x'))[1]",
    "write the record of its training": "wrote(own + '/result.json')",
    "write an evaluation of the sealed set": "os.makedirs(own + '/evaluations/0123456789abcdef') or 'made'",
    "write a record into its attempt": "wrote(attempt + '/result.json')",
    "write an evaluation into its attempt": "os.makedirs(attempt + '/evaluations/0123456789abcdef') or 'made'",
    "write events": "wrote(attempt + '/events.jsonl')",
    "change the order that it was started with": "wrote(attempt + '/spec.json')",
    "change another run's record": "wrote(base + '/result.json')",
    "swap another run's weights": "[os.rename(p, p + 'x') for p in glob.glob(base + '/attempts/*/final')]",
    "change the ledger": "wrote(store + '/ledger.jsonl')",
    "remove the ledger": "os.unlink(store + '/ledger.jsonl') or 'removed'",
    "unseal with the harness itself": "harness('ledger.append(Store.open(store), what, evaluations=[])')",
    "queue a run": "sqlite3.connect(store + '/queue.db').execute('DELETE FROM jobs').rowcount or 'deleted'",
    "change the scorer": "wrote(study + '/score.py')",
    "replace the scorer": "os.replace(shutil.copy(study + '/train.py', folder + '/t'), study + '/score.py') or 'won'",
    "change the program's scorer": "wrote(home + '/experiments/evaluation/bleu.py')",
    "change the study": "wrote(study + '/s.toml')",
    "replace the study": "os.replace(shutil.copy(study + '/s.toml', folder + '/t'), study + '/s.toml') or 'replaced'",
    "set the clock back": "time.clock_settime(time.CLOCK_REALTIME, 1e9) or 'set'",
}
TRAINER = """
import ctypes, glob, json, os, shutil, sqlite3, subprocess, sys, time
attack, folder, store, home = sys.argv[1:5]
study, libc = os.getcwd(), ctypes.CDLL(None)
sealed, attempt = study + "/data/test.txt", os.path.dirname(folder)
own = os.path.dirname(os.path.dirname(attempt))
base = next(p for p in glob.glob(store + "/runs/*") if p != own or attack == "none")

def wrote(path):
    with open(path, "a") as file:
        file.write(" ")
    return "wrote"

def other(path):
    try:
        return open(path).read()
    except OSError:
        return ""

def pids():
    return [name for name in os.listdir("/proc") if name.isdigit() and name != str(os.getpid())]

def outside():
    mine = os.stat("/proc/self/ns/user").st_ino
    return [int(pid) for pid in pids() if not os.path.exists(f"/proc/{pid}/ns/user") or
            os.stat(f"/proc/{pid}/ns/user").st_ino != mine]

def entered(pid):
    try:
        return libc.setns(os.open(f"/proc/{pid}/ns/mnt", 0), 0) == 0
    except OSError:
        return False

def harness(line, what="unseal"):
    sys.path.insert(0, home)
    from experiments.store import ledger
    from experiments.store.layout import Store
    exec(line)
    return "called"

if attack == "outlive the run":
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in range(400):
                open(folder + "/alive", "w").write(str(number))
                time.sleep(0.05)
        os._exit(0)
if attack == "let the harness read a link":
    os.makedirs(folder + "/examples")
    os.symlink(sealed, folder + "/examples/dev.jsonl")
    os.symlink(sealed, folder + "/examples/test.jsonl")
if attack in ATTACKS:
    try:
        won = eval(ATTACKS[attack])
    except BaseException as error:
        won = ""
    open(folder + "/won", "w").write(str(won or ""))
print(json.dumps({"step": 1, "test_score": LEAKED, "loss": 1.0}))
print(json.dumps({"dev": {"score": HONEST}, "test": {"score": LEAKED, "test_score": LEAKED}}))
"""
STUDY = """
name = "s"
title = "Attacks"
command = "{python} train.py {{attack}} {{folder}} {store} {home}"
[base]
attack = "none"
[protected]
paths = ["score.py", "train.py"]
[guard]
sealed = ["test"]
settings = ["attack"]
files = ["data/test.txt", "more"]
[[metric]]
name = "score"
set = "dev"
[[metric]]
name = "score"
set = "test"
[[variation]]
key = "base"
"""
OTHERS = ("outlive the run", "let the harness read a link")


def _row(attack: str) -> str:
    return f'[[variation]]\nkey = "{re.sub("[^a-z]+", "-", attack)}"\nset = {{attack = "{attack}"}}\n'


def _study(place: Path, attacks: tuple[str, ...] = ()) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    home = Path(__file__).parents[2]
    head = STUDY.format(python=sys.executable, store=place / "runs", home=home)
    (place / "s.toml").write_text(head + "".join(map(_row, attacks)), encoding="utf-8")
    said = f"ATTACKS, LEAKED, HONEST = {BY_TRAINER!r}, {LEAKED}, {HONEST}\n"
    (place / "train.py").write_text(said + TRAINER, encoding="utf-8")
    (place / "score.py").write_text("# what measures\n", encoding="utf-8")
    for name in ("data/test.txt", "more/test.txt"):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(SECRET, encoding="utf-8")
    return place


@pytest.fixture(scope="module")
def attacked(cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in which base was trained, and then a row for each attack of a trainer."""
    place = _study(tmp_path_factory.mktemp("attacks") / "study")
    cli("run", "s.toml", "--devices", "cpu:2x1", cwd=place)
    _study(place, (*BY_TRAINER, *OTHERS))
    cli("run", "s.toml", "--devices", "cpu:2x1", cwd=place)
    return place


def _final(place: Path, attack: str) -> Path:
    for config in (place / "runs" / "runs").glob("*/config.json"):
        if json.loads(config.read_text())["config"].get("attack") == attack:
            return next(config.parent.glob("attempts/*/final"))
    raise AssertionError(attack)


@pytest.mark.skipif(not Wall().holds(), reason="this system has no mount namespaces for this user")
@pytest.mark.parametrize("attack", BY_TRAINER)
def test_an_attack_of_a_trainer_wins_nothing(attacked: Path, attack: str) -> None:
    won = (_final(attacked, attack) / "won").read_text()
    assert won.strip() == ""


def test_the_attacked_table_is_whole_and_what_the_store_gives(attacked: Path, cli: Cli) -> None:
    rows = as_json(cli("report", "s.toml", "--json", cwd=attacked))
    assert len(rows) == 1 + len(BY_TRAINER) + len(OTHERS)
    assert {row["score_dev"] for row in rows} == {HONEST}
    assert all(row["sealed"] == ["score_test"] and row["score_test"] is None for row in rows)
    (attacked / "t.json").write_text(cli("report", "s.toml", "--format", "json", cwd=attacked).stdout)
    cli("verify", "t.json", cwd=attacked)
    assert ledger.broken(Store(attacked / "runs")) == []
    assert (attacked / "score.py").read_text() == "# what measures\n"


def test_no_process_of_a_trainer_outlives_its_run(attacked: Path) -> None:
    alive = _final(attacked, "outlive the run") / "alive"
    before = alive.read_text()
    time.sleep(0.5)
    assert alive.read_text() == before


def test_nothing_of_a_sealed_set_is_kept_or_shown(attacked: Path, cli: Cli, tmp_path: Path) -> None:
    """A trainer that reports its score on the sealed set: no record, event or view has it; its own log does."""
    found = subprocess.run(["grep", "-rlF", str(LEAKED), attacked / "runs"], capture_output=True, text=True).stdout
    assert {Path(name).name for name in found.split()} <= {"log.txt", "t"}  # t: a copy of the trainer's own program
    copies = subprocess.run(["grep", "-rlF", SECRET, attacked / "runs"], capture_output=True, text=True).stdout
    assert copies == ""
    for words in (
        ["report", "--notes", "full"],
        ["report", "--format", "csv"],
        ["explain", "base"],
        ["plan", "--json"],
    ):
        verb, *rest = words
        cell = ["s.toml", *rest] if verb != "explain" else ["s.toml", "base.score_test"]
        assert str(LEAKED) not in cli(verb, *cell, cwd=attacked).stdout
    assert "Self-reported by the trainer" in cli("report", "s.toml", cwd=attacked).stdout
    # redaction of bundles is not what keeps the numbers out: nothing sealed is there to be packed
    cli("bundle", "s.toml", "--out", tmp_path / "b.tar.gz", cwd=attacked)
    shutil.unpack_archive(tmp_path / "b.tar.gz", tmp_path / "b")
    packed = [p for p in (tmp_path / "b").rglob("*") if p.is_file() and str(LEAKED).encode() in p.read_bytes()]
    assert {path.name for path in packed} <= {"log.txt"}


# --- Attacks with the verbs and with study files: refused with exit code 2, or sealed all the same

EXTENDS = 'extends = "s.toml"\nname = "mine"\ntitle = "M"\n[[variation]]\nkey = "base"\n'
BY_FILE: dict[str, tuple[str, str]] = {  # a file that extends the study → what the refusal names
    "guard": (EXTENDS.replace("[[var", "[guard]\nsealed = []\n[[var"), "[guard]"),
    "protected": (EXTENDS.replace("[[var", "[protected]\npaths = []\n[[var"), "[protected]"),
    "command": (EXTENDS.replace("title", 'command = "echo {attack}"\ntitle'), "command"),
    "metric": (EXTENDS + '[[metric]]\nname = "test_score"\nset = "dev"\n', "metric"),
    "base": (EXTENDS.replace("[[var", "[base]\nother = 1\n[[var"), "other"),
    "profile": (EXTENDS + "[profile.p]\nset = {other = 2}\n", "other"),
    "scale": (EXTENDS + "[profile.p]\nscale = {steps = 0.5}\n", "profile.p.scale"),
    "row": (EXTENDS + '[[variation]]\nkey = "r"\nset = {other = 3}\n', "other"),
}


@pytest.mark.parametrize("what", BY_FILE)
def test_a_study_that_extends_a_guarded_one_cannot_loosen_it(tmp_path: Path, cli: Cli, what: str) -> None:
    place = _study(tmp_path / "study")
    (place / "s.toml").write_text((place / "s.toml").read_text().replace("[protected]", "other = 0\n[protected]"))
    (place / "s.toml").write_text(
        (place / "s.toml")
        .read_text()
        .replace("{{attack}}", "{attack}")
        .replace("train.py {attack}", "train.py {attack} {other}")
    )
    text, named = BY_FILE[what]
    (place / "mine.toml").write_text(text)
    refused = cli("plan", "mine.toml", cwd=place, code=2).stderr
    assert named in refused and len(refused.splitlines()) == 1


LOOSENED: dict[str, Callable[[str], str]] = {
    "without [guard]": lambda text: text[: text.index("[guard]")] + text[text.index("[[metric]]") :],
    "fewer sealed sets": lambda text: text.replace('sealed = ["test"]', "sealed = []"),
    "fewer hidden files": lambda text: text.replace('"data/test.txt", ', ""),
    "more settings": lambda text: text.replace('settings = ["attack"]', 'settings = ["*"]'),
    "fewer protected paths": lambda text: text.replace('"score.py", ', ""),
}


def test_a_guard_cannot_be_loosened_in_a_store(attacked: Path, cli: Cli) -> None:
    text = (attacked / "s.toml").read_text()
    try:
        for what, change in LOOSENED.items():
            (attacked / "s.toml").write_text(change(text))
            for verb in ("plan", "report", "run"):
                assert "looser" in cli(verb, "s.toml", cwd=attacked, code=2).stderr, what
    finally:
        (attacked / "s.toml").write_text(text)


def test_a_copy_under_another_name_is_sealed_too(attacked: Path, cli: Cli) -> None:
    text = LOOSENED["without [guard]"]((attacked / "s.toml").read_text()).replace('name = "s"', 'name = "copy"')
    (attacked / "copy.toml").write_text(text)
    rows = as_json(cli("report", "copy.toml", "--rows", "base", "--json", cwd=attacked))
    assert rows[0]["sealed"] == ["score_test"]


def test_unsealed_rows_are_scored_and_later_ones_stay_sealed(tmp_path: Path, cli: Cli) -> None:
    place = _study(tmp_path / "study")
    cli("run", "s.toml", cwd=place)
    cli("unseal", "s.toml", "--because", "two\nlines", cwd=place, code=2)
    cli("unseal", "s.toml", "--because", "the paper is due", cwd=place)
    cli("unseal", "s.toml", "--because", "again", cwd=place, code=2)
    _study(place, ("outlive the run",))
    printed = cli("run", "s.toml", "--seeds", "2", "--json", cwd=place).stdout
    assert [row["sealed"] for row in json.loads(printed)] == [["score_test"]] * 2  # the second seed came later
    base = as_json(cli("report", "s.toml", "--rows", "base", "--seeds", "1", "--json", cwd=place))
    assert base[0]["score_test"] == LEAKED and "sealed" not in base[0]
    assert "unsealed 1 time" in cli("report", "s.toml", cwd=place).stdout
    [line] = [one for one in ledger.entries(Store(place / "runs")) if one["what"] == "unseal"]
    assert line["of_rows"] == ["base"] and line["because"] == "the paper is due"


# --- Attacks from outside, with the rights of the store's owner: visible in `verify`


def _verified(cli: Cli, place: Path, code: int) -> str:
    (place / "t.json").write_text(cli("report", "s.toml", "--format", "json", cwd=place).stdout)
    return cli("verify", "t.json", cwd=place, code=code).stdout


def test_edited_and_forged_records_are_visible(tmp_path: Path, cli: Cli) -> None:
    place = _study(tmp_path / "study")
    cli("run", "s.toml", cwd=place)
    assert "all equal" in _verified(cli, place, 0)
    [file] = (place / "runs" / "runs").glob(f"*/evaluations/*/{RESULT_FILE}")
    record = EvaluationResult.load(file)
    assert record is not None
    record.write(file, metrics={"score": 99.0})  # with a valid checksum, as the harness itself writes it
    assert as_json(cli("report", "s.toml", "--json", cwd=place))[0]["score_dev"] == 99.0
    assert "no attempt made this record" in _verified(cli, place, 1)


def test_a_rewritten_ledger_differs_from_the_head_that_its_owner_kept(tmp_path: Path, cli: Cli) -> None:
    place = _study(tmp_path / "study")
    cli("run", "s.toml", cwd=place)
    store = Store(place / "runs")
    head, file = ledger.head(store), store.root / ledger.FILE
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b'"test"', b'"tset"', 1))
    assert ledger.broken(store)  # an edited line
    file.unlink()
    for line in map(json.loads, whole.splitlines()[1:]):  # the whole chain made again, without its first line
        ledger.append(
            store, line.pop("what"), **{k: v for k, v in line.items() if k not in ("n", "time", "who", "before")}
        )
    assert not ledger.broken(store) and ledger.broken(store, head)


def test_a_job_that_asks_for_a_sealed_set_fails(tmp_path: Path, cli: Cli) -> None:
    """Queued before the guard was there, as an unguarded study queues it."""
    place = _study(tmp_path / "study")
    guarded = (place / "s.toml").read_text()
    (place / "s.toml").write_text(LOOSENED["without [guard]"](guarded))
    cli("queue", "s.toml", cwd=place)
    (place / "s.toml").write_text(guarded)
    cli("queue", "s.toml", "--seeds", "2", cwd=place)  # the guard enters the ledger
    cli("work", cwd=place, code=1)
    with sqlite3.connect(place / "runs" / "queue.db") as db:
        errors = [row[0] for row in db.execute("SELECT error FROM jobs WHERE error != ''")]
    assert errors and all("sealed" in error for error in errors)


def test_a_patch_that_changes_the_scorer_is_refused(tmp_path: Path, cli: Cli) -> None:
    """Evaluator tampering of RewardHackingAgents, as a row that changes code."""
    place = _study(tmp_path / "study")
    for words in (["init", "-q"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"]):
        subprocess.run(["git", *words], cwd=place, check=True)
    (place / "p.diff").write_text("--- a/score.py\n+++ b/score.py\n@@ -1 +1 @@\n-# what measures\n+# what pleases\n")
    row = '[[variation]]\nkey = "tampered"\npatch = "p.diff"\n'
    text = (place / "s.toml").read_text()
    (place / "s.toml").write_text(text + row)
    # [guard] settings refuses the row before [protected] does (test_code_rows.py)
    assert 'row "tampered"' in cli("plan", "s.toml", cwd=place, code=2).stderr
    (place / "p.diff").write_text("--- a/other.py\n+++ b/other.py\n@@ -0,0 +1 @@\n+# free\n")
    assert "code_tree" in cli("plan", "s.toml", cwd=place, code=2).stderr  # [guard] settings name it, or it is refused
