"""Search sizes, corpus, steps and schedule of table3's demo for a table that agrees with the paper's. On dev alone.

    python -m benchmarks.search_demo DIR [--candidates N] [--minutes M] [--devices cpu:2x1] [--rows base,C,D] [--tiny]

A candidate is a set of choices (CHOICES). Its table is trained in DIR/CANDIDATE, and DIR/results.jsonl gets one line:

    tau_perplexity, tau_bleu   Kendall's tau of the changes from base, over the rows with published numbers
    wrong_signs                rows whose published change is more than 1 BLEU and whose change here has the other sign
    no_encoder, no_decoder     BLEU that a training without self-attention on that side loses
    zeroed_encoder, zeroed_decoder    BLEU that base loses with that side's self-attention set to zero
    bleu                       of base
    cpu_minutes                of the rows of the table: training and evaluation

Candidates are tried in a fixed random order. A candidate with a line is not tried again, and one that was interrupted
goes on where it stopped: call it again with the same DIR. `--minutes` starts no candidate later than that. At the end
the best candidates are printed: fewest wrong signs first, then the sum of both taus.
"""

import argparse
import itertools
import json
import math
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy.stats import kendalltau

import ablations
from experiments.identity import digest

CHOICES: Mapping[str, Sequence[Any]] = {
    "width": [0.125],
    "depth": [0.5],
    "steps": [0.012, 0.02, 0.026],
    "data.builtin_pairs": [900, 1500, 3000],
    "data.vocab_size": [200, 400, 1000],
    "training.tokens_per_batch": [150, 200, 300],
    "training.warmup_steps": [300, 500],
    "training.learning_rate_scale": [0.35, 0.5],
}
TINY: Mapping[str, Sequence[Any]] = {
    "width": [0.125],
    "depth": [0.5],
    "steps": [0.0002],
    "data.builtin_pairs": [200],
    "data.vocab_size": [200, 300],
    "training.tokens_per_batch": [150],
    "training.warmup_steps": [10],
    "training.learning_rate_scale": [0.5],
}
PUBLISHED_CHANGE = 1.0  # BLEU: greater changes must have the paper's sign
_CONTROLS = """
[[variation]]
key = "no-encoder"
set = {model.encoder = "N * feed_forward"}

[[variation]]
key = "no-decoder"
set = {model.decoder = "N * (cross_attention, feed_forward)"}

[[variation]]
key = "zeroed-encoder"
set = {evaluation.modules = ["encoder.layers.*.self_attention -> zero"]}

[[variation]]
key = "zeroed-decoder"
set = {evaluation.modules = ["decoder.layers.*.self_attention -> zero"]}
"""
CONTROLS = ("no-encoder", "no-decoder", "zeroed-encoder", "zeroed-decoder")


def main() -> int:
    options = _options()
    out = options.folder / "results.jsonl"
    options.folder.mkdir(parents=True, exist_ok=True)
    known = {line["candidate"] for line in _results(out)}
    until = time.monotonic() + 60 * options.minutes
    for choices in candidates(TINY if options.tiny else CHOICES)[: options.candidates]:
        name = digest(choices)[:8]
        if name in known:
            continue
        if time.monotonic() > until:
            print("The time is over: call this again with the same folder to go on.")
            break
        found = tried(choices, options.folder / name, options.devices, options.rows)
        with out.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"candidate": name, "choices": choices, **found}) + "\n")
        print(json.dumps({"candidate": name, **found}))
    for line in best(_results(out))[:5]:
        print({name: value for name, value in line.items() if name != "rows"})
    return 0


