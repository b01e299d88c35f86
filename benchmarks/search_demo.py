"""Search for settings of table3's profile demo with which its table agrees with the paper's. Uses only the dev set.

    python -m benchmarks.search_demo DIR [--candidates N] [--minutes M] [--devices cpu:2x1] [--rows base,C,D] [--tiny]

A candidate is one combination of sizes, corpus, steps and schedule (CHOICES). Its table is trained in DIR/CANDIDATE,
and one line is added to DIR/results.jsonl:

    tau_perplexity, tau_bleu   Kendall's tau of the differences from base, over the rows with published numbers
    wrong_signs                rows with a published difference of more than 1 BLEU and another sign here
    no_encoder, no_decoder     loss of BLEU if the network is trained without self-attention on that side
    zeroed_encoder, zeroed_decoder    loss of BLEU if base is evaluated with that side's self-attention set to zero
    bleu                       BLEU of base
    cpu_minutes                processor time of training and evaluation of the table's rows

Candidates are tried in a fixed random order. To continue after an interruption, call the command again with the same
DIR: finished candidates are not tried again. After `--minutes` no further candidate is started. At the end the command
prints the best candidates: those with the fewest wrong signs, then those with the largest sum of both taus.
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
PUBLISHED_CHANGE = 1.0  # BLEU; larger published differences must have the same sign here
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
    """Return all combinations of the choices, in a fixed random order."""
    every = [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]
    random.Random(1).shuffle(every)
    return every


def study_text(choices: Mapping[str, Any]) -> str:
    """Return the study table3 with these choices as its profile `demo`, the dev set alone, and the controls as rows."""
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
    """Train the table of a candidate and measure its agreement with the paper."""
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
    """Return the agreement of a table with the published numbers.

    records: rows of `report --format json`, by their `row`.
    """
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
    """Return Kendall's tau, or 0 if all differences of one side are equal."""
    found = float(kendalltau(ours, theirs).statistic)
    return 0.0 if math.isnan(found) else round(found, 3)


def cpu_minutes(store: Path, records: Mapping[str, Mapping[str, Any]]) -> float:
    """Return the processor minutes of the rows' runs, without the controls."""
    spent = 0.0
    for run in {run for key, row in records.items() if key not in CONTROLS for run in row["run_ids"]}:
        for events in (store / "runs" / run).glob("attempts/*/events.jsonl"):
            lines = (json.loads(line) for line in events.read_text(encoding="utf-8").splitlines())
            spent += max((line.get("cpu_s") or 0.0 for line in lines), default=0.0)
    return spent / 60


def best(lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Sort candidates by the number of wrong signs, then by the sum of both taus, the best first."""
    return sorted(lines, key=lambda line: (len(line["wrong_signs"]), -line["tau_perplexity"] - line["tau_bleu"]))


def _results(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the candidates and their results")
    parser.add_argument("--candidates", type=int, default=1000, help="try only the first N candidates")
    parser.add_argument("--minutes", type=float, default=60, help="start no candidate later (default %(default)s)")
    parser.add_argument("--devices", default="cpu:2x1", help="as in `ablations run` (default %(default)s)")
    parser.add_argument("--rows", default="", help="only these rows or groups; base must be among them")
    parser.add_argument("--tiny", action="store_true", help="two candidates of 20 steps, as a trial")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
