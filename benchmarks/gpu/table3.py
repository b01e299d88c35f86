"""Train as many rows of Table 3 as the time allows with `ablations run`, on a corpus and this device.

    python -m benchmarks.gpu.table3 --corpus FOLDER --store FOLDER --out FILE.json [--profile small] [--devices auto]
                                    [--seconds S] [--device cpu] [--tiny]

The benchmark runs `ablations run table3`, interrupts it before the time is over as with Ctrl-C, so that checkpoints are
saved, and prints the table. FILE contains the finished rows and the total wall time of all calls. To continue, call the
same command again with the same store. The exit code is 0 if all rows are finished, 3 if only some rows are finished,
and 1 if no row is finished or a command fails. `--tiny` runs two rows of the profile demo on the built-in corpus. If a
package that `ablations run` needs (typer, mlflow, optuna …) is missing, the exit code is 4.
"""

import argparse
import importlib.util
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu.command import NEEDED
from benchmarks.gpu.exits import DONE, FAILED, LEFT_OUT, UNFINISHED
from benchmarks.machine import keep_report, machine, read_report
from benchmarks.measured import exit_code, positive

GRACE_S = 20  # seconds for saving checkpoints
REPORT_S = 20  # seconds for the two calls of `ablations report`
TINY = (
    "training.train_steps=40", "data.vocab_size=300", "data.builtin_pairs=400", "evaluation.beam_size=2",
    "evaluation.max_extra_length=3",
)  # fmt: skip
NOTE = (
    "A test of speed and mechanics. 29,000 captions do not order the rows as WMT's 4.5 million pairs do: large models "
    "overfit, dropout counts for more, and one seed does not tell rows a BLEU point apart."
)


def main() -> int:
    options = _options()
    if lacking := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        print(f"`ablations run` needs {', '.join(lacking)}, which this machine lacks")
        return LEFT_OUT
    report = read_report(options.out, {"wall_s": 0.0, "calls": 0})
    began = time.monotonic()
    code, stopped = _run(options)
    wall_s = report["wall_s"] + time.monotonic() - began
    done = subprocess.run([*_words("report", options), "--format", "json"], capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"`ablations run` ended with {code}, `ablations report` with {done.returncode}: {done.stderr[-300:]}")
        return FAILED
    rows = json.loads(done.stdout)
    finished = [row for row in rows if row.get("bleu") is not None]
    report |= {
        "profile": options.profile, "devices": options.devices, "rows": len(rows),
        "finished": len(finished), "calls": report["calls"] + 1, "wall_s": round(wall_s, 1), "table": finished,
        "stopped": stopped, "note": NOTE, **machine(),
    }  # fmt: skip
    keep_report(report, options.out)
    table = subprocess.run(_words("report", options), capture_output=True, text=True, check=False).stdout
    options.out.with_suffix(".txt").write_text(table, encoding="utf-8")
    print(table)
    positive("table3", finished=len(finished))
    print(f"{len(finished)} of {len(rows)} rows in {wall_s:.0f} s of {report['calls']} calls")
    if code and not stopped:
        return FAILED
    return DONE if len(finished) == len(rows) else UNFINISHED


def _run(options: argparse.Namespace) -> tuple[int, bool]:
    """Run `ablations run`. Return its exit code, and whether it was stopped because its time was over."""
    with subprocess.Popen(_words("run", options)) as command:
        signal.signal(signal.SIGTERM, lambda *_: command.send_signal(signal.SIGINT))
        try:
            return command.wait(max(1.0, options.seconds - GRACE_S - REPORT_S)), False
        except subprocess.TimeoutExpired:
            command.send_signal(signal.SIGINT)
        try:
            return command.wait(GRACE_S), True
        except subprocess.TimeoutExpired:  # a second interrupt ends it at once; the last checkpoints remain
            command.send_signal(signal.SIGINT)
            return command.wait(), True


def _words(verb: str, options: argparse.Namespace) -> list[str]:
    words = [sys.executable, "-m", "ablations", verb, "table3", "--profile", options.profile]
    words += ["--store", str(options.store)]
    if options.corpus:
        words += ["--corpus", options.corpus]
    if options.tiny:
        words += ["--rows", "base,E"]
        words += [word for setting in TINY for word in ("--set", setting)]
    return words + (["--devices", options.devices] if verb == "run" else [])


def _options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", help="a folder with train.<lang> …")
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="the report; the table is written next to it as .txt")
    parser.add_argument("--profile", default="small")
    parser.add_argument("--devices", default="auto", help="as in `ablations run`")
    parser.add_argument("--seconds", type=float, default=540, help="time limit, including saving")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu stands for --devices cpu:2")
    parser.add_argument("--tiny", action="store_true", help="two small rows")
    options = parser.parse_args()
    if not options.corpus and not options.tiny:
        parser.error("--corpus is needed: the built-in corpus is too small for the vocabulary of this profile")
    if options.device == "cpu":
        options.devices = "cpu:2"
    if options.tiny:
        options.profile = "demo"
    return options


if __name__ == "__main__":
    sys.exit(exit_code(main))
