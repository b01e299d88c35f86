"""Names and values of a run for tracking stores such as MLflow. This module does not import mlflow or torch.

All values are derived from the files of the run. Therefore, a database that was filled during the trainings equals a
rebuilt database.
"""

import contextlib
import math
import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from itertools import accumulate
from typing import Any

from experiments.errors import UserError
from experiments.events.accounting import amounts_of, attempt_costs
from experiments.events.history import History, Point
from experiments.identity import digest, without_runs
from experiments.records import Member
from experiments.store.layout import CONFIG, ROWS, Store, TableRow, config_of, folders_in, rows_of
from experiments.store.results import RESULT_FILE, EvaluationResult, TrainingResult
from experiments.store.tracked_run import TrackedRun

TAG_LENGTH = 4000  # characters; below MLflow's limit
RECORD = "record"  # tag of an imported run: digest of its records (see `content`)
PLACE = ("study", "profile", "corpus", "row", "group")  # names of the tags for the fields of a Member
NUM_PARAMS, TRAIN_WALL_S = "num_params", "train_wall_s"
COST = "cost_"  # prefix of metrics for the cost of a run or a table
_IDENTITY = re.compile(r"[0-9a-f]{16}")


def content(store: Store, run_id: str) -> str:
    """Return a digest of the configuration, rows, result and scores of a run.

    These records determine what MLflow shows once the run has ended.
    """
    home = store.run_folder(run_id)
    records = [home / CONFIG, home / ROWS, home / RESULT_FILE, *sorted(home.glob(f"evaluations/*/{RESULT_FILE}"))]
    return digest([sha256(path.read_bytes()).hexdigest() for path in records if path.is_file()])


def config(store: Store, run: TrackedRun) -> Mapping[str, Any]:
    """Return the configuration with which the run was first queued. Later evaluations do not change it."""
    return config_of(store, run.run_id, forgiving=True) or run.spec.config


def members(store: Store, run: TrackedRun, history: History) -> list[Member]:
    """Return the rows that contain the run. The first one, for which the run was queued, gives the run its name."""
    begun = [tuple(member) for member in history.begun.get("members", ())]
    return list(dict.fromkeys([*(row.member for row in rows_of(store, run.run_id)), *begun, *run.members]))


def tags(store: Store, run: TrackedRun, history: History) -> dict[str, str]:
    """Return the tags of a run: its tables, its code, its host. `row.<study>` is its first row in each study."""
    revision = history.started.get("revision") or {}
    of = members(store, run, history)
    found = {
        "run_id": run.run_id,
        "task": run.spec.task,
        "seed": str(run.spec.seed),
        "studies": ", ".join(dict.fromkeys(member[0] for member in of)),
        "commit": str(revision.get("commit") or "unknown"),
        "dirty": str(bool(revision.get("dirty"))).lower(),
        "code_digest": str(history.started.get("code_digest", "")),
        "host": str(history.started.get("host", "")),
    }
    if of:
        found |= dict(zip(PLACE, of[0], strict=True))
    found |= {f"row.{member[0]}": member[3] for member in reversed(of)}
    found |= {f"input.{name}": digest for name, digest in without_runs(run.spec.inputs).items()}
    if parent_run := run.spec.parent_run:
        found |= {"parent_run": parent_run.run_id, "parent_run_steps": str(parent_run.step)}
    if members_of := run.spec.members:  # an ensemble has no seed
        found |= {"seed": "", "ensemble": ", ".join(members_of)}
    if run.imported:
        found["imported"] = run.imported
    if run.error:
        found["error"] = run.error
    return {name: value[:TAG_LENGTH] for name, value in found.items()}


