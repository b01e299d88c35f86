"""Overhead of a run: the time of trivial runs with this program and with four other programs.

   python -m benchmarks.overhead --runs 200 [--peers DIR] [--out benchmarks/results/overhead.json]

Every run returns one number. Two runs are active at a time, in separate processes if the program supports this:

- pool: two threads that start a Python interpreter for each run. Nothing is recorded.
- hydra: a multirun with hydra-joblib-launcher and two workers, each of which runs its jobs one after another.
- ray: Ray Tune with two trials at a time.
- optuna: two processes that share a study in SQLite.
- ours: `ablations run`, with checksummed records, events and MLflow.

DIR is the folder of `python -m benchmarks.setup_peers DIR`. Programs that are not installed there are left out. The
programs take turns for `--rounds` rounds; in a round, each does an equal share of the runs in a new folder. Before
these runs, each program does a single run twice in another new folder, to measure the time until its first step: first
cold, then warm. CPU time includes all processes, also orphaned ones, from the start to the end of the program.
"""

import argparse
import contextlib
import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.machine import keep_report, machine
from benchmarks.measured import LEAST

# Every run of every program starts with this code, which records the time of its first step.
STEP = "import os, time; print(time.time(), file=open(os.environ['STEPS'], 'a'), flush=True)"
OURS = f"""
from dataclasses import dataclass
from ablations_task import column, task

@dataclass
class Settings:
    x: int = 0

@task(Settings, columns=[column("score", better="higher")])
def TASK(settings, context):
    {STEP}
    return {{"score": settings.x}}
"""
POOL = f"""
import subprocess, sys
from concurrent.futures import ThreadPoolExecutor
run = {STEP!r} + "; print(__import__('sys').argv[1])"
with ThreadPoolExecutor(2) as pool:
    list(pool.map(lambda x: subprocess.run([sys.executable, "-c", run, str(x)], check=True), range(int(sys.argv[1]))))
"""
HYDRA = f"""
import hydra
from hydra.core.config_store import ConfigStore
ConfigStore.instance().store(name="config", node={{"x": 0}})

@hydra.main(version_base=None, config_name="config")
def main(config):
    {STEP}
    return config.x

main()
"""
RAY = f"""
import sys
from ray import init, shutdown, tune

def run(config):
    {STEP}
    return {{"score": config["x"]}}

init(num_cpus=2, include_dashboard=False, log_to_driver=False)
trainable = tune.with_resources(run, {{"cpu": 1}})
space = {{"x": tune.grid_search(list(range(int(sys.argv[1]))))}}
found = tune.Tuner(trainable, param_space=space, run_config=tune.RunConfig(storage_path=sys.argv[2], verbose=0)).fit()
assert not found.errors and len(found) == int(sys.argv[1])
shutdown()
"""
OPTUNA = f"""
import sys
from multiprocessing import get_context
import optuna

def objective(trial):
    {STEP}
    return trial.suggest_int("x", 0, 1_000_000)

def work(place, count):
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    optuna.load_study(study_name="s", storage=place).optimize(objective, n_trials=count)

if __name__ == "__main__":
    runs, place = int(sys.argv[1]), f"sqlite:///{{sys.argv[2]}}/study.db"
    optuna.create_study(study_name="s", storage=place, load_if_exists=True, sampler=optuna.samplers.RandomSampler())
    both = [get_context("spawn").Process(target=work, args=(place, n)) for n in (runs - runs // 2, runs // 2) if n]
    for one in both:
        one.start()
    for one in both:
        one.join()
"""
Command = Callable[[Path, int], Sequence[str]]  # (folder, number of runs) → command line


def ours(folder: Path, runs: int) -> list[str]:
    """Write a study with one row per run and return its command. No two studies of a folder have equal settings."""
    first = sum(1 for _ in folder.glob("*.toml")) * 1_000_000
    study, rows = folder / f"study_{first}.toml", [f'\n[[variation]]\nkey = "r{n}"' for n in range(runs)]
    sets = [f"\nset = {{x = {first + n}}}\n" for n in range(runs)]
    text = "".join(row + its for row, its in zip(rows, sets, strict=True))
    study.write_text(f'name = "{study.stem}"\ntitle = "Trivial"\ntask = "trivial:TASK"\n{text}')
    (folder / "trivial.py").write_text(OURS)
    command = [sys.executable, "-m", "ablations", "run", str(study), "--devices", "cpu:2"]
    return [*command, "--store", str(folder / "store")]


