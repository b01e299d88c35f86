"""Which checkpoints of a training are kept while it runs and after its end, and which of them an evaluation takes."""

import shutil
from pathlib import Path

from experiments.errors import Damaged, UserError
from experiments.store import write_json
from experiments.training.checkpoint import OPTIMIZER, Checkpoint, all_of, meta_of, step_of


def prune(folder: Path, keep: int, every: int) -> None:
    """Remove all but the newest checkpoint, the newest `keep` at multiples of `every`, and the best.

    Others come from a stop on request; an average must not depend on whether there was one.
    """
    paths = all_of(folder)
    try:
        top = best(folder)
    except Damaged:
        return  # which one is the best is unknown: all are kept
    kept = {*paths[-1:], *[p for p in paths if step_of(p) % every == 0][-keep:], *([top.path] if top else [])}
    for path in paths:
        if path not in kept:
            # renamed first: a folder that is half gone must not look like a checkpoint
            gone = path.rename(path.with_name(f".{path.name}.partial"))
            shutil.rmtree(gone, ignore_errors=True)


def drop_optimizers(folder: Path) -> None:
    """Leave weights alone in a finished training's checkpoints. Other attempts that link the same files keep theirs."""
    for path in all_of(folder):
        meta = meta_of(path)
        if meta["files"].pop(OPTIMIZER, None) is not None:
            write_json(path / "meta.json", meta)
        (path / OPTIMIZER).unlink(missing_ok=True)


def best(folder: Path) -> Checkpoint | None:
    """The checkpoint with the lowest dev perplexity of those at which it was measured; the first of equals.

    Raises Damaged if one cannot be read, or if the best is missing: another would pass for it.
    """
    all_ = [Checkpoint(path, meta_of(path)) for path in all_of(folder)]
    measured = [checkpoint for checkpoint in all_ if "dev_perplexity" in checkpoint.meta]
    found = min(measured, key=lambda c: (c.meta["dev_perplexity"], c.step), default=None)
    known = all_[-1].meta.get("best_step") if all_ else None
    if known is not None and (found is None or found.step != known):
        raise Damaged(f"{folder} lacks its best checkpoint, that of step {known}: train the run anew.")
    return found


def last(folder: Path, count: int, every: int) -> list[Path]:
    """The newest `count` checkpoints of a finished training, oldest first: multiples of `every`, and the last step.

    Raises UserError if there are fewer, or if one of them is missing: an older one must not pass for it.
    """
    there = {step_of(path): path for path in all_of(folder)}
    end = max(there, default=0)
    wanted = [*range(every, end, every), end][-count:]
    found = [there[step] for step in wanted if step in there]
    if len(found) < count:
        lacking = ", ".join(str(step) for step in wanted if step not in there)
        raise UserError(
            f"{folder} holds {len(found)} of the checkpoints of which the average of {count} is taken"
            f"{f' (step {lacking} is missing)' if lacking else ''}: set training.keep_checkpoints to {count} or more, "
            "and training.checkpoint_steps so that there are as many, and train the run anew."
        )
    return found
