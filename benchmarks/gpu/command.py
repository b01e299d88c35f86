"""Check that `ablations run`, killed and resumed on this device, gives bit-identical weights.

    python -m benchmarks.gpu.command --out FILE.json [--seconds S] [--device cpu] [--tiny]

Two small rows of Table 3 with `training.deterministic` are trained in two stores at the same time, by `ablations run`
with its fork server. In the second store, the command and its running children are killed once a run has saved a
checkpoint. Then the same command continues. The weights of both stores are compared byte by byte. `child_s` is the time
from a child's start to its first event. After `--seconds` the benchmark ends, with exit code 3 if the tables are not
finished. If a package that `ablations run` needs (typer, mlflow, optuna …) is missing, the exit code is 4.
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
from pathlib import Path
from typing import Any

from benchmarks.gpu.exits import DONE, FAILED, LEFT_OUT, UNFINISHED
from benchmarks.machine import keep_report, machine
from benchmarks.measured import exit_code, positive
from experiments.events.event_log import read_events
from experiments.store.layout import Store

NEEDED = ("typer", "mlflow", "optuna", "pandas")
ROWS = ("base", "E")
SETTINGS = (
    "training.deterministic=true", "training.train_steps=150", "training.checkpoint_steps=30",
    "data.builtin_pairs=400", "data.vocab_size=300", "evaluation.beam_size=2", "evaluation.max_extra_length=3",
)  # fmt: skip


def main() -> int:
    options = _options()
    if lacking := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        print(f"`ablations run` needs {', '.join(lacking)}, which this machine lacks")
        return LEFT_OUT
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(UNFINISHED))
    deadline = time.monotonic() + options.seconds
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        whole, killed = Path(folder) / "whole", Path(folder) / "killed"
        undisturbed = stack.enter_context(_Command(whole, options.device))
        if not _killed_after_a_checkpoint(killed, options.device, deadline):
            return FAILED if time.monotonic() < deadline else UNFINISHED
        continued = stack.enter_context(_Command(killed, options.device))
        codes = [command.ended(deadline) for command in (undisturbed, continued)]
        if None in codes:
            print(f"the tables were not finished after {options.seconds:.0f} s")
            return UNFINISHED
        if any(codes):
            print(f"`ablations run` ended with {codes}")
            return FAILED
        found = _compared(Store.open(whole, create=False), Store.open(killed, create=False))
    seconds = time.monotonic() - began
    keep_report({**found, "seconds": round(seconds, 1), **machine()}, options.out)
    positive("command", **{name: found[name] for name in ("runs", "equal", "resumed", "child_s")})
    print(
        f"{found['equal']} of {found['runs']} runs equal to the last bit, {found['resumed']} resumed; both tables in "
        f"{seconds:.0f} s, a child begins in {found['child_s']} s"
    )
    return DONE if found["equal"] == found["runs"] == len(ROWS) else FAILED


class _Command:
    """A process of `ablations run` on a store. It is killed at the end of the `with` block."""

    def __init__(self, store: Path, device: str) -> None:
        devices = "cuda:0x2" if device == "cuda" else "cpu:2"
        words = ["run", "table3", "--profile", "demo", "--rows", ",".join(ROWS), "--store", str(store)]
        sets = [word for setting in SETTINGS for word in ("--set", setting)]
        self.process = subprocess.Popen([sys.executable, "-m", "ablations", *words, "--devices", devices, *sets])

    def __enter__(self) -> "_Command":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def ended(self, deadline: float) -> int | None:
        """Wait for the end of the process. Return the exit code, or None if `deadline` passes first."""
        try:
            return self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return None


def _killed_after_a_checkpoint(store: Path, device: str, deadline: float) -> bool:
    """Start the command, and kill it and its children once a run has saved a checkpoint.

    Return False if the command ends or the time is over before a checkpoint is saved.
    """
    with _Command(store, device) as command:
        while not (pids := _saved(store)):
            if command.process.poll() is not None:
                print("the table ended before a checkpoint was saved")
                return False
            if time.monotonic() > deadline:
                print("no checkpoint was saved in time")
                return False
            time.sleep(0.02)
        command.process.kill()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return True


def _saved(store: Path) -> list[int]:
    """Return the process ids of all attempts once one of them has saved a checkpoint, else []."""
    attempts = [read_events(folder) for folder in store.glob("runs/*/attempts/*")]
    if not any(event["kind"] == "checkpoint" for events in attempts for event in events):
        return []
    return [event["pid"] for events in attempts for event in events if event["kind"] == "started"]


def _compared(whole: Store, killed: Store) -> dict[str, Any]:
    def weights(store: Store, run_id: str) -> bytes:
        folder = store.weights_folder(run_id)
        return (folder / "final" / "model.safetensors").read_bytes() if folder else b""

    runs = [folder.name for folder in whole.runs.iterdir() if whole.weights_folder(folder.name)]
    equal = sum(weights(whole, run) == weights(killed, run) for run in runs)
    events = [read_events(folder) for folder in killed.root.glob("runs/*/attempts/*")]
    starts = [event["after_s"] for attempt in events for event in attempt if event["kind"] == "started"]
    resumed = sum(event["kind"] == "resumed" for attempt in events for event in attempt)
    return {"runs": len(runs), "equal": equal, "resumed": resumed, "child_s": round(statistics.median(starts), 2)}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=60, help="time limit")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="has no effect: this benchmark is always small")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