def programs(peers: Path) -> dict[str, Command]:
    """Return {name: command} of the installed programs."""
    found: dict[str, Command] = {"pool": lambda folder, runs: [sys.executable, "-c", POOL, str(runs)], "ours": ours}
    for name, text in (("hydra", HYDRA), ("ray", RAY), ("optuna", OPTUNA)):
        python = peers / name / "bin" / "python"
        if python.exists():
            found[name] = _peer(python, name, text)
    return found


def _peer(python: Path, name: str, text: str) -> Command:
    def command(folder: Path, runs: int) -> list[str]:
        (script := folder / "script.py").write_text(text)
        if name != "hydra":
            return [str(python), str(script), str(runs), str(folder)]
        joblib = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hydra.launcher.verbose=0"]
        return [str(python), str(script), "--multirun", *joblib, f"x={','.join(map(str, range(runs)))}"]

    return command


def timed(command: Command, folder: Path, runs: int) -> dict[str, float]:
    """Return the CPU and wall seconds of a program, and the seconds until its first step.

    Raises RuntimeError if the program or one of its runs fails.
    """
    steps, log = folder / "steps.txt", folder / "log.txt"
    steps.unlink(missing_ok=True)
    words, environment = command(folder, runs), {**os.environ, "STEPS": str(steps), "RAY_USAGE_STATS_ENABLED": "0"}
    environment |= {"RAY_raylet_start_wait_time_s": "900", "RAY_AUTH_MODE": "disabled"}  # 900 s for busy machines
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else each interpreter compiles uninstalled modules again
    before, began = _cpu_s(), time.time()
    with log.open("ab") as output:
        ended = subprocess.run(
            words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False
        )
    wall_s = time.time() - began
    with contextlib.suppress(ChildProcessError):
        while True:  # orphaned processes of the program are now children of this process: wait for them too
            os.wait()
    taken = [float(line) for line in steps.read_text().split()] if steps.exists() else []
    if ended.returncode or len(taken) != runs:
        raise RuntimeError(f"{len(taken)} of {runs} runs, exit code {ended.returncode}: {log.read_text()[-2000:]}")
    return {"cpu_s": _cpu_s() - before, "wall_s": wall_s, "first_step_s": min(taken) - began}


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(runs: int, rounds: int, peers: Path) -> dict[str, dict[str, Any]]:
    """Return the medians over rounds of each program: CPU seconds per run, wall seconds, seconds to the first step."""
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
    told: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with tempfile.TemporaryDirectory(prefix="overhead-") as home:
        for turn in range(rounds):
            for name, command in programs(peers).items():
                (one := Path(home, f"{name} one {turn}")).mkdir()
                (many := Path(home, f"{name} many {turn}")).mkdir()
                said = told[name]
                said["cold_s"].append(timed(command, one, 1)["first_step_s"])
                said["warm_s"].append(timed(command, one, 1)["first_step_s"])
                found = timed(command, many, runs // rounds)
                said["cpu_s_a_run"].append(found["cpu_s"] / (runs // rounds))
                said["wall_s"].append(found["wall_s"])
                print(f"{turn + 1}. {name}: {', '.join(f'{k} {v[-1]:.3f}' for k, v in said.items())}", file=sys.stderr)
    return {
        name: {key: round(median(values), 3) for key, values in said.items()}
        | {"factor_of_pool": round(median(said["wall_s"]) / median(told["pool"]["wall_s"]), 2)}
        for name, said in told.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200, help="number of runs of each program, in all rounds together")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--peers", type=Path, default=Path("/nonexistent"), metavar="DIR")
    parser.add_argument("--out", type=Path, help="also write the JSON to a file, such as benchmarks/results/….json")
    given = parser.parse_args()
    if given.rounds < LEAST or given.runs < given.rounds:
        parser.error(f"--rounds must be at least {LEAST}, and --runs at least the number of rounds")
    found = measure(given.runs, given.rounds, given.peers.absolute())
    report = {"runs_a_round": given.runs // given.rounds, "rounds": given.rounds, "programs": found, **machine()}
    print(json.dumps(report, indent=1))
    keep_report(report, given.out)


if __name__ == "__main__":
    main()
