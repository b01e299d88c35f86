"""Table 3 at paper sizes on a small corpus and one GPU: trained to a dev plateau, decoded, reported; unattended.

    python -m benchmarks.gpu.table3 --corpus FOLDER --work FOLDER --out FILE.json [--seconds S] [--rows KEY,GROUP]

The same command continues: rows in FILE are done, others resume from their checkpoint under --work. It ends after
--seconds with checkpoints saved, before a time limit kills it. Rows run in their own processes, several at once on the
GPU (--together), the costliest first. Exit code: 0 if all rows are done, 3 if some are not. `--tiny` is the same with
the study's demo profile, the built-in corpus and few steps.

In all rows: 4,096 tokens per step and a warm-up of 1,000 steps with half the paper's rate, which has the paper's peak.
A run ends when four evaluations in a row find no dev perplexity lower by 0.5 %; its best weights are decoded. Needs
torch, sentencepiece, sacrebleu, numpy, pydantic and safetensors.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any, cast

from ablations.planning.planned import PlannedRow
from ablations.planning.resolve import resolve
from ablations.study.selectors import selection
from ablations.study.study import load_study
from benchmarks.gpu.exits import DONE, UNFINISHED
from benchmarks.machine import machine
from experiments.config import DeviceSpec, RunConfig
from experiments.data.encoding.encoded import model_names
from experiments.errors import Preempted
from experiments.store.checksummed import write_json
from experiments.store.layout import Store
from experiments.tasks.base import Context
from experiments.tasks.translation import TASK

NOTE = (
    "A test of speed and mechanics. 29,000 captions do not order the rows as WMT's 4.5 million pairs do: large models "
    "overfit, dropout counts for more, and one seed does not tell rows a BLEU point apart."
)
PATIENCE, LEAST_GAIN = 4, 0.005
NOTHING_YET = 1e30
GRACE_S = 40  # before the end: for checkpoints of several GB
COMMON = (
    "training.tokens_per_batch=4096", "training.warmup_steps=1000", "training.learning_rate_scale=0.5",
    "training.train_steps=6000", "training.eval_steps=150", "training.checkpoint_steps=1500",
    "training.keep_checkpoints=1", "data.vocab_size=8000", "evaluation.checkpoint=best", "evaluation.sets=dev,test",
)  # fmt: skip
TINY = (
    "training.tokens_per_batch=400", "training.train_steps=60", "training.eval_steps=10",
    "training.checkpoint_steps=20", "training.keep_checkpoints=1", "data.vocab_size=300", "data.builtin_pairs=400",
    "evaluation.checkpoint=best", "evaluation.beam_size=2", "evaluation.max_extra_length=3",
)  # fmt: skip


def main() -> int:
    options = _options()
    rows = _rows(options)
    if options.row:
        return _child(next(row for row in rows if row.variation.key == options.row), options)
    deadline = time.monotonic() + options.seconds
    report = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else {"rows": {}}
    store = Store.open(options.work)
    for row in rows:
        TASK.prepare(cast(RunConfig, row.config), store.root, lambda *_: None)
    waiting = [row for row in rows if "dev" not in report["rows"].get(row.variation.key, {})]
    waiting.sort(key=lambda row: -TASK.cost(cast(RunConfig, row.config)))
    running: dict[str, subprocess.Popen[bytes]] = {}
    while (waiting or running) and time.monotonic() < deadline - GRACE_S:
        while waiting and len(running) < options.together:
            key = waiting.pop(0).variation.key
            running[key] = _start(key)
        time.sleep(0.2)
        for key in [key for key, process in running.items() if process.poll() is not None]:
            _collect(key, running.pop(key).returncode, report, options)
    for process in running.values():
        process.send_signal(signal.SIGTERM)
    for key, process in running.items():
        try:
            code = process.wait(max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:  # it continues from its last checkpoint
            process.kill()
            process.wait()
            code = UNFINISHED
        _collect(key, code, report, options)
    return _say(report, rows, options)


def _rows(options: argparse.Namespace) -> list[PlannedRow]:
    profile, sets = ("demo", TINY) if options.tiny else ("paper", COMMON)
    return resolve(load_study("table3"), selection(profile, options.corpus, options.rows, 1, sets), TASK)


def _start(key: str) -> subprocess.Popen[bytes]:
    print(f"{time.strftime('%H:%M:%S')} {key} begins", flush=True)
    return subprocess.Popen([sys.executable, "-m", "benchmarks.gpu.table3", *sys.argv[1:], "--row", key])


def _collect(key: str, code: int, report: dict[str, Any], options: argparse.Namespace) -> None:
    path = options.work / "rows" / key / "result.json"
    if path.exists():
        report["rows"][key] = json.loads(path.read_text(encoding="utf-8"))
    elif code == UNFINISHED:
        report["rows"].pop(key, None)
    else:
        report["rows"][key] = {"failed": f"exit code {code}; its error is in the output above"}
    print(f"{time.strftime('%H:%M:%S')} {key}: {json.dumps(report['rows'].get(key, 'to be continued'))}", flush=True)
    write_json(options.out, report, checksummed=False)


def _child(row: PlannedRow, options: argparse.Namespace) -> int:
    """Train, decode and score one row; the result is in its folder's result.json."""
    config = cast(RunConfig, row.config)
    store, plateau = Store.open(options.work, create=False), _Plateau()
    signal.signal(signal.SIGTERM, plateau.ask_to_end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    folder = options.work / "rows" / row.variation.key
    folder.mkdir(parents=True, exist_ok=True)
    spec = DeviceSpec(options.device, options.threads)
    inputs = TASK.inputs(config, store.root)
    code = TASK.training_code(config, store.root)
    final = folder / "final" / model_names(config.model.shared_vocabulary)[1]  # copied last
    context = Context(store.root, row.variation.key, folder, inputs, spec, plateau.hear, plateau.stop, code_digest=code)
    plateau.restore(folder / "plateau.json")
    try:
        if plateau.reached is None and not final.exists():
            plateau.train(config, context, folder / "plateau.json")
        steps = plateau.reached or config.training.train_steps
        context.should_stop = plateau.asked_to_end
        if not final.exists():  # a run of so many steps: its last checkpoint exists
            shorter = config.training.model_copy(update={"train_steps": steps})
            TASK.train(config.model_copy(update={"training": shorter}), context)
        found: dict[str, Any] = {
            "steps": steps,
            "plateau": plateau.reached is not None,
            "best_step": plateau.best[0],
            "train_s": round(plateau.seconds, 1),
            "target_tokens_per_s": plateau.speed,
            "num_params": TASK.num_params(config),
        }
        for evaluation in TASK.evaluations(config, store.root):
            place = folder / "evaluations" / evaluation.set
            place.mkdir(parents=True, exist_ok=True)
            began = time.monotonic()
            outcome = TASK.evaluate(config, evaluation, folder, place, context)
            found[evaluation.set] = {
                **{name: round(value, 4) for name, value in outcome["metrics"].items()},
                "seconds": round(time.monotonic() - began, 1),
                "signature": outcome["signature"],
            }
            found["device"] = outcome["device"]
    except Preempted:
        return UNFINISHED
    except Exception:
        traceback.print_exc()
        return 1
    write_json(folder / "result.json", found)
    for bulky in ("checkpoints", "final"):
        shutil.rmtree(folder / bulky, ignore_errors=True)
    return DONE


class _Plateau:
    """Reads the trainer's events; requests a stop at the plateau of dev perplexity, or if the parent requests it."""

    def __init__(self) -> None:
        self.best: tuple[int, float] = (0, NOTHING_YET)  # step, dev perplexity
        self.reached: int | None = None  # the step at which training ended at the plateau
        self.seconds = self.speed = 0.0
        self._gained_at, self._bad = NOTHING_YET, 0
        self._asked = False
        self._speeds: list[float] = []

    def train(self, config: RunConfig, context: Context, path: Path) -> None:
        """Train to the plateau or to the last step. Raises Preempted if the parent requests a stop first."""
        began = time.monotonic()
        try:
            TASK.train(config, context)
        except Preempted as stopped:
            if self._bad < PATIENCE:
                raise
            self.reached = stopped.step
        finally:
            self.seconds += time.monotonic() - began
            write_json(path, {name: value for name, value in vars(self).items() if name != "_asked"})

    def hear(self, kind: str, **facts: Any) -> None:
        metrics = facts["metrics"] if kind == "metrics" else {}
        if "target_tokens_per_s" in metrics:
            self._speeds = [*self._speeds[-200:], metrics["target_tokens_per_s"]]
            self.speed = sorted(self._speeds)[len(self._speeds) // 2]
        if "dev_perplexity" in metrics:
            step, perplexity = facts["step"], metrics["dev_perplexity"]
            if perplexity < self.best[1]:
                self.best = (step, perplexity)
            self._bad += 1
            if perplexity < self._gained_at * (1 - LEAST_GAIN):
                self._gained_at, self._bad = perplexity, 0

    def ask_to_end(self, *_signal: Any) -> None:
        self._asked = True

    def asked_to_end(self) -> bool:
        return self._asked

    def stop(self) -> bool:
        """Called after each step, before its evaluation is read, so training ends one step after the plateau."""
        return self._asked or self._bad >= PATIENCE

    def restore(self, path: Path) -> None:
        if path.exists():
            vars(self).update(json.loads(path.read_text(encoding="utf-8")))


def _say(report: dict[str, Any], rows: list[PlannedRow], options: argparse.Namespace) -> int:
    """Write the report and its table; 0 if no row is missing."""
    keys = [row.variation.key for row in rows]
    report["rows"] = {key: report["rows"][key] for key in keys if key in report["rows"]} | report["rows"]
    report |= {"note": NOTE, "settings": list(TINY if options.tiny else COMMON), **machine()}
    text = _table(report, {row.variation.key: row for row in rows})
    write_json(options.out, report, checksummed=False)
    options.out.with_suffix(".txt").write_text(text + "\n", encoding="utf-8")
    done = [key for key in keys if "dev" in report["rows"].get(key, {})]
    print(f"{text}\n{len(done)} of {len(keys)} rows: {', '.join(done)}", flush=True)
    if any("failed" in row for row in report["rows"].values()):
        return 1
    return DONE if len(done) == len(keys) else UNFINISHED


def _table(report: dict[str, Any], rows: dict[str, PlannedRow]) -> str:
    done = {key: found for key, found in report["rows"].items() if "dev" in found}
    test = next((name for found in done.values() for name in found if name.startswith("test")), "test")
    heads = ("row", "steps", "PPL dev", "Δ", "BLEU dev", "Δ", f"BLEU {test}", "params", "tokens/s", "train s", "paper")
    lines = ["{:14}{:>7}{:>9}{:>8}{:>10}{:>7}{:>23}{:>9}{:>10}{:>9}{:>14}".format(*heads)]
    base = done.get("base", {}).get("dev")
    for key, found in report["rows"].items():
        if "dev" not in found:
            lines.append(f"{key:14}{found['failed']}")
            continue
        dev, paper = found["dev"], rows[key].variation.paper if key in rows else {}
        changes = [f"{dev[name] - base[name]:+.2f}" if base else "" for name in ("perplexity", "bleu")]
        published = f"{paper.get('perplexity', '–')} / {paper.get('bleu', '–')}"
        lines.append(
            f"{key:14}{found['steps']:7}{dev['perplexity']:9.2f}{changes[0]:>8}{dev['bleu']:10.1f}{changes[1]:>7}"
            f"{found.get(test, {}).get('bleu', float('nan')):23.1f}{found['num_params'] / 1e6:8.1f}M"
            f"{found['target_tokens_per_s']:10,.0f}{found['train_s']:9.0f}{published:>14}"
        )
    signature = next((found["dev"]["signature"] for found in done.values()), "")
    lines += ["", NOTE, "paper: perplexity / BLEU as published on newstest2013, other pieces, other text."]
    return "\n".join([*lines, f"Scores: {json.dumps(signature)}", f"Settings: {' '.join(report['settings'])}"])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", help="a folder with train.<lang> …; the built-in corpus if unset")
    parser.add_argument("--work", type=Path, required=True, help="a folder for the encoded corpus and checkpoints")
    parser.add_argument("--out", type=Path, required=True, help="the report; its table goes beside it as .txt")
    parser.add_argument("--seconds", type=float, default=570, help="everything is saved and ended by then")
    parser.add_argument("--rows", help="keys and groups of Table 3, with commas; all if unset")
    parser.add_argument("--together", type=int, default=4, help="rows at once on the device")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--threads", type=int, default=max(1, len(os.sched_getaffinity(0)) // 4))
    parser.add_argument("--tiny", action="store_true", help="the whole path in miniature")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
