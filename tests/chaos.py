"""Cause random faults while runs are trained, then check every number.

The faults are SIGKILL to children, the coordinator or both, steps of the clock, damaged lines among the events of
running attempts, and locks on MLflow's database.

    python -m tests.chaos stub --runs 400 --slots 8 --kills 100     runs of a stub task
    python -m tests.chaos table --kills 20                          six rows of Table 3 in miniature, trained for real
    python -m tests.chaos verbs --kills 20 [--only forget]          single commands (chaos_verbs.py)
    python -m tests.chaos flips                                     corruption of every file of a store (flips.py)

Each command prints one JSON object with the counts of faults and checks. It raises AssertionError if a result is lost,
duplicated or changed.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from experiments.events.event_log import read_events
from experiments.jobs.queue.job import Job, Member, State
from experiments.jobs.queue.queue import Queue
from experiments.processes.process_identity import is_alive
from experiments.store.layout import Store
from reports.audit.verify import lasting
from tests.chaos_faults import Files
from tests.chaos_verbs import VERBS, verbs
from tests.flip_kinds import all_kinds
from tests.flips import flip_all, make_store
from tests.made_jobs import made_job

ROOT = Path(__file__).parent.parent
STUB = Path(__file__).parent / "stub_child.py"
STEPPED_CLOCK = Path(__file__).parent / "stepped_clock"
COORDINATOR = """
import sys
from experiments.jobs.coordinator.background import Background
from experiments.jobs.coordinator.work import work
from experiments.jobs.engines.local import LocalEngine
from experiments.jobs.devices.slots import Slot
from experiments.store.layout import Store
from tests.chaos_faults import Files
from experiments.tracking.mlflow import Tracker

store, slots = Store.open(sys.argv[1]), [Slot(f"cpu:{i}", "cpu", 1) for i in range(int(sys.argv[2]))]
tracker = Background(lambda: Tracker(store), 1.0)
work(store, slots, tracker=tracker, engine=LocalEngine(()), child=(sys.executable, sys.argv[3]))
"""
FIVE_KILLS = 2919  # a seed whose first five faults kill children, the coordinator or both
CLOCK_STEPS_S = (-3600.0, -5.0, -1.0, 1.0, 5.0, 61.0, 3600.0)
ROWS = "base,A-h1,A-h16,C-N2,C-dff1024,D-pdrop0.0"
SMALL = ["data.builtin_pairs=2000", "data.vocab_size=500", "training.train_steps=500", "training.checkpoint_steps=5"]


class Killer:
    """Kills one child, the coordinator, or all processes at random moments, or causes another fault.

    If `saved` is true, the first fault waits until a child has saved a checkpoint, so that the next attempt resumes
    from it.
    """

    def __init__(
        self, store: Store, moments: int, chance: random.Random, pause_s: tuple[float, float], saved: bool = False
    ) -> None:
        self._store, self._moments, self._chance, self._pause_s = store, moments, chance, pause_s
        self._saved = saved
        self._clock_s = 0.0
        self.files = Files(store, chance)
        self.killed: Counter[str] = Counter()

    def run(self, start: Callable[[], subprocess.Popen[bytes]]) -> None:
        """Restart the coordinator until all runs are done. Runs that failed after three kills in a row are retried."""
        self._work(start)
        start().wait()  # writes to MLflow what a killed coordinator had not yet written
        assert self.killed["moments"] >= self._moments, f"all was done after {self.killed['moments']} kills"

    def _work(self, start: Callable[[], subprocess.Popen[bytes]]) -> None:
        process = start()
        while True:
            if self.killed["moments"] < self._moments:
                self._await_children(process)
                time.sleep(self._chance.uniform(*self._pause_s))
                self._kill_something(process)
            elif process.poll() is None:
                process.wait()
            if process.poll() is not None and not self._start_again(process):
                return
            if process.poll() is not None:
                process = start()

    def _await_children(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until children run, because killing a coordinator that has started none tests nothing."""
        while process.poll() is None and not (self._children() and self._may_go_on()):
            time.sleep(0.02)

    def _may_go_on(self) -> bool:
        first = self._saved and not self.killed["moments"]
        return not first or any(self._store.runs.glob("*/attempts/*/checkpoints/step-*"))

    def _start_again(self, process: subprocess.Popen[bytes]) -> bool:
        queue = Queue(self._store.queue_db)
        unlucky = [row.run_id for row in queue.status() if row.state is State.FAILED]
        self.killed["retried"] += queue.retry(unlucky)
        counts = queue.counts()
        queue.close()
        assert process.returncode in (0, 1, -9), f"the coordinator ended with {process.returncode}"
        return bool(counts[State.WAITING] or counts[State.RUNNING])

    def _kill_something(self, process: subprocess.Popen[bytes]) -> None:
        what = self._chance.choice(("child", "child", "coordinator", "both", "clock", "line", "lock"))
        before = self.killed.total()
        if what in ("clock", "line", "lock"):
            self._do(what)
            return
        children = self._children() if what != "coordinator" else []
        for victim in children if what == "both" else children[:1]:
            with contextlib.suppress(psutil.NoSuchProcess):  # the child has ended in the meantime
                victim.kill()
                self.killed["children"] += 1
        if what != "child" and process.poll() is None:
            process.kill()
            process.wait()
            self.killed["coordinators"] += 1
        self.killed["moments"] += self.killed.total() > before

    def _do(self, what: str) -> None:
        faults = {"clock": self._step_clock, "line": self.files.damage_a_line, "lock": self.files.lock_mlflow}
        if faults[what]():
            self.killed[{"clock": "clock steps", "line": "damaged lines", "lock": "locks"}[what]] += 1
            self.killed["moments"] += 1

    def _step_clock(self) -> bool:
        """Step the clock of all processes. The test fails if a living coordinator is then believed dead."""
        self._clock_s += self._chance.choice(CLOCK_STEPS_S)
        _clock(self._store).write_text(str(self._clock_s))
        return True

    def _children(self) -> list[psutil.Process]:
        """Return the living children of all attempts in random order."""
        found = []
        queue = Queue(self._store.queue_db)
        refs = [queue.job(row.run_id).ref for row in queue.status() if row.state is State.RUNNING]
        queue.close()
        for ref in refs:
            if ref and is_alive(ref):
                with contextlib.suppress(psutil.NoSuchProcess):
                    found.append(psutil.Process(ref["pid"]))
        self._chance.shuffle(found)
        return found


