"""What of a run is shown in a tracking store: names and values, none of MLflow's ways. Imports no torch."""

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.history import History
from experiments.store import Store

RUNNING = "RUNNING"
TAG_LENGTH = 4000  # MLflow's limit, with room
ARTIFACT_BYTES = 64 << 20  # larger files stay in the run's folder only


@dataclass(frozen=True)
class TrackedRun:
    """What tracking needs to know of a run beside its events and results."""

    run_id: str
    status: str  # RUNNING, FINISHED, FAILED, KILLED
    task: str
    config: Mapping[str, Any]
    seed: int
    inputs: Mapping[str, str] = field(default_factory=dict)  # digests of what it trains on
    num_params: int | None = None
    members: tuple[tuple[str, str, str, str, str], ...] = ()  # study, profile, corpus, row, group
    evaluations: tuple[str, ...] = ()  # eval_ids; of several for one set the first gets the plain names
    error: str = ""


def tags(run: TrackedRun, history: History) -> dict[str, str]:
    """Where the run stands, in which tables, and what trained it. `row.<study>` names its row in each study."""
    revision = history.started.get("revision") or {}
    found = {
        "run_id": run.run_id,
        "task": run.task,
        "seed": str(run.seed),
        "studies": ", ".join(dict.fromkeys(member[0] for member in run.members)),
        "commit": str(revision.get("commit") or "unknown"),
        "dirty": str(bool(revision.get("dirty"))).lower(),
        "code_digest": str(history.started.get("code_digest", "")),
        "host": str(history.started.get("host", "")),
    }
    if run.members:
        found |= dict(zip(("study", "profile", "corpus", "row", "group"), run.members[0], strict=True))
    found |= {f"row.{study}": row for study, _, _, row, _ in run.members}
    found |= {f"input.{name}": digest for name, digest in run.inputs.items()}
    return {name: value[:TAG_LENGTH] for name, value in found.items()}


def final_metrics(store: Store, run: TrackedRun) -> dict[str, float]:
    """num_params, the training's wall time, and every score: `bleu` on dev, `bleu.test_2016` on another set.

    A second evaluation of a set, with other settings, is named with the beginning of its eval_id: `bleu.dev.1f2e3d4c`.
    """
    result = store.result(run.run_id) or {}
    found = {"num_params": run.num_params or result.get("num_params"), "train_wall_s": None}
    found["train_wall_s"] = result.get("train_s", result.get("wall_s"))  # before, attempts were not added up
    seen: set[str] = set()
    for eval_id, made in evaluations(store, run):
        name = str(made.get("set", ""))
        plain, again = name not in seen, f".{name}.{eval_id[:8]}"
        suffix = ("" if name == "dev" else f".{name}") if plain else again
        seen.add(name)
        found |= {f"{metric}{suffix}": value for metric, value in made.get("metrics", {}).items()}
    return {k: float(v) for k, v in found.items() if isinstance(v, int | float) and not isinstance(v, bool)}


def curve_name(name: str) -> str:
    """Training's own numbers are named apart from the final scores: `train_perplexity` beside dev's `perplexity`."""
    return name if name.startswith("dev_") else f"train_{name}"


def evaluations(store: Store, run: TrackedRun) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The evaluations there are: those asked for, in that order, then others that were made before."""
    home = store.run_folder(run.run_id) / "evaluations"
    others = sorted(p.name for p in home.iterdir() if p.is_dir()) if home.is_dir() else []
    for eval_id in dict.fromkeys([*run.evaluations, *others]):
        made = store.evaluation(run.run_id, eval_id)
        if made is not None:
            yield eval_id, made


def artifacts(store: Store, run: TrackedRun) -> Iterator[tuple[Path, str]]:
    """(file, name) of what is worth opening beside the numbers: outputs, logs, uncommitted changes."""
    for eval_id, made in evaluations(store, run):
        for path in sorted(store.evaluation_folder(run.run_id, eval_id).iterdir()):
            yield path, f"evaluations/{made.get('set', 'set')}-{eval_id[:8]}/{path.name}"
    for path in sorted((store.run_folder(run.run_id) / "attention").glob("*")):
        yield path, f"attention/{path.name}"
    for number in store.attempts(run.run_id):
        for name in ("log.txt", "uncommitted.diff"):
            yield store.attempt_folder(run.run_id, number) / name, f"attempts/{number:04d}/{name}"


def place_artifact(source: Path, target: Path) -> None:
    """Hard-link a file that will not change any more; copy it where links do not work."""
    if not source.is_file() or source.stat().st_size > ARTIFACT_BYTES:
        return
    if target.exists() and target.stat().st_size == source.stat().st_size:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
