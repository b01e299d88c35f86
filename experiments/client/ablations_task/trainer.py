"""The declarations in a trainer's module (`task` and `column`), and `RunContext`, the argument of the trainer."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence

from .changes import MISSING, change
from .errors import Preempted, UserError
from .values import SHOWN, Channel, plain, shown, text

LONGEST_NAME = 250  # maximum length of a metric's name in characters


@dataclasses.dataclass(frozen=True)
class Counts:
    """A metric that is a function of sums over examples.

    names: the fields of `context.examples` that are summed.
    value: the metric as a function of the sums. It maps an array of shape (…, len(names)) to an array of shape (…).
    length: the field in `names` that is the example's length in words; "" if there is none.
    """

    names: tuple[str, ...]
    value: Callable[[Any], Any]
    file: str = "examples.jsonl"
    length: str = ""


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of the table. Make one with `column`, which describes the fields."""

    key: str
    set: str
    metric: str
    header: str
    better: str
    digits: int
    paper: str
    about: str
    logarithmic: bool
    counts: Counts | None


def column(
    metric: str,
    header: str = "",
    *,
    set: str = "test",  # noqa: A002 - the term that tables and study files use
    better: str = "",
    digits: int = 2,
    key: str = "",
    about: str = "",
    logarithmic: bool = False,
    counts: Counts | None = None,
) -> Column:
    """Return a column of the table.

    metric, set: the metric and the evaluated set.
    header: the column's heading; "metric (set)" if unset.
    better: "lower" or "higher". If unset, it is inferred from the metric's name (loss, accuracy …). If the name does
        not decide it, no value of the column is printed in bold, and the program does not check claims about it.
    digits: the number of decimals.
    key: the column's name in JSON, in CSV and in tables of published numbers; "metric_set" if unset.
    about: a sentence for the notes of the table.
    logarithmic: whether changes are differences of natural logarithms, as for perplexity.
    counts: the description of how sums over the fields of `context.examples` give the metric. With `counts`,
        differences between rows are also tested across examples.

    Raises UserError if `better` is not one of these words, or if the metric, set, header or key is not a short line of
    printable text.
    """
    for name in (metric, header, set, key):
        if not name.isprintable() or len(name) > LONGEST_NAME or not metric:
            raise UserError(f"column: {name[:60]!r} is not a line of 1 to {LONGEST_NAME} printable characters.")
    if better not in ("higher", "lower", ""):
        raise UserError(f'The column {metric}: better is "higher" or "lower", not {better!r}.')
    key = key or f"{metric}_{set}"
    header = header or f"{metric} ({set})"
    return Column(key, set, metric, header, better, digits, key, about, logarithmic, counts)


@dataclasses.dataclass(frozen=True)
class Trainer:
    """A trainer function with the arguments of its `task` decorator. Calling the object calls the function."""

    run: Callable[[Any, RunContext], Mapping[str, Any]]
    settings_type: Any
    columns: Sequence[Column]
    steps: str
    continues: bool
    reads: Callable[[Any], Iterable[Path | str]] | None
    num_params: Callable[[Any], int] | None
    cost: Callable[[Any], float] | None

    def __call__(self, settings: Any, context: RunContext) -> Mapping[str, Any]:
        return self.run(settings, context)


def task(
    settings_type: type,
    *,
    columns: Sequence[Column] = (),
    steps: str = "",
    continues: bool = False,
    reads: Callable[[Any], Iterable[Path | str]] | None = None,
    num_params: Callable[[Any], int] | None = None,
    cost: Callable[[Any], float] | None = None,
) -> Callable[[Callable[[Any, RunContext], Mapping[str, Any]]], Trainer]:
    """Return a decorator that makes a task of a function `run(settings, context)`.

    settings_type: a dataclass or a pydantic model with a default for every field.
    columns: columns of the table. The study may declare them instead ([[metric]]).
    steps: name of the setting with the number of training steps.
    continues: whether a run with more steps continues from the newest checkpoint of an unfinished run with fewer
        steps. Set it only if nothing else depends on the number of steps. A learning rate that decays until the last
        step depends on it.
    reads: function from settings to the data files that the trainer reads. If the content of a file changes, the row
        needs a new run.
    num_params: function from settings to the number of parameters, which `ablations plan` prints.
    cost: function from settings to the number of floating-point operations, with which `ablations plan` predicts times.
    """
    return lambda run: Trainer(run, settings_type, tuple(columns), steps, continues, reads, num_params, cost)