def candidates(choices: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """All combinations of the choices, in a fixed random order."""
    every = [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]
    random.Random(1).shuffle(every)
    return every


def study_text(choices: Mapping[str, Any]) -> str:
    """table3 with this profile `demo`, scored on dev alone, and with the controls as further rows."""
    text = (Path(ablations.__file__).parent / "studies" / "table3.toml").read_text(encoding="utf-8")
    before, _, rest = text.partition("[profile.demo]\n")
    after = rest[rest.index("\n[profile.small]") :]
    ratios = {name: choices[name] for name in ("width", "depth", "steps")} | {"head_width": 2 * choices["width"]}
    settings = {
        "data.builtin_version": 2,
        "training.schedule": "linear",
        "training.precision": "fp32",
        "evaluation.sets": ["dev"],
        **{name: value for name, value in choices.items() if "." in name},
    }
    profile = [
        "[profile.demo]",
        'description = "A candidate."',
        f"scale = {{{', '.join(f'{name} = {value}' for name, value in ratios.items())}}}",
        "",
        "[profile.demo.set]",
        *(f"{name} = {json.dumps(value)}" for name, value in settings.items()),
    ]
    claims = after.find("\n[[claim]]")
    return f"{before}{chr(10).join(profile)}\n{after[:claims]}\n{_CONTROLS}"


def tried(choices: Mapping[str, Any], folder: Path, devices: str, rows: str) -> dict[str, Any]:
    """Train the table of a candidate, and measure how it agrees."""
    folder.mkdir(exist_ok=True)
    study = folder / "table3.toml"
    study.write_text(study_text(choices), encoding="utf-8")
    command = [sys.executable, "-m", "ablations"]
    options = [str(study), "--store", str(folder / "store")]
    if rows:
        options += ["--rows", ",".join([rows, *CONTROLS])]
    subprocess.run([*command, "run", *options, "--devices", devices], check=True, stdout=subprocess.DEVNULL)
    report = [*command, "report", *options, "--format", "json"]
    printed = subprocess.run(report, check=True, capture_output=True, text=True).stdout
    table = json.loads(printed)
    records = {row["row"]: row for row in (table["rows"] if isinstance(table, dict) else table)}
    return measured(records) | {"cpu_minutes": round(cpu_minutes(folder / "store", records), 1)}


def measured(records: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The agreement of a table's rows with the published numbers, by `row` of `report --format json`."""
    base = records["base"]
    rows = [row for key, row in records.items() if key != "base" and row["paper"]["bleu"] is not None]
    ours = {name: [row[name] - base[name] for row in rows] for name in ("ppl", "bleu")}
    theirs = {
        name: [row["paper"][name] - base["paper"][name] for row in rows if row["paper"][name] is not None]
        for name in ("perplexity", "bleu")
    }
    signs = zip(rows, ours["bleu"], theirs["bleu"], strict=True)
    found: dict[str, Any] = {
        "tau_perplexity": tau(ours["ppl"], theirs["perplexity"]),
        "tau_bleu": tau(ours["bleu"], theirs["bleu"]),
        "wrong_signs": [row["row"] for row, a, b in signs if abs(b) > PUBLISHED_CHANGE and a * b <= 0],
        "bleu": round(base["bleu"], 1),
    }
    for key in CONTROLS:
        if key in records:
            found[key.replace("-", "_")] = round(base["bleu"] - records[key]["bleu"], 1)
    return found


def tau(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Kendall's tau; 0 where all changes of one side are equal."""
    found = float(kendalltau(ours, theirs).statistic)
    return 0.0 if math.isnan(found) else round(found, 3)


def cpu_minutes(store: Path, records: Mapping[str, Mapping[str, Any]]) -> float:
    """Processor time of the rows' runs, without the controls."""
    spent = 0.0
    for run in {run for key, row in records.items() if key not in CONTROLS for run in row["run_ids"]}:
        for events in (store / "runs" / run).glob("attempts/*/events.jsonl"):
            lines = (json.loads(line) for line in events.read_text(encoding="utf-8").splitlines())
            spent += max((line.get("cpu_s") or 0.0 for line in lines), default=0.0)
    return spent / 60


def best(lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Fewest wrong signs first, then the greatest sum of both taus."""
    return sorted(lines, key=lambda line: (len(line["wrong_signs"]), -line["tau_perplexity"] - line["tau_bleu"]))


def _results(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where candidates are trained and results are kept")
    parser.add_argument("--candidates", type=int, default=1000, help="the first N alone")
    parser.add_argument("--minutes", type=float, default=60, help="start no candidate later (default %(default)s)")
    parser.add_argument("--devices", default="cpu:2x1", help="as of `ablations run` (default %(default)s)")
    parser.add_argument("--rows", default="", help="these rows or groups alone, base among them")
    parser.add_argument("--tiny", action="store_true", help="two candidates of 20 steps, to rehearse")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
