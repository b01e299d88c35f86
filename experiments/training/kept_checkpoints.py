"""Decide which checkpoints to keep during and after training, and which checkpoints an evaluation uses.

This module imports no torch, because planning uses it to find out whether a run can be evaluated.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.errors import Damaged, UserError
from experiments.store.checksummed import read_json
from experiments.store.durable import discard
from experiments.store.retention import AT, BEST, SPACED, Keep, spaced_steps

OPTIMIZER = "optimizer.safetensors"


def all_of(attempt: Path) -> list[Path]:
    """Return the checkpoints of an attempt, oldest first, without checking them."""
    return sorted(p for p in (attempt / "checkpoints").glob("step-*") if p.name[5:].isdigit())


def step_of(path: Path) -> int:
    """Return the step of a checkpoint, from the name of its folder."""
    return int(path.name[5:])


def meta_of(path: Path) -> dict[str, Any]:
    """Return the content of a checkpoint's meta.json. Raises Damaged if it is missing or invalid."""
    meta = read_json(path / "meta.json")
    if meta is None or not isinstance(meta.get("files"), dict):
        raise Damaged(f"{path / 'meta.json'} is missing or names no files")
    if path.name.startswith("step-") and meta.get("step") != step_of(path):
        raise Damaged(f"{path / 'meta.json'} belongs to step {meta.get('step')}, not to the folder's")
    return meta


def same_training(path: Path, meta: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint belongs to the same training as `meta`."""
    try:
        other = meta_of(path)
    except Damaged:
        return False
    return all(other.get(key) == meta.get(key) for key in ("format", "lineage", "code"))


def prune(folder: Path, keeps: Iterable[Keep]) -> None:
    """Remove all checkpoints except the newest and those that `keeps` requires.

    When a run is stopped on request, it writes an additional checkpoint. An average must not include such checkpoints.
    """
    paths = all_of(folder)
    kept = set(paths[-1:])
    for keep in keeps:
        if keep.what == SPACED:
            kept |= set([p for p in paths if step_of(p) % keep.every == 0][-keep.kept :])
            continue
        if keep.what == AT:
            kept |= {p for p in paths if step_of(p) == keep.every}
            continue
        try:
            kept |= {top} if (top := best(folder, keep.every)) else set()
        except Damaged:
            return  # the best checkpoint is unknown, so keep all checkpoints
    for path in paths:
        if path not in kept:
            discard(path)


def best(folder: Path, every: int = 0) -> Path | None:
    """Return the checkpoint with the lowest dev perplexity among those at multiples of `every`; None if there is none.

    If several checkpoints have the lowest perplexity, return the earliest. If `every` is 0, compare all measured
    checkpoints. Raises Damaged if a checkpoint is unreadable or the best one is missing, because the result would
    otherwise be another checkpoint.
    """
    metas = {path: meta_of(path) for path in all_of(folder)}
    measured = [p for p, meta in metas.items() if "dev_perplexity" in meta and not (every and step_of(p) % every)]
    lowest = min(measured, key=lambda path: (metas[path]["dev_perplexity"], step_of(path)), default=None)
    known: dict[str, int] = list(metas.values())[-1]["best_steps"] if metas else {}
    expected = {known[str(every)]} if str(every) in known else set() if every else set(known.values())
    if expected and (lowest is None or step_of(lowest) not in expected):
        lost = ", ".join(map(str, sorted(expected)))
        raise Damaged(f"{folder} lacks its best checkpoint, of step {lost}. Train the run again.")
    return lowest


def gap(resumed: Path, meta: Mapping[str, Any], attempts: Sequence[Path], keeps: Sequence[Keep], last_step: int) -> str:
    """Return which checkpoint or measurement of `keeps` is missing if a training resumes at `resumed`.

    Return "" if nothing is missing. The earlier training may have kept fewer checkpoints than are needed now.
    """
    there = {
        step_of(path)
        for path in (path for attempt in attempts for path in all_of(attempt))
        if step_of(path) <= step_of(resumed) and (path == resumed or same_training(path, meta))
    }
    measured = {keep[1] for keep in meta["keeps"] if keep[0] == BEST}
    for keep in keeps:
        if lost := [step for step in keep.steps(last_step) if step <= step_of(resumed) and step not in there]:
            what = "a branch" if keep.what == AT else "an average"
            return f"the checkpoint of step {lost[0]}, needed for {what}, was not kept"
        if keep.what == BEST and keep.needed and step_of(resumed) >= keep.every and keep.every not in measured:
            return f"the perplexity on dev was not measured every {keep.every} steps before it, which is needed now"
    return ""


def last(folder: Path, count: int, every: int) -> list[Path]:
    """Return the newest `count` checkpoints of a finished training, oldest first.

    Only checkpoints at multiples of `every` and at the last step are considered. Raises UserError if there are fewer
    than `count`, or if one of the newest is missing. An older checkpoint never replaces a missing one.
    """
    there = {step_of(path): path for path in all_of(folder)}
    wanted = spaced_steps(max(there, default=0), every, count)
    paths = [there[step] for step in wanted if step in there]
    if len(paths) < count:
        lacking = ", ".join(str(step) for step in wanted if step not in there)
        raise UserError(
            f"{folder} has {len(paths)} of the checkpoints for the average of {count}"
            f"{f' (step {lacking} is missing)' if lacking else ''}: set training.keep_checkpoints to {count} or more, "
            "and training.checkpoint_steps so that there are as many, and train the run again."
        )
    return paths


def spacing_of(settings: Mapping[str, Any]) -> int:
    """Return the steps between the checkpoints of an average, or between the measurements for the best checkpoint.

    settings: the settings of an evaluation.
    """
    best = settings["checkpoint"] == "best"
    return int(settings.get("eval_steps" if best else "checkpoint_steps", 0))


def serves(folder: Path, choice: str, every: int) -> bool:
    """Return whether the folder of a finished training has the checkpoints for a choice: last, best or average:K."""
    kind, _, number = choice.partition(":")
    if kind == "last":
        return True
    try:
        if kind == "average":
            return bool(last(folder, int(number), every))
        if best(folder, every) is None:
            return False
        asked = meta_of(all_of(folder)[-1])["keeps"]
    except UserError:
        return False
    return [BEST, every] in [list(keep[:2]) for keep in asked]
