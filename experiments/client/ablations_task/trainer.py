"""Declarations of a trainer's module, the task and its columns; and the function's argument, `RunContext`."""

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

LONGEST_NAME = 250  # characters of a metric's name, and its bytes in a record


@dataclasses.dataclass(frozen=True)
class Counts:
    """Fields of `context.examples`, and a metric as a function of their sums (… × len(names)) → (…)."""

    names: tuple[str, ...]
    value: Callable[[Any], Any]
    file: str = "examples.jsonl"
    length: str = ""  # which of `names` is the example's length in words; "": none


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of the table (see `column`)."""

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
    set: str = "test",  # noqa: A002 - the word of the table
    better: str = "",
    digits: int = 2,
    key: str = "",
    about: str = "",
    logarithmic: bool = False,
    counts: Counts | None = None,
) -> Column:
    """A column of the table. `key`: its name in JSON, CSV and among published numbers; metric_set if unset.

    better: "lower" or "higher"; if unset, what the metric's name says (loss, accuracy …), else it is unknown: then
    nothing of the column is bold, and no claim about it is judged. about: a sentence for the table's notes.
    logarithmic: changes are differences of natural logarithms, as for perplexity. counts: fields of
        `context.examples` whose sums give the metric; differences between rows are then tested between examples.

    Raises UserError for a `better` other than "higher" and "lower", and for a name or a head that is no line of
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
    """A decorated function. Calling it calls the function."""

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
    """Make a task of `run(settings, context)`.

    settings_type: a dataclass or a pydantic model with a default for every field. columns: may be left to the study
    ([[metric]]). steps: the setting with the number of training steps; with `continues` a run with more steps continues
    from the checkpoints of a shorter one (only if nothing else depends on the number, such as a decay that ends with
    it). reads: the data files of the settings; other content is another run. num_params, cost (floating-point
    operations): for `plan`.
    """
    return lambda run: Trainer(run, settings_type, tuple(columns), steps, continues, reads, num_params, cost)


# --- The argument of a trainer: seed, device, log, a folder for files, checkpoints, requests to stop


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
    _changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # values of changes of the network, by name
    _facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    _ablated: bool = False  # whether `ablate` was called

    def ablate(self, model: Any, batches: Iterable[Any] = ()) -> Any:
        """Change a network (a torch.nn.Module) in place as the row says, such as by `modules`, and return it.

        Call it once the network is built, before its optimizer is. batches: inputs of the network in training, which
        some changes need. Raises UserError if a change does not fit the network. Without an extra that changes
        networks, it prints what is missing.
        """
        if not self._changes:
            print(MISSING, file=sys.stderr, flush=True)
        self._ablated = True
        change(self, model, batches, self._changes)
        if parameters := getattr(model, "parameters", None):
            self._facts.setdefault("num_params", sum(int(one.numel()) for one in parameters()))
        return model

    def log(self, /, step: int, **metrics: float) -> None:
        """Record a point of the training curve; MLflow and the page show it."""
        values = {name: _number(name, value) for name, value in metrics.items()}
        self._channel.say({"event": "metrics", "step": _step("log", step), "metrics": values})

    def progress(self, what: str, done: float, total: float) -> None:
        """Report progress of work without steps."""
        fields = {"what": str(what), "done": _number("done", done), "total": _number("total", total)}
        self._channel.say({"event": "progress", **fields})

    def should_stop(self) -> bool:
        """Return whether the run shall end: save a checkpoint, which then ends it."""
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
        # a signal may have reached this process alone
        if self._channel.ask({"keep": step})["ending"] or self.should_stop():
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
