"""The argument of a trainer: seed, device, log, a folder for files, checkpoints, requests to stop."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Iterable, Iterator, Mapping

from .errors import Preempted, UserError
from .plain import SHOWN, plain, shown, text

if TYPE_CHECKING:
    from .channel import Channel

LAST_STEP = (1 << 63) - 1  # the largest integer that the harness stores


@dataclasses.dataclass
class RunContext:
    """One run of a trainer.

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
    _channel: Channel
    _facts: dict[str, Any] = dataclasses.field(default_factory=dict)

    def log(self, /, step: int, **metrics: float) -> None:
        """Record a point of the training curve; MLflow shows it, and a pruner reads `<set>_<metric>`."""
        values = {name: _number(name, value) for name, value in metrics.items()}
        self._channel.say({"event": "metrics", "step": _step("log", step), "metrics": values})

    def progress(self, what: str, done: float, total: float) -> None:
        """Report progress of work without steps."""
        fields = {"what": str(what), "done": _number("done", done), "total": _number("total", total)}
        self._channel.say({"event": "progress", **fields})

    def should_stop(self) -> bool:
        """Whether the run shall end: save a checkpoint, which then ends it."""
        return self._channel.stop_requested()

    @contextlib.contextmanager
    def checkpoint(self, step: int) -> Iterator[Path]:
        """A new folder for the state. Complete once the block ends; a kill inside the block leaves the former one.

        Ends the run after the block (raises Preempted) if a stop was requested.
        """
        step = _step("checkpoint", step)
        folder = self._channel.ask({"checkpoint": step})["folder"]
        try:
            yield Path(folder)
        except BaseException:
            self._channel.ask({"abandon": step})
            raise
        if (
            self._channel.ask({"keep": step})["ending"] or self.should_stop()
        ):  # a signal may have reached this process alone
            raise Preempted(step)

    def examples(self, set_: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Record outputs for single examples of a set, in a fixed order; `ablations report --examples` prints them.

        An entry with the name of a metric is the example's share in it (1 or 0 for accuracy); tests of differences
        between two rows pair these.
        """
        home, name = self.folder / "examples", f"{_set_name(set_)}.jsonl"
        home.mkdir(exist_ok=True)
        lines = [json.dumps(plain(row, text), ensure_ascii=False) for row in rows]
        aside = home / f".{name}"
        aside.write_bytes("".join(f"{line}\n" for line in lines).encode())
        aside.replace(home / name)

    def facts(self, /, **facts: Any) -> None:
        """Record facts with the run; the table prints `num_params`."""
        self._facts.update(plain(facts, text))


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"log: {name[:SHOWN]} = {shown(value)} is not a number.") from None


def _step(what: str, value: Any) -> int:
    try:
        step = int(value)
    except (TypeError, ValueError, OverflowError):
        step = -1
    if not 0 <= step <= LAST_STEP:
        raise UserError(f"{what}: the step {shown(value)} is no integer from 0 to {LAST_STEP:,}.")
    return step


def _set_name(name: str) -> str:
    if not name or not all(c.isalnum() or c in "._-" for c in name) or name.startswith("."):
        raise UserError(f"A set is named by letters, digits, '.', '_' and '-': {name!r} is not.")
    return name
