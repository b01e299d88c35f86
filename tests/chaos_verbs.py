"""Kill one command at a random moment and repeat it: the store must then equal that of an undisturbed command.

Half of the moments are points in time, spread over the seconds in which the undisturbed command changed files. The
other moments are changes: the command is killed before its n-th write, rename, removal or database change. Half of the
kills also kill the command's child processes. At random, a command is killed twice, the store is moved, or its lock
names a process that is not a coordinator.

All commands run a copy of this checkout's code, because a commit or an edit during the test would change the tables'
notes.
"""

import contextlib
import json
import random
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from experiments.events.event_log import read_events
from experiments.store.locks import FILE as LOCK
from reports.audit.verify import lasting
from tests.small_tables import write_study
from tests.system.conftest import environment
from tests.system.warm_command import WarmCommands

ROOT, PACKAGES = Path(__file__).parents[1], ("ablations", "experiments", "model", "reports", "tests")
PATIENCE_S = 240.0
TOKEN = "CHAOS_COPY"  # environment variable that marks every process of a copy
# A program that runs the command and counts the changes below a folder. It kills its own process before the change
# `at_change`, or `after_s` seconds after the first change.
COUNTED = """
import atexit, json, os, runpy, signal, sqlite3, sys, threading, time

root, report, after_s, at_change = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
changes, began = [], []

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def change():
    if not began:
        began.append(time.monotonic())
        timer = threading.Timer(after_s, die)
        timer.daemon = True
        if after_s:
            timer.start()
    changes.append(1)
    if len(changes) == at_change:
        die()

def watch(event, given):
    writes = event == "open" and isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_RDWR)
    if writes or event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.truncate"):
        if any(str(one).startswith(root) for one in given) or (event == "os.remove" and given[1] != -1):  # of rmtree
            change()

def connect(*given, original=sqlite3.connect, **options):
    connection = original(*given, **options)
    connection.set_trace_callback(lambda text: text.startswith(("COMMIT", "INSERT", "UPDATE", "DELETE")) and change())
    return connection

def count():
    with open(report, "w") as file:
        json.dump([len(changes), time.monotonic() - began[0] if began else 0.0], file)

atexit.register(count)
sys.addaudithook(watch)
sqlite3.connect = sqlite3.dbapi2.connect = connect
sys.argv[:5] = ["ablations"]
runpy.run_module("ablations.cli.main", run_name="__main__", alter_sys=True)
"""
TRAINER = """
import time
from dataclasses import dataclass
from ablations_task import column, task

@dataclass
class Settings:
    rate: float = 1.0
    steps: int = 5

COLUMNS = [column("loss", set="dev", better="lower", digits=4), column("loss", better="lower", digits=4)]

@task(Settings, steps="steps", columns=COLUMNS)
def TASK(settings, context):
    state = (context.resume / "state").read_text().split() if context.resume else (0, 9.0)
    loss = float(state[1])
    for step in range(int(state[0]) + 1, settings.steps + 1):
        time.sleep(0.05)
        loss = loss / 2 + abs(settings.rate - 0.3) * context.seed / step
        context.log(step, dev_loss=loss)
        with context.checkpoint(step) as folder:
            (folder / "state").write_text(f"{step} {loss!r}")
    context.examples("test", [{"case": n, "loss": loss} for n in range(3)])
    return {"dev": {"loss": loss}, "test": {"loss": loss + 1}}
"""
STUDIES = {
    "own": """
name = "own"
title = "An own trainer"
task = "chaos_trainer:TASK"
tune = {trials = 3, metric = "loss", range = {rate = {low = 0.01, high = 10.0, log = true}}}
variation = [{key = "base"}, {key = "long", set = {steps = 8}}]
""",
    "command": """
name = "said"
title = "A command"
command = '''
n=$(cat {folder}/n 2>/dev/null || echo 0)
while [ $n -lt 6 ]; do
    sleep 0.05; n=$((n + 1)); echo '{"step": '$n', "loss": '$((20 - n))'}'; echo $n > {folder}/n
done
rate={rate} seed={seed}; echo '{"accuracy": '$((n + rate * seed))'}'
'''
base = {rate = 3}
metric = [{name = "accuracy"}]
variation = [{key = "base"}, {key = "fast", set = {rate = 5}}]
""",
}
SCORES = "row,seed,set,metric,value\nbase,1,test,bleu,25.5\nbase,2,test,bleu,26\nwide,1,test,bleu,27.125\n"
TABLE = tuple(f"report {{study}} --format {name}" for name in ("latex", "csv", "json"))
RUN = "run {study} --devices cpu:1"
THEIRS = f"{RUN} --store {{folder}}/theirs"


