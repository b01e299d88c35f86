"""Which checkpoints of a training are kept while it runs and after its end, and which of them an evaluation takes."""

import shutil
from pathlib import Path

from experiments.errors import UserError
from experiments.store import write_json
from experiments.training.checkpoint import OPTIMIZER, Checkpoint, all_of, meta_of, step_of


def prune(folder: Path, keep: int, every: int) -> None:
    """Remove all but the newest checkpoint, the newest `keep` at multiples of `every`, and the best.

    Others come from a stop on request; an average must not depend on whether there was one.
    """
    paths, top = all_of(folder), best(folder)
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
        if meta.get("files", {}).pop(OPTIMIZER, None) is not None:
            write_json(path / "meta.json", meta)
        (path / OPTIMIZER).unlink(missing_ok=True)


def best(folder: Path) -> Checkpoint | None:
    """The checkpoint with the lowest dev perplexity of those at which it was measured; the first of equals."""
    found = [Checkpoint(path, meta) for path in all_of(folder) if "dev_perplexity" in (meta := meta_of(path))]
    return min(found, key=lambda c: (c.meta["dev_perplexity"], c.step), default=None)


def last(folder: Path, count: int, every: int) -> list[Path]:
    """The newest `count` checkpoints of a finished training, oldest first: multiples of `every`, and the last step.

    Raises UserError if there are fewer.
    """
    paths = all_of(folder)
    found = [p for p in paths if step_of(p) % every == 0 or p == paths[-1]][-count:]
    if len(found) < count:
        raise UserError(
            f"{folder} holds {len(found)} checkpoints, and the average of {count} was asked for: set "
            f"training.keep_checkpoints to {count} or more, and training.checkpoint_steps so that there are as many."
        )
    return found
