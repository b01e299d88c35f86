"""A user's own trainer as a task: any callable `run(settings, context) → metrics`. Imports no torch.

    @dataclass
    class Settings:
        learning_rate: float = 0.1

    @task(Settings, columns=[column("accuracy", "Accuracy", better="higher", digits=1)])
    def TASK(settings, context):
        …
        return {"accuracy": 93.2}

`run` trains and scores: it returns {metric: number}, or {set: {metric: number}} if the columns name several sets. All
numbers are stored with the run and evaluations read them there, so a study may print another one later without training
again. See docs/own-task.md.
"""

import contextlib
import hashlib
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.config import SettingRoles, TaskConfig, total_steps
from experiments.errors import UserError
from experiments.store.results import FILE, TrainingResult
from experiments.store.sealed import check_file, read_json
from experiments.tasks.base import Context, EvaluationSpec, Progress, Task
from experiments.tasks.columns import EXAMPLE_FILE, Column, Counts
from experiments.tasks.own.context import EXAMPLES, FINAL, RunContext, close_context, keep_metrics, open_context
from experiments.tasks.own.returned import by_set, of_set
from experiments.tasks.own.settings import config_type_of, restore

Run = Callable[[Any, RunContext], Mapping[str, Any]]


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
    tested between examples. Raises UserError for a `better` other than "higher" and "lower".
    """
    if better not in ("higher", "lower"):
        raise UserError(f'The column {metric}: better is "higher" or "lower", not {better!r}.')
    key = key or f"{metric}_{set}"
    header = header or f"{metric} ({set})"
    return Column(
        key, set, metric, header, better, digits, paper=key, about=about, logarithmic=logarithmic, counts=counts
    )


def task(
    settings_type: type,
    *,
    columns: Sequence[Column] = (),
    steps: str = "",
    continues: bool = False,
    reads: Callable[[Any], Iterable[Path | str]] | None = None,
    num_params: Callable[[Any], int] | None = None,
    cost: Callable[[Any], float] | None = None,
) -> Callable[[Run], "OwnTask"]:
    """Make a task of `run(settings, context)`.

    settings_type: a dataclass or a pydantic model with a default for every field. columns: may be left to the study
    ([[metric]]). steps: the setting with the number of training steps; with `continues` a run with more steps continues
    from the checkpoints of a shorter one (only if nothing else depends on the number, such as a decay that ends with
    it). reads: the data files of the settings; other content is another run. num_params, cost (floating-point
    operations): for `plan`.
    """
    roles = SettingRoles(steps=steps, not_in_lineage=(steps,) if steps and continues else ())
    config_type = config_type_of(settings_type, roles)
    return lambda run: OwnTask(run, config_type, columns, reads, num_params, cost)


class OwnTask(Task):
    prepare_reads = ()

    def __init__(
        self,
        run: Run,
        config_type: type[TaskConfig],
        columns: Sequence[Column] = (),
        reads: Callable[[Any], Iterable[Path | str]] | None = None,
        num_params: Callable[[Any], int] | None = None,
        cost: Callable[[Any], float] | None = None,
    ) -> None:
        self.name = f"{run.__module__}:{getattr(run, '__qualname__', 'run')}"
        self.config_type, self.columns = config_type, tuple(columns)
        self._run, self._reads, self._num_params, self._cost = run, reads, num_params, cost
        self._home = Path(getattr(sys.modules.get(run.__module__), "__file__", None) or ".").absolute().parent

    def inputs(self, config: Any, store: Path) -> dict[str, str]:
        """Digests of the files of `reads`, by file name; relative paths start at the module's folder."""
        return {name: _digest(path) for name, path in self._files(config).items()}

    def _files(self, config: Any) -> dict[str, Path]:
        paths = [self._home / path for path in self._reads(restore(config))] if self._reads else []
        return {f"{number}-{path.name}": path for number, path in enumerate(paths)}

    def _refuse_changed(self, config: Any, context: Context, when: str) -> None:
        """Raises UserError if the files of `reads` or their content differ from those of the plan."""
        files = self._files(config)
        now = {name: _digest(path) for name, path in files.items()}
        changed = [name for name in {**context.inputs, **now} if now.get(name) != context.inputs.get(name)]
        if changed:
            raise UserError(
                f"{', '.join(str(files.get(name, name)) for name in changed)} changed {when}. The run's identity has "
                "the earlier content, so no result is kept. `ablations run` plans it with the present content."
            )

    def evaluations(self, config: Any, store: Path) -> list[EvaluationSpec]:
        """One evaluation per set of the columns; its settings are the metrics that the trainer must return."""
        if not self.columns:
            raise UserError(
                f"The task {self.name} has no columns: declare them in the study ([[metric]] with a name), or in "
                "task(columns=[…])."
            )
        promised: dict[str, set[str]] = {}
        for one in self.columns:
            promised.setdefault(one.set, set()).add(one.metric)
        several = len(promised) > 1  # then a number without a set is ambiguous
        return [
            EvaluationSpec(name, {"metrics": ", ".join(sorted(f"{name}.{m}" if several else m for m in metrics))}, {})
            for name, metrics in promised.items()
        ]

    def num_params(self, config: Any) -> int | None:
        return self._num_params(restore(config)) if self._num_params else None

    def cost(self, config: Any) -> float:
        return float(self._cost(restore(config))) if self._cost else 0.0

    def prepare(self, config: Any, store: Path, progress: Progress) -> dict[str, Any]:
        return {}

    def train(self, config: Any, context: Context) -> dict[str, Any]:
        self._refuse_changed(config, context, "after the run was planned")
        own = open_context(context, config.seed)
        with _naming_out_of_memory():
            returned = self._run(restore(config), own)
        self._refuse_changed(config, context, "while the run trained")
        keep_metrics(own.folder, by_set(returned))
        return {"step": total_steps(config), **close_context(own, context)}

    def evaluate(
        self, config: Any, evaluation: EvaluationSpec, weights: Path, folder: Path, context: Context
    ) -> dict[str, Any]:
        promised = [name for name in str(evaluation.settings["metrics"]).split(", ") if name]
        kept: Any = read_json(weights / FINAL / "metrics.json") or {}
        metrics = of_set(kept, evaluation.set, promised)
        outputs = weights / FINAL / EXAMPLES / f"{evaluation.set}.jsonl"
        facts = {}
        if outputs.is_file():
            trained = TrainingResult.load(weights / FILE) or TrainingResult()
            if written := trained.example_files.get(outputs.name):  # none recorded by earlier versions
                check_file(outputs, written)
            shutil.copyfile(outputs, folder / EXAMPLE_FILE)
            facts["examples"] = outputs.read_bytes().count(b"\n")
        return {"metrics": metrics, **facts}


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError as error:
        raise UserError(f"The trainer reads {path}, and it cannot be read: {error.strerror}.") from None


def _naming_out_of_memory() -> Any:
    """Only if torch is loaded, because importing it takes seconds."""
    if "torch" not in sys.modules:
        return contextlib.nullcontext()
    from experiments.device import naming_out_of_memory

    return naming_out_of_memory()