def stub(folder: Path, runs: int, slots: int, kills: int, seed: int) -> dict[str, object]:
    """Train `runs` runs of the stub with `kills` faults, and check them. Return the counts."""
    store, chance = Store.open(folder / "store"), random.Random(seed)
    jobs = [_stub_job(number, chance) for number in range(runs)]
    queue = Queue(store.queue_db)
    queue.enqueue(jobs)
    queue.close()
    began = time.monotonic()
    killer = Killer(store, kills, chance, (0.05, 0.8))
    killer.run(lambda: _start([sys.executable, "-c", COORDINATOR, str(store.root), str(slots), str(STUB)], store))
    attempts = _check_stub(store, jobs)
    _check_mlflow(store, jobs)
    points = _check_files(store, killer.files, _call)
    return {
        "runs": runs,
        "killed": dict(killer.killed),
        "points": points,
        "attempts": attempts,
        "seconds": round(time.monotonic() - began, 1),
    }


def _check_files(store: Store, files: Files, call: Callable[..., "subprocess.CompletedProcess[str]"]) -> int:
    status = call("status", "--store", store.root).stdout
    assert status.count(" skipped in runs/") == len(files.damaged), "status names every damaged file"
    return files.check()


def _stub_job(number: int, chance: random.Random) -> Job:
    steps = chance.randint(20, 200)
    config = {"training": {"train_steps": steps}, "stub": {"step_s": 0.03, "checkpoint_steps": 3}}
    member = (Member("chaos", "", "", f"row {number}"),)
    return made_job(f"{number:016x}", "stub", config, members=member, cost=float(steps), steps=steps)


def _check_stub(store: Store, jobs: Sequence[Job]) -> int:
    """Check that every run has the numbers of an undisturbed run, from one attempt. Return the number of attempts."""
    queue, attempts = Queue(store.queue_db), 0
    states = {row.run_id: row.state for row in queue.status()}
    for job in jobs:
        result, steps = store.result(job.run_id), job.spec.config["training"]["train_steps"]
        assert result is not None and result.content["sum"] == steps * (steps + 1) // 2, f"{job.run_id}: {result}"
        assert states[job.run_id] is State.FINISHED
        history = queue.history(job.run_id)
        assert [a["outcome"] for a in history].count("finished") == 1 and history[-1]["outcome"] == "finished"
        attempts += len(history)
    queue.close()
    return attempts