@dataclass(frozen=True)
class Verb:
    """A command to be killed.

    `{study}` and `{folder}` in a command are replaced, and `--store` is added if the command has none.
    """

    study: str
    command: str
    before: tuple[str, ...] = ()  # commands that make the store before `command` runs
    shows: tuple[str, ...] = TABLE  # commands whose output must equal that on the undisturbed store


VERBS = {
    "run a translation": Verb("translation", RUN),
    "run an own trainer": Verb("own", RUN),
    "run a command": Verb("command", RUN),
    "evaluate": Verb(
        "translation",
        "evaluate {study} --set evaluation.beam_size=1 --devices cpu:1",
        (RUN,),
        (*TABLE, *(f"{words} --set evaluation.beam_size=1" for words in TABLE)),
    ),
    "tune": Verb("own", "tune {study} --devices cpu:1", (), ("tune {study} --devices cpu:1 --json",)),
    "noise": Verb(
        "own",
        "noise {study} --seeds 3 --devices cpu:1",
        (RUN,),
        ("noise {study} --seeds 3 --devices cpu:1 --json", *TABLE),
    ),
    "queue": Verb("own", "queue {study}", (), ("work --devices cpu:1", *TABLE)),
    "forget": Verb("own", "forget {study} --yes", (RUN,), TABLE),
    "forget --checkpoints": Verb(
        "translation", "forget --checkpoints --yes", (RUN,), (*TABLE, "forget --checkpoints --json")
    ),
    "ui --rebuild": Verb("translation", "ui --rebuild mlflow", (RUN,)),
    "import a store": Verb("own", "import {folder}/theirs", (THEIRS,)),
    "import a bundle": Verb(
        "own", "import {folder}/b.tar.gz", (THEIRS, "bundle {study} --out {folder}/b.tar.gz --store {folder}/theirs")
    ),
    "import a CSV": Verb(
        "own",
        "import {folder}/scores.toml --from {folder}/scores.csv",
        (),
        tuple(words.replace("{study}", "{folder}/scores.toml") for words in TABLE),
    ),
    "bundle": Verb("own", "bundle {study} --out {folder}/b.tar.gz", (RUN,), ("report {folder}/b.tar.gz", *TABLE)),
}


