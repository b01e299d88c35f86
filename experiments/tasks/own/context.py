"""The argument of a user's trainer: seed, device, log, a folder for files, checkpoints, requests to stop."""

import contextlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.errors import Damaged, Preempted, UserError
from experiments.events.kinds import LAST_STEP
from experiments.store.durable import discard, fsync_tree, remove_folder, whole_folder, write_bytes
from experiments.store.sealed import check_file, describe_file, read_json, write_json
from experiments.tasks.base import Context

FINAL, EXAMPLES, CHECKPOINTS = "final", "examples", "checkpoints"
KEPT = 2  # checkpoints


@dataclass
class RunContext:
    """One run of a user's trainer.

    A trainer that saves its state at times can be killed and continues from there:

        start = 0
        if context.resume:
            start = load(context.resume / "state.pt")
        for step in range(start, settings.steps):
            …
            context.log(step + 1, loss=loss)
            if (step + 1) % 100 == 0 or context.should_stop():
                with context.checkpoint(step + 1) as folder:
                    save(folder / "state.pt")
    """

    seed: int
    device: str  # "cpu" or "cuda": only the run's leased GPU is visible
    threads: int
    folder: Path  # stored with the results: for weights, pictures
    resume: Path | None  # the newest complete checkpoint of this run, None at the first start
    _context: Context
    _facts: dict[str, Any] = field(default_factory=dict)

    def log(self, /, step: int, **metrics: float) -> None:
        """Record a point of the training curve; MLflow shows it, and a pruner reads `<set>_<metric>`."""
        values = {name: _number(name, value) for name, value in metrics.items()}
        self._context.emit("metrics", step=_step("log", step), metrics=values)

    def progress(self, what: str, done: float, total: float) -> None:
        """Report progress of work without steps."""
        self._context.emit("progress", what=str(what), done=_number("done", done), total=_number("total", total))

    def should_stop(self) -> bool:
        """Whether the run shall end: save a checkpoint, which then ends it."""
        return self._context.should_stop()

    @contextlib.contextmanager
    def checkpoint(self, step: int) -> Iterator[Path]:
        """A new folder for the state. Complete once the block ends; a kill inside the block leaves the former one.

        Ends the run after the block (raises Preempted) if a stop was requested.
        """
        step = _step("checkpoint", step)
        home = self._context.folder / CHECKPOINTS
        path = home / f"step-{step:08d}"
        with whole_folder(path, replace=True) as aside:
            yield aside
            write_json(_description(path), {"step": step, "files": _described(aside)})
        self._context.emit("checkpoint", step=step, path=f"{CHECKPOINTS}/{path.name}")
        for old in checkpoints(self._context.folder)[:-KEPT]:
            discard(old)
            _description(old).unlink(missing_ok=True)
        if self.should_stop():
            raise Preempted(step)

    def examples(self, set_: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Record outputs for single examples of a set, in a fixed order; `ablations cases` prints them side by side.

        An entry with the name of a metric is the example's share in it (1 or 0 for accuracy); tests of differences
        between two rows pair these.
        """
        home = self.folder / EXAMPLES
        home.mkdir(exist_ok=True)
        lines = [json.dumps(_plain(row), ensure_ascii=False) for row in rows]
        write_bytes(home / f"{_set_name(set_)}.jsonl", "".join(f"{line}\n" for line in lines).encode())

    def facts(self, /, **facts: Any) -> None:
        """Record facts with the run; the table prints `num_params`."""
        self._facts |= _plain(facts)


def open_context(context: Context, seed: int) -> RunContext:
    """The user's part of a child's context; opens the slot's device."""
    final = context.folder / FINAL
    final.mkdir(exist_ok=True)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(context.device.threads)
    if context.device.kind == "cuda" and context.device.memory_gb is not None:
        from experiments.device import Device

        Device.open(context.device)  # caps the memory, where a GPU is shared
    newest = _newest(context)
    if newest is not None:
        step, path = int(newest.name.removeprefix("step-")), "/".join(newest.parts[-3:])
        context.emit("resumed", step=step, path=path, run=newest.parents[3].name)
    return RunContext(seed, context.device.kind, context.device.threads, final, newest, context)


def close_context(own: RunContext, context: Context) -> dict[str, Any]:
    """Remove the checkpoints, which are no longer needed, and return the facts."""
    remove_folder(context.folder / CHECKPOINTS)
    fsync_tree(own.folder)
    facts = {"device_kind": own.device, "threads": own.threads, "device": _device_name(own), **own._facts}
    return {**facts, "example_files": _described(own.folder / EXAMPLES)}


def _newest(context: Context) -> Path | None:
    """The newest checkpoint with unchanged files; others are reported and skipped."""
    found = [path for folder in (context.folder, *context.earlier) for path in checkpoints(folder)]
    for path in sorted(found, key=lambda path: path.name, reverse=True):
        try:
            described = read_json(_description(path))  # None: of an earlier version
            for name, written in described["files"].items() if described else ():
                check_file(path / name, written)
        except Damaged as damage:
            context.emit("checkpoint_skipped", path="/".join(path.parts[-3:]), reason=str(damage))
        else:
            return path
    return None


def _description(path: Path) -> Path:
    """Record the files of a checkpoint with their hashes, beside its folder, which belongs to the user."""
    return path.with_name(f".{path.name}.json")


def _described(folder: Path) -> dict[str, Any]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): describe_file(path) for path in files}


def checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints of an attempt, oldest first."""
    return sorted((folder / CHECKPOINTS).glob("step-*"))


def keep_metrics(folder: Path, metrics: Mapping[str, Mapping[str, float]]) -> None:
    write_json(folder / "metrics.json", metrics)


def _device_name(own: RunContext) -> str:
    torch = sys.modules.get("torch")
    if own.device == "cuda" and torch is not None:
        return str(torch.cuda.get_device_name(0))
    name = str(torch.cpu.get_capabilities().get("cpu_name") or "") if torch is not None else ""
    return f"{name or 'processor'} ({own.threads} thread{'s' if own.threads > 1 else ''})"


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"log: {name} = {str(value)[:100]!r} is not a number.") from None


def _step(what: str, value: Any) -> int:
    try:
        step = int(value)
    except (TypeError, ValueError, OverflowError):
        step = -1
    if not 0 <= step <= LAST_STEP:
        raise UserError(f"{what}: the step {str(value)[:100]!r} is no integer from 0 to {LAST_STEP:,}.")
    return step


def _set_name(name: str) -> str:
    if not name or not all(c.isalnum() or c in "._-" for c in name) or name.startswith("."):
        raise UserError(f"A set is named by letters, digits, '.', '_' and '-': {name!r} is not.")
    return name


def _plain(value: Any) -> Any:
    """Convert a trainer's values to JSON types: scalars of numpy and torch, tuples, paths."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | bool | int | float):
        return value
    return _plain(value.item()) if hasattr(value, "item") else str(value)
