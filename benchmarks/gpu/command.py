"""`ablations run` on this device, killed and resumed: are the numbers those of an undisturbed table, to the last bit?

    python -m benchmarks.gpu.command --out FILE.json [--device cpu] [--tiny]

Three rows of Table 3 in the demo's sizes, with `training.deterministic`, are trained in two stores by the command with
its fork server. In the second one the command and its running children are killed once a run has saved a checkpoint;
the same command then continues. The weights of both stores are compared byte by byte. `child_s`: from a child's start
to its first event. Needs what the command needs (typer, mlflow, optuna …); exit code 4 without.
"""

import argparse
import contextlib
import importlib.util
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpu.exits import DONE, LEFT_OUT, UNFINISHED
from benchmarks.machine import keep_report, machine
from experiments.events.event_log import read_events
from experiments.store.layout import Store

NEEDED = ("typer", "mlflow", "optuna", "pandas")
SETTINGS = ("training.deterministic=true", "training.checkpoint_steps=40")
TINY = ("training.train_steps=60", "training.checkpoint_steps=20", "data.builtin_pairs=400", "data.vocab_size=300")


def main() -> int:
    options = _options()
    if lacking := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        print(f"`ablations run` needs {', '.join(lacking)}, which this machine lacks")
        return LEFT_OUT
    with tempfile.TemporaryDirectory() as folder:
        whole, broken = Path(folder) / "whole", Path(folder) / "killed"
        with _command(whole, options) as command:
            began = time.monotonic()
            if command.wait():
                return 1
            seconds = time.monotonic() - began
        with _command(broken, options) as command:
            while not (pids := _saved(broken)):
                if command.poll() is not None:
                    print("the table ended before a checkpoint was saved")
                    return 1
                time.sleep(0.02)
            command.kill()
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        with _command(broken, options) as command:
            if command.wait():
                return 1
        found = _compared(Store.open(whole, create=False), Store.open(broken, create=False))
    keep_report({**found, "whole_s": round(seconds, 1), **machine()}, options.out)
    print(
        f"{found['equal']} of {found['runs']} runs equal to the last bit, {found['resumed']} resumed; a table in "
        f"{seconds:.0f} s, a child begins in {found['child_s']} s"
    )
    return DONE if found["equal"] == found["runs"] and found["resumed"] else 1


@contextlib.contextmanager
def _command(store: Path, options: argparse.Namespace) -> Iterator["subprocess.Popen[bytes]"]:
    """The command at work on a store; ended with the block."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(UNFINISHED))
    devices = "cuda:0x2" if options.device == "cuda" else "cpu:2"
    words = [
        "run",
        "table3",
        "--profile",
        "demo",
        "--rows",
        "base,A-h16,E",
        "--store",
        str(store),
        "--devices",
        devices,
    ]
    for setting in TINY if options.tiny else ():
        words += ["--set", setting]
    for setting in SETTINGS[: 1 if options.tiny else None]:
        words += ["--set", setting]
    with subprocess.Popen([sys.executable, "-m", "ablations", *words]) as command:
        try:
            yield command
        finally:
            command.kill()


def _saved(store: Path) -> list[int]:
    """The processes of attempts, once one of them has saved a checkpoint; [] until then."""
    attempts = [read_events(folder) for folder in store.glob("runs/*/attempts/*")]
    if not any(event["kind"] == "checkpoint" for events in attempts for event in events):
        return []
    return [event["pid"] for events in attempts for event in events if event["kind"] == "started"]


def _compared(whole: Store, broken: Store) -> dict[str, Any]:
    def weights(store: Store, run_id: str) -> bytes:
        folder = store.weights_folder(run_id)
        return (folder / "final" / "model.safetensors").read_bytes() if folder else b""

    runs = [folder.name for folder in whole.runs.iterdir() if whole.weights_folder(folder.name)]
    equal = sum(weights(whole, run) == weights(broken, run) for run in runs)
    events = [read_events(folder) for folder in broken.root.glob("runs/*/attempts/*")]
    starts = [event["after_s"] for attempt in events for event in attempt if event["kind"] == "started"]
    resumed = sum(event["kind"] == "resumed" for attempt in events for event in attempt)
    return {"runs": len(runs), "equal": equal, "resumed": resumed, "child_s": round(statistics.median(starts), 2)}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="few steps of a small corpus")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