def _check_mlflow(store: Store, jobs: Sequence[Job]) -> None:
    """Check that MLflow has one run per job, each FINISHED, with every step of its curve exactly once."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    from mlflow import MlflowClient

    from experiments.tracking.database import database_uri

    client = MlflowClient(database_uri(store))
    experiment = client.get_experiment_by_name("chaos")
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id], max_results=5000)
    runs = {run.data.tags["run_id"]: run for run in found if "run_id" in run.data.tags}
    assert len(runs) == len(jobs) == sum("run_id" in run.data.tags for run in found), "one run each"
    for job in jobs:
        run = runs[job.run_id]
        assert run.info.status == "FINISHED", f"{job.run_id}: {run.info.status}"
        steps = [metric.step for metric in client.get_metric_history(run.info.run_id, "train_loss")]
        assert len(steps) == len(set(steps)), f"{job.run_id}: a step twice"
        assert set(steps) == set(range(1, job.spec.config["training"]["train_steps"] + 1)), f"{job.run_id}: steps lost"


def table(
    folder: Path,
    kills: int,
    seed: int,
    study: str = "table3",
    options: Sequence[str] | None = None,
    pause_s: tuple[float, float] = (0.5, 4.0),
    verb: str = "work",
    call: Callable[..., "subprocess.CompletedProcess[str]"] | None = None,
) -> dict[str, object]:
    """Check that a table trained with `kills` faults has the same bytes as an undisturbed one, except costs.

    options: rows and settings; None selects ROWS and SMALL.
    verb: the command that is killed: `work` on a queue, or `run`.
    call: the function that runs the commands that are not killed.
    The returned counts include the steps at which attempts resumed.
    """
    call = call or _call
    chosen = [
        study,
        *(["--rows", ROWS, *(word for name in SMALL for word in ("--set", name))] if options is None else options),
    ]
    undisturbed, store = folder / "undisturbed", Store.open(folder / "killed")
    call("run", *chosen, "--store", undisturbed, "--devices", "cpu:2")
    call("queue", *chosen, "--store", store.root)
    killed = chosen if verb == "run" else []
    began = time.monotonic()
    killer = Killer(store, kills, random.Random(seed), pause_s, saved=True)
    killer.run(lambda: _start(_cli(verb, *killed, "--store", store.root, "--devices", "cpu:2"), store))
    for format_ in ("latex", "csv", "json"):
        tables = [call("report", *chosen, "--store", at, "--format", format_) for at in (undisturbed, store.root)]
        one, other = (lasting(table.stdout, format_) for table in tables)
        assert one == other != "", f"{format_}: the tables differ"
    resumed = [
        event["step"]
        for run in store.runs.iterdir()
        for number in store.attempts(run.name)
        for event in read_events(store.attempt_folder(run.name, number))
        if event["kind"] == "resumed"
    ]
    assert any(step > 0 for step in resumed), "nothing was ever gone on with"
    points = _check_files(store, killer.files, call)
    return {
        "rows": sum(1 for _ in store.runs.iterdir()),
        "killed": dict(killer.killed),
        "tables": "byte-identical: latex, csv, json",
        "points": points,
        "resumed_at": sorted(resumed),
        "seconds": round(time.monotonic() - began, 1),
    }


def _cli(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "ablations.cli.main", *map(str, arguments)]


def _call(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(_cli(*arguments), check=True, capture_output=True, text=True)


def with_stepped_clock(store: Store) -> dict[str, str]:
    """Return an environment for processes whose clock differs by the seconds written into `<store>.clock`."""
    path = os.pathsep.join([str(STEPPED_CLOCK), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "STEPPED_CLOCK": str(_clock(store))}


def _clock(store: Store) -> Path:
    return store.root.with_name(f"{store.root.name}.clock")


def _start(argv: Sequence[str], store: Store) -> subprocess.Popen[bytes]:
    environment = with_stepped_clock(store)
    return subprocess.Popen(argv, env=environment, cwd=ROOT, start_new_session=True, stderr=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("stub", "table", "verbs", "flips"))
    parser.add_argument("--only", default="", choices=("", *VERBS))
    for name, default in (("runs", 200), ("slots", 8), ("kills", 100), ("seed", int(time.time()))):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    print(f"seed {given.seed}", file=sys.stderr)
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))  # the folder stays if a check fails
    if given.what == "stub":
        found = stub(folder, given.runs, given.slots, given.kills, given.seed)
    elif given.what == "table":
        found = table(folder, given.kills, given.seed)
    elif given.what == "verbs":
        found = verbs(folder, given.kills, given.seed, given.only)
    else:
        study, store = make_store(folder / "made")
        found = flip_all(all_kinds(study, store, folder), given.seed)
    shutil.rmtree(folder)
    print(json.dumps({"what": given.what, "seed": given.seed, **found}))


if __name__ == "__main__":
    main()