class Copy:
    """A folder with a store in which commands run."""

    def __init__(self, verb: Verb, folder: Path, warm: WarmCommands) -> None:
        self.verb, self.folder, self.store, self._warm = verb, folder, folder / "store", warm

    def copy(self, name: str) -> "Copy":
        """Copy the folder to a sibling folder called `name`."""
        subprocess.run(["cp", "-a", self.folder, self.folder.with_name(name)], check=True)
        return Copy(self.verb, self.folder.with_name(name), self._warm)

    def call(self, text: str, code: int = 0) -> str:
        """Run a command to its end and return its output. Raise AssertionError for another exit code than `code`."""
        done = self._warm.run(self._words(text), self._environment, self.folder, PATIENCE_S)
        assert done.returncode == code, f"`{text}` ends with {done.returncode}:\n{done.stderr}"
        return done.stdout

    def killed(self, after_s: float = 0.0, at_change: int = 0) -> tuple[int, int, float]:
        """Run the verb's command, which kills itself at the given moment.

        Return the exit code, the number of changes, and the seconds from the first change to the end. The last two are
        0 if the exit code is not 0.
        """
        report = self.folder.with_name("report.json")
        argv = [sys.executable, "-c", COUNTED, str(self.folder), str(report), str(after_s), str(at_change)]
        done = subprocess.run(
            [*argv, *self._words(self.verb.command)],
            env=self._environment, cwd=self.folder, timeout=PATIENCE_S, check=False, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        return (done.returncode, *(json.loads(report.read_text()) if done.returncode == 0 else (0, 0.0)))

    def family(self) -> list[psutil.Process]:
        """Return the living processes that were started for this copy."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(TOKEN) == str(self.folder) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def look(self) -> dict[str, list[Any]]:
        """Return what a user sees of the store, without times and without random names."""
        found: dict[str, list[Any]] = {"MLflow": self._in_mlflow(), "tables": []}
        for text in self.verb.shows:
            named = re.search(r"--format (\w+)", text)
            format_ = named[1] if named else "json" if "--json" in text else "markdown"
            shown = re.sub(r'"hours_per_seed": [\d.e-]+', "", lasting(self.call(text), format_))
            found["tables"].append(shown.replace(str(self.store), "STORE").replace(str(self.folder), "FOLDER"))
        found |= {"trainings": self._trainings(), "MLflow afterwards": self._in_mlflow()}
        self.call("work --devices cpu:1")  # removes what killed processes left
        hidden = {re.sub(r"[0-9a-f]{16}", "ID", path.name) for path in self.store.rglob(".*")}
        found["hidden files"] = sorted(n for n in hidden if not re.fullmatch(r"\.step-\d+\.json", n))  # of checkpoints
        return found

    def _trainings(self) -> list[tuple[str, int]]:
        """Return how often each run was trained to its end, in this store or before it was imported."""
        found = []
        for home in (path for folder in ("runs", "forgotten") for path in self.store.glob(f"{folder}/[0-9a-f]*")):
            assert (home / "result.json").is_file(), f"{home.name} has no result"
            events = [event for folder in home.glob("attempts/*") for event in read_events(folder)]
            found.append((f"{home.parent.name}/{home.name}", sum(event["kind"] == "trained" for event in events)))
        return sorted(found)

    def _in_mlflow(self) -> list[Any]:
        """Return the runs that MLflow shows: name, state, parameters, and all metrics except costs, speeds and curves.

        Curves are left out because a stopped training also records its loss at the step at which it stops.
        """
        if not (self.store / "mlflow.db").is_file():
            return []
        with contextlib.closing(sqlite3.connect(self.store / "mlflow.db")) as database:
            runs = database.execute(
                "SELECT name, status, run_uuid FROM runs WHERE lifecycle_stage = 'active'"
            ).fetchall()
            metrics = (
                "SELECT key, step, value FROM metrics WHERE run_uuid = ? AND key NOT LIKE 'cost|_%' ESCAPE '|' "
                "AND key NOT LIKE '%|_s' ESCAPE '|' "
                "AND (key NOT LIKE 'train|_%' ESCAPE '|' OR key LIKE 'train|_start|_%' ESCAPE '|')"
            )
            asked = ("SELECT key, value FROM params WHERE run_uuid = ?", metrics)
            return sorted(
                [*about, *(sorted(database.execute(text, [uuid])) for text in asked)] for *about, uuid in runs
            )

    def _words(self, text: str) -> list[str]:
        study = self.folder.with_name("studies") / f"{self.verb.study}.toml"
        words = [word.format(study=study, folder=self.folder) for word in text.split()]
        return words if "--store" in words else [*words, "--store", str(self.store)]

    @property
    def _environment(self) -> dict[str, str]:
        return environment() | {TOKEN: str(self.folder), "PYTHONPATH": str(self.folder.with_name("code"))}


def make(name: str, home: Path, warm: WarmCommands) -> Copy:
    """Return the folder that is copied for each kill of a verb. Verbs with the same study and `before` share it."""
    verb, beginnings = VERBS[name], [(verb.study, verb.before) for verb in VERBS.values()]
    base = Copy(verb, home / f"base {beginnings.index((verb.study, verb.before))}", warm)
    if not (home / "studies").is_dir():
        write_study(home / "studies", "translation")
        for study, text in STUDIES.items():
            (home / "studies" / f"{study}.toml").write_text(text)
        (home / "studies" / "chaos_trainer.py").write_text(TRAINER)
    if not base.folder.is_dir():
        base.folder.mkdir()
        (base.folder / "scores.csv").write_text(SCORES)
        for text in verb.before:
            base.call(text)
    return base


def disturb(copy: Copy, chance: random.Random, changes: int, seconds: float, part: float) -> Counter[str]:
    """Kill the command once, after the fraction `part` (0 to 1) of its work. Return counts of the kinds of kills.

    The counts are empty if the command ended before that moment.
    """
    at_change, alone = chance.random() < 0.5, chance.random() < 0.5
    if at_change:
        code, *_ = copy.killed(at_change=1 + int(part * changes))
    else:
        code, *_ = copy.killed(after_s=max(0.001, part * seconds))
    for process in () if alone else copy.family():
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    if code != -9:
        return Counter()
    return Counter(["kills", "at a change" if at_change else "by time", *(["of the command alone"] if alone else [])])


def attack(name: str, kills: int, chance: random.Random, home: Path, warm: WarmCommands) -> dict[str, Any]:
    """Kill a verb at `kills` moments, each in a new copy. Return counts, and a line for each defect."""
    base, counts, defects = make(name, home, warm), Counter[str](), list[str]()
    undisturbed = base.copy(f"{name}, undisturbed")
    code, changes, seconds = undisturbed.killed()
    assert code == 0, f"{name} ends with {code}"
    expected = undisturbed.look()
    for number in range(kills):
        part = (number + chance.random()) / kills
        while not (done := disturb(copy := base.copy(f"{name}, copy {number}"), chance, changes, seconds, part)):
            shutil.rmtree(copy.folder)
            part *= 0.8
        if chance.random() < 0.25:
            done += disturb(copy, chance, changes, seconds, chance.random())
        if copy.store.is_dir() and chance.random() < 0.25:
            copy.store = copy.store.rename(copy.folder / "moved")
            done["moved"] += 1
        if copy.store.is_dir() and chance.random() < 0.25:
            stranger = {"pid": 1, "host": chance.choice(("elsewhere", socket.gethostname()))}
            (copy.store / LOCK).write_text(f"process 1 on {stranger['host']}\n{json.dumps(stranger)}\n")
            done["stale locks"] += 1
        try:
            done[compare(copy, expected)] += 1
        except (AssertionError, subprocess.TimeoutExpired) as error:
            defects.append(f"{copy.folder}, {dict(done)}: {error}")
        else:
            shutil.rmtree(copy.folder)
        counts += done
    shutil.rmtree(undisturbed.folder)
    return {"changes": changes, "seconds": round(seconds, 1), **counts, "defects": defects}


def compare(copy: Copy, expected: dict[str, list[Any]]) -> str:
    """Repeat the command, then compare the copy with `expected`. Raise AssertionError for a difference.

    Return "refused" if the repeated command ended with exit code 2, because the killed one had already finished its
    work, else "survived".
    """
    try:
        copy.call(copy.verb.command)
        how = "survived"
    except AssertionError as error:
        if " ends with 2:" not in str(error) or "Traceback" in str(error):
            raise
        how = "refused"  # the checks below still apply
    for name, found in copy.look().items():
        lost = [] if name == "hidden files" else [str(one)[:500] for one in expected[name] if one not in found]
        more = [str(one)[:500] for one in found if found.count(one) > expected[name].count(one)]
        assert not lost and not more, f"{name}: lost {lost}, new {more}"
    until = time.monotonic() + 20
    while left := copy.family():
        assert time.monotonic() < until, f"left running: {[process.cmdline() for process in left]}"
        time.sleep(0.1)
    return how


def verbs(home: Path, kills: int, seed: int, only: str = "") -> dict[str, Any]:
    """Kill every verb, or only the verb `only`, `kills` times. Raise AssertionError with all defects at the end.

    Copies with a defect stay in `home`.
    """
    for package in PACKAGES:
        shutil.copytree(ROOT / package, home / "code" / package, ignore=shutil.ignore_patterns("__pycache__"))
    warm, found = WarmCommands(environment() | {"PYTHONPATH": str(home / "code")}), dict[str, Any]()
    try:
        with contextlib.chdir(home / "code"):  # Python searches the working directory for modules first
            for name in [only] if only else VERBS:
                found[name] = attack(name, kills, random.Random(f"{seed} {name}"), home, warm)
                print(json.dumps({name: found[name]}), file=sys.stderr, flush=True)
    finally:
        warm.close()
    defects = [line for counts in found.values() for line in counts["defects"]]
    assert not defects, "\n\n".join(defects)
    return found
