"""What a trainer's module declares: columns, and a function as a task."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterable, Mapping, Sequence

from .errors import UserError

if TYPE_CHECKING:
    from .context import RunContext


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
    better: str = "higher",
    digits: int = 2,
    key: str = "",
    about: str = "",
    logarithmic: bool = False,
    counts: Counts | None = None,
) -> Column:
    """A column of the table. `key`: its name in JSON, CSV and among published numbers; metric_set if unset.

    about: a sentence for the table's notes. logarithmic: changes are differences of natural logarithms, as for
    perplexity. counts: fields of `context.examples` whose sums give the metric; differences between rows are then
    tested between examples. Raises UserError for a `better` other than "higher" and "lower", and for a name or a head
    that is no line of printable text.
    """
    for text in (metric, header, set, key):
        if not text.isprintable() or len(text) > LONGEST_NAME or not metric:
            raise UserError(f"column: {text[:60]!r} is not a line of 1 to {LONGEST_NAME} printable characters.")
    if better not in ("higher", "lower"):
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