def final_points(store: Store, run: TrackedRun, history: History, row: TableRow | None = None) -> list[Point]:
    """Return the final values of a run: num_params, training time, costs and scores.

    A score on dev is named `bleu`, on another set `bleu.test_2016`. These plain names are used for the evaluations of
    the row for which the run was first queued. Other evaluations of a set (`--set evaluation.beam_size=10`) get the
    beginning of their eval_id: `bleu.dev.1f2e3d4c`. The point of a score has the time of its evaluation.

    row: if given, return only num_params, the training time, and the scores of this row, without other costs.
    """
    try:
        result = store.result(run.run_id) or TrainingResult()
    except UserError:
        result = TrainingResult()
    begun = history.first_t or run.imported_t
    train_s = result.wall_s if result.train_s is None else result.train_s  # old records lack train_s
    trained, step = history.trained_t or begun, history.last_step
    found: list[tuple[str, Any, float, int]] = [
        (NUM_PARAMS, (run.spec.num_params or result.num_params) if begun else None, begun, 0),
        (TRAIN_WALL_S, train_s, trained, step),
        (f"{COST}flops", None if row else result.flops, trained, step),
    ]
    own = row.evaluations if row else own_evaluations(store, run.run_id, history.evaluated_t)
    named = [
        (name, eval_id, made)
        for eval_id, made in evaluations(store, run.run_id)
        for name in [name for name, one in own.items() if one == eval_id] or ([] if row else [made.set or ""])
    ]
    for name, eval_id, made in named:
        suffix = "" if name == "dev" else f".{name}"
        suffix = suffix if own.get(name) == eval_id else f".{name}.{eval_id[:8]}"
        for metric, value in made.metrics.items():
            kept = f"{metric}{suffix}"
            kept = f"{kept}.{name}" if kept in (NUM_PARAMS, TRAIN_WALL_S) or kept.startswith(COST) else kept
            found.append((kept, value, history.evaluated_t.get(eval_id, trained), step))
    numbers = (point for point in found if isinstance(point[1], int | float) and not isinstance(point[1], bool))
    scores = [Point(name, float(value), t, step) for name, value, t, step in numbers]
    return scores if row else [*scores, *cost_points(store, run.run_id)]


def cost_points(store: Store, run_id: str) -> Iterator[Point]:
    """Yield the run's cumulative costs at the end of each attempt; the step is the attempt's number.

    The sums are those in the notes of a table. The last attempt is left out until its end is known.
    """
    attempts = attempt_costs(store, run_id)
    for one, sums in zip(attempts, accumulate(amounts_of([one]) for one in attempts), strict=True):
        if not one.seen and one is attempts[-1]:
            return
        if one.t is not None:  # None for attempts in the store from which the run was imported
            yield from (Point(f"{COST}{name}", value, one.t, one.attempt) for name, value in sums.known().items())


def own_evaluations(store: Store, run_id: str, evaluated_t: Mapping[str, float]) -> dict[str, str]:
    """Return a mapping from each set to the eval_id of the evaluation whose scores have plain names.

    It is the evaluation of the run's first row, or else the earliest evaluation of the set. evaluated_t: times of the
    evaluations (see History).
    """
    found = {name: eval_id for row in rows_of(store, run_id)[:1] for name, eval_id in row.evaluations.items()}
    made = dict(evaluations(store, run_id))
    places = {eval_id: place for place, eval_id in enumerate(evaluated_t)}  # decides between equal times
    for eval_id in sorted(made, key=lambda one: (evaluated_t.get(one, math.inf), places.get(one, 0), one)):
        found.setdefault(made[eval_id].set or "", eval_id)
    return found


def curve_name(name: str) -> str:
    """Return the name of a curve in MLflow. `train_perplexity` must differ from the final `perplexity` on dev."""
    named = name if name.startswith("dev_") else f"train_{name}"
    return f"{named}.curve" if named == TRAIN_WALL_S else named


def evaluations(store: Store, run_id: str) -> Iterator[tuple[str, EvaluationResult]]:
    """Yield (eval_id, record) of the run's evaluations. Damaged records are left out."""
    names = folders_in(store.run_folder(run_id) / "evaluations")
    for eval_id in filter(_IDENTITY.fullmatch, names):
        with contextlib.suppress(UserError):
            if (made := store.evaluation(run_id, eval_id)) is not None:
                yield eval_id, made