LAST_STEP = (1 << 63) - 1  # the largest integer that the program stores


@dataclasses.dataclass
class RunContext:
    """One run of a trainer: its seed, its device, its folder, and functions for logs, checkpoints and outputs.

    device: "cpu" or "cuda". With "cuda", only the GPU that is leased to the run is visible.
    folder: a folder for weights, figures and other files, which is stored with the results.
    resume: the newest complete checkpoint of this run, or None if there is none.

    A trainer that saves checkpoints can be killed at any time and continues from the last checkpoint:

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
    device: str
    threads: int
    folder: Path
    resume: Path | None
    _channel: Channel
    _changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # network change → its value in the row
    _facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    _ablated: bool = False  # whether `ablate` was called

    def ablate(self, model: Any, batches: Iterable[Any] = ()) -> Any:
        """Apply the network changes of the row, such as `modules`, to a network in place. Return the network.

        Call this method after the network is built and before its optimizer is built. If no extra that changes networks
        is installed, the method prints a message and changes nothing.

        model: a torch.nn.Module.
        batches: inputs of the network in training. Some changes need them.

        Raises UserError if a change does not fit the network.
        """
        if not self._changes:
            print(MISSING, file=sys.stderr, flush=True)
        self._ablated = True
        change(self, model, batches, self._changes)
        if parameters := getattr(model, "parameters", None):
            self._facts.setdefault("num_params", sum(int(one.numel()) for one in parameters()))
        return model

    def log(self, /, step: int, **metrics: float) -> None:
        """Record a point of the training curve. MLflow and the HTML page show the curve."""
        values = {name: _number(name, value) for name, value in metrics.items()}
        self._channel.say({"event": "metrics", "step": _step("log", step), "metrics": values})

    def progress(self, what: str, done: float, total: float) -> None:
        """Report the progress of work that has no steps: `done` of `total`."""
        fields = {"what": str(what), "done": _number("done", done), "total": _number("total", total)}
        self._channel.say({"event": "progress", **fields})

    def should_stop(self) -> bool:
        """Return whether a stop was requested. If so, save a checkpoint; the run ends when it is saved."""
        return self._channel.stop_requested()

    @contextlib.contextmanager
    def checkpoint(self, step: int) -> Iterator[Path]:
        """Return a context whose value is a new folder for the state of the training.

        The checkpoint is complete when the block ends. If the process is killed inside the block, the previous
        checkpoint remains. If a stop was requested, Preempted is raised after the block, which ends the run.
        """
        step = _step("checkpoint", step)
        folder = self._channel.ask({"checkpoint": step})["folder"]
        try:
            yield Path(folder)
        except BaseException:
            self._channel.ask({"abandon": step})
            raise
        # Also check `should_stop`, because a signal may have reached only this process.
        if self._channel.ask({"keep": step})["ending"] or self.should_stop():
            raise Preempted(step)

    def examples(self, set_: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Record outputs for the examples of a set. `ablations report --examples` prints them.

        set_: the name of the set.
        rows: one mapping per example, in the same order in every run. An entry that has the name of a metric is the
            example's contribution to this metric, such as 1 or 0 for accuracy. Tests of the difference between two
            rows of the table pair these contributions.
        """
        home, name = self.folder / "examples", f"{_set_name(set_)}.jsonl"
        home.mkdir(exist_ok=True)
        lines = [json.dumps(plain(row, text), ensure_ascii=False) for row in rows]
        aside = home / f".{name}"
        aside.write_bytes("".join(f"{line}\n" for line in lines).encode())
        aside.replace(home / name)

    def facts(self, /, **facts: Any) -> None:
        """Record facts about the run. The table prints the fact `num_params`."""
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
