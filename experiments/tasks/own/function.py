"""A user's function `run(settings, context) → metrics` as a task.

    from ablations_task import column, task

    @task(Settings, columns=[column("accuracy", "Accuracy", better="higher", digits=1)])
    def TASK(settings, context):
        …
        return {"accuracy": 93.2}

The function trains and scores. It returns {metric: number}, or {set: {metric: number}} if the columns have several
sets. All numbers are stored with the run. A study can therefore print another number later without training again. The
function runs in a separate process (trainer_process.py). See docs/own-task.md.

This module does not import torch.
"""

import base64
import contextlib
import hashlib
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from experiments.attempt_context import AttemptContext
from experiments.client import ablations_task
from experiments.config.network_change import changes_of
from experiments.config.task_config import SettingRoles, TaskConfig, total_steps
from experiments.dotted import unstorable
from experiments.errors import Damaged, TrainerFailed, UserError, explain_os_errors
from experiments.identity import code_change_in, digest, eval_identity, without_runs
from experiments.records import CONTEXT_GB
from experiments.run_spec import EvaluationSpec
from experiments.store.checksummed import check_file, read_json
from experiments.store.durable import open_regular
from experiments.store.imports import local_files
from experiments.store.layout import Store
from experiments.store.results import RESULT_FILE, EvaluationResult, TrainingResult
from experiments.store.trees import keep, planned
from experiments.tasks.base import Progress, Task
from experiments.tasks.columns import EXAMPLE_FILE, Column, Counts
from experiments.tasks.direction import direction
from experiments.tasks.own.code_files import (
    PlannedTree,
    WorkingCopy,
    archived_digests,
    as_used,
    changed_files,
    from_home,
    is_linked_data,
    matching,
)
from experiments.tasks.own.context import (
    EXAMPLES,
    FINAL,
    close_folder,
    keep_metrics,
    not_returned,
    open_folder,
    recorded,
)
from experiments.tasks.own.kept import first_sentences, outdated, patterns_of, read_kept
from experiments.tasks.own.run_code import COPY, NO_TREE, check_watched, code_top, imported, imported_files, own_code
from experiments.tasks.own.settings_type import config_type_of, settings_of
from experiments.tasks.own.trainer_process import TrainerProcess

log = logging.getLogger("experiments.child.run")
N = TypeVar("N", int, float)


class OwnTask(Task):
    """Base class of the tasks of users' trainers. A trainer trains and scores in one program.

    interpreter: the program that runs the user's code, as the study names it; "" if the study names none.
    named: the files of the user's code that the study names. Other files are found from their imports.
    """

    prepare_reads: tuple[str, ...] | None = ()
    interpreter = ""
    named: tuple[Path, ...] = ()
    reuses_parts = False  # an evaluation only reads stored numbers; the study's patterns decide which numbers it reads

    def __init__(self, name: str, config_type: type[TaskConfig], columns: Sequence[Column] = ()) -> None:
        self.name, self.config_type, self.columns = name, config_type, tuple(columns)
        self._trees: dict[str, PlannedTree] = {}

    # --- The files of the user's code

    def code_paths(self) -> tuple[Path, ...]:
        """Return the files that the study names and the files that they import, found by reading their text."""
        home = self.folder or Path.cwd()
        return tuple(local_files(self.named, [home, code_top(home)]))

    def code_now(self, store: Path) -> dict[str, str]:
        """Return the digests of the files that a run would use now, as far as they are known before the run.

        Linked data is included. If the run has a tree (TrainerSpec.tree), the result contains the digest of the tree
        instead of the digests of the code files.
        """
        home, tree = self.folder or Path.cwd(), self.trainer.tree
        copy = WorkingCopy(code_top(home), store)
        linked = copy.linked(home, self.trainer.links)
        if tree:
            return {"tree": tree, **linked}
        globs = matching(home, self.trainer.globs, code_top(home))
        return {**linked, **copy.digests([*self.code_paths(), *globs])}

    def training_code(self, store: Path) -> str:
        home = self.folder or Path.cwd()
        place = WorkingCopy(code_top(home), store).name(home)
        now = self.code_now(store)
        return digest({name if name == "tree" else from_home(name, place): its for name, its in now.items()})

    def code_facts(
        self, config: Any, context: AttemptContext, before: Mapping[str, str], place: Path | None = None
    ) -> dict[str, Any]:
        """Return the digests of the files that a run has used, for its record.

        The files include the modules that the run's Python processes imported. A file that was edited during the run
        counts as changed, because it is unknown which version was used.

        before: the result of `code_now` when the run began.
        place: for a run with a tree, the folder with the copy of the tree.
        """
        home, tree = self.folder or Path.cwd(), self.trainer.tree
        top, seen = code_top(home), imported_files(context.folder)
        copy = WorkingCopy(top, context.store)
        links = [os.path.relpath(home.resolve() / name, top) for name in self.trainer.links]
        linked = [name for name in before if is_linked_data(name, links)]
        named = {copy.name(path) for path in self.named}
        if tree and place is not None:
            own = os.path.realpath(place)
            names = named | {os.path.relpath(path, own) for path in seen or () if path.is_relative_to(own)}
            globs = [f"{copy.name(home)}/{one}" for one in self.trainer.globs]
            used = archived_digests(context.store, tree, names, globs)
            data = as_used({name: before[name] for name in linked if name not in used}, copy)
            files = {"code_files": {**used, **data}, **self._base_files(config, context, used, data)}
            return {"code_home": copy.name(home), **files}
        static = {copy.name(path) for path in self.code_paths()}
        names = named | {*linked} | {copy.name(path) for path in matching(home, self.trainer.globs, top)}
        names |= static if seen is None else {copy.name(path) for path in seen}
        names |= {name for name in static if name.startswith("../")}  # the watcher does not record files outside `top`
        files = as_used({name: before.get(name, "") for name in sorted(names)}, copy, context.folder)
        return {"code_home": copy.name(home), "code_files": files}

    def _base_files(
        self, config: Any, context: AttemptContext, used: Mapping[str, str], data: Mapping[str, str]
    ) -> dict[str, Any]:
        """Return the digests of the same files in the base tree, for the record of a row that changes code."""
        if not code_change_in(context.spec.inputs):
            return {}
        base = self.trainer.base
        return {"base_files": {**archived_digests(context.store, base, used), **data} if base else {}}

    def changed_code(self, result: TrainingResult, store: Path) -> list[str]:
        """Return the recorded files of a run that have changed or are missing, or another reason why code differs."""
        if result.code_files is None:
            return ["its files are not recorded"]
        home, tree = self.folder or Path.cwd(), self.trainer.tree
        if tree.startswith(NO_TREE):
            return ["the row's change, which does not apply to the present code"]
        top = code_top(home)
        copy = WorkingCopy(top, store)
        folders = (result.code_home, copy.name(home))
        if not tree:
            return changed_files(result.code_files, copy, *folders)
        if tree not in planned:
            return ["the code of its row cannot be made now"]
        if tree not in self._trees:
            links = [os.path.relpath(home.resolve() / name, top) for name in self.trainer.links]
            self._trees[tree] = PlannedTree(tree, copy, links)
        return changed_files(result.code_files, self._trees[tree], *folders)

    def inputs(self, config: Any, store: Path) -> dict[str, str]:
        return {}

    def _files(self, config: Any) -> dict[str, Path]:
        """Return the data files that the trainer declares, by the names under which `inputs` returns their digests."""
        return {}

    def _refuse_changed(self, config: Any, context: AttemptContext, when: str) -> None:
        """Raise UserError if the content of the declared data files differs from their content at planning."""
        now, planned = self.inputs(config, context.store), without_runs(context.spec.inputs)
        paths = self._files(config)
        names = [name for name in {**planned, **now} if now.get(name) != planned.get(name)]
        changed = [str(paths.get(name, name)) for name in names]
        if changed:
            raise UserError(
                f"{', '.join(changed)} changed {when}. The result was not kept, because the run's identity has the "
                "earlier content. Plan it again with `ablations run`."
            )

    def evaluations(self, config: Any, store: Path) -> list[EvaluationSpec]:
        """Return one evaluation per set of the columns.

        The eval_id depends only on the run and the set. Another column of the same set needs no new evaluation.
        """
        if not self.columns:
            raise UserError(
                f"The task {self.name} has no columns. Declare them in the study ([[metric]] with a name), or in "
                "task(columns=[…])."
            )
        printed: dict[str, set[str]] = {}
        for one in self.columns:
            printed.setdefault(one.set, set()).add(one.metric)
        several = len(printed) > 1  # with several sets, a metric without a set is ambiguous
        return [
            EvaluationSpec(name, {"set": name}, {}, tuple(sorted(f"{name}.{m}" if several else m for m in metrics)))
            for name, metrics in printed.items()
        ]

    def num_params(self, config: Any) -> int | None:
        return None

    def cost(self, config: Any) -> float:
        return 0.0

    def outdated(self, made: EvaluationResult) -> bool:
        """Return whether the study now reads a metric by another pattern, so that the stored log must be read again."""
        printed = {column.metric for column in self.columns if column.set == made.set}
        return outdated(made, printed, patterns_of(self.trainer.patterns, made.set or ""))

    def prepare(self, config: Any, store: Path, progress: Progress) -> dict[str, Any]:
        """Store the trees of the run, if it has any. This process has planned them."""
        for tree in self.trainer.trees:
            keep(tree, store)
        return {}

    def evaluate(
        self, config: Any, evaluation: EvaluationSpec, weights: Path, folder: Path, context: AttemptContext
    ) -> dict[str, Any]:
        before = None if weights == context.folder else self._before(evaluation, weights, context)
        patterns = patterns_of(self.trainer.patterns, evaluation.set)
        found = read_kept(weights, evaluation.set, evaluation.promised, patterns, before, context.emit)
        reported = read_json(weights / FINAL / "metrics.json") or {}
        lacking = {
            name: why or self._not_reported(name, evaluation.set, reported, config)
            for name, why in found.lacking.items()
        }
        if lacking and (weights == context.folder or not (found.metrics or any(reported.values()))):
            raise UserError(next(iter(lacking.values())))
        for why in lacking.values():
            log.warning("%s", why)
        metrics = recorded(found.metrics, evaluation.set, evaluation.promised)
        outputs = weights / FINAL / EXAMPLES / f"{evaluation.set}.jsonl"
        facts: dict[str, Any] = {"readings": found.readings} if found.readings else {}
        if lacking:
            facts["lacking"] = {name: first_sentences(why) for name, why in lacking.items()}
        with explain_os_errors("read the trainer's examples"):
            if outputs.is_file():
                trained = TrainingResult.load(weights / RESULT_FILE) or TrainingResult()
                if written := trained.example_files.get(outputs.name):
                    check_file(outputs, written)
                shutil.copyfile(outputs, folder / EXAMPLE_FILE)
                facts["examples"] = outputs.read_bytes().count(b"\n")
        return {"metrics": metrics, **facts}

    def _before(self, evaluation: EvaluationSpec, weights: Path, context: AttemptContext) -> EvaluationResult | None:
        """Return the stored evaluation of the same weights that this evaluation replaces; None if there is none."""
        eval_id = eval_identity(context.spec.run_id, evaluation.settings, evaluation.inputs)
        with contextlib.suppress(Damaged):
            made = Store.open(context.store, create=False).evaluation(context.spec.run_id, eval_id)
            if made is not None and made.weights_attempt == int(weights.name):
                return made
        return None

    def _not_reported(self, name: str, set_: str, reported: Mapping[str, Mapping[str, float]], config: Any) -> str:
        """Return the error message for a metric of the table that the trainer did not report."""
        return not_returned(name, set_, {name: dict(metrics) for name, metrics in reported.items()})


class FunctionTask(OwnTask):
    """The task of a user's function.

    process: the process in which the function runs.
    """

    def __init__(self, process: TrainerProcess, python: str) -> None:
        declared = process.declared
        steps = declared["steps"]
        roles = SettingRoles(steps=steps, not_in_lineage=(steps,) if steps and declared["continues"] else ())
        kind = config_type_of(declared["settings"], process.check, roles)
        super().__init__(declared["name"], kind, [_column(one, process) for one in declared["columns"]])
        self._process, self.interpreter = process, python
        # The named module may import the function from another module.
        self.named = tuple(dict.fromkeys(Path(declared[name]).resolve() for name in ("loaded_from", "file")))
        self.files, self.script = tuple(local_files(self.named)), str(Path(declared["file"]).resolve())

    def inputs(self, config: Any, store: Path) -> dict[str, str]:
        """Return the digests of the files that `reads` returns. Relative paths start at the folder of the module."""
        return {name: _digest(path) for name, path in self._files(config).items()}

    def _files(self, config: Any) -> dict[str, Path]:
        home = Path(self._process.declared["file"]).parent
        paths = [home / path for path in self._process.answer("reads", settings_of(config)) or ()]
        return {f"{number}-{path.name}": path for number, path in enumerate(paths)}

    def versions(self) -> dict[str, str]:
        """Return the versions of the trainer's interpreter and of the packages that its code imports."""
        return self._process.versions(self.packages() or ())

    def preflight(self, config: Any, store: Path) -> list[UserError]:
        """Return the reasons why the network changes of a row do not fit the network."""
        found = []
        for name, value in changes_of(config).items():
            try:
                config.network_changes[name].check_function(value, partial(self.ask, config, name))
            except UserError as error:
                found.append(error)
        return found

    def ask(self, config: Any, name: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request to the module of a network change in the trainer's process (ablations_task/changes.py).

        name: the name of the network change.

        Returns the answer. Raises the error that the user's code raised; most errors are raised as TrainerFailed.
        """
        given = {"do": "ask", "change": name, "settings": settings_of(config), "seed": config.seed}
        return self._process.ask({**given, **request})

    def num_params(self, config: Any) -> int | None:
        return None if changes_of(config) else self._number("num_params", config, int)

    def cost(self, config: Any) -> float:
        """Return the cost that the trainer computes from the settings; 0 (unknown) for a row with network changes."""
        return 0.0 if changes_of(config) else self._number("cost", config, float) or 0.0

    def _number(self, what: str, config: Any, kind: type[N]) -> N | None:
        answer = self._process.answer(what, settings_of(config))
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            if answer is None or (not unstorable(number := kind(answer)) and number >= 0):
                return None if answer is None else number
        raise UserError(
            f"The function {what}= of the task {self.name} returned {str(answer)[:80]!r}: expected a number from 0 on, "
            "of at most 64 bits, or None."
        )

    def train(self, config: Any, context: AttemptContext) -> dict[str, Any]:
        self._refuse_changed(config, context, "after the run was planned")
        resume, device = open_folder(context), context.device
        request = {
            "settings": settings_of(config), "seed": config.seed, "device": device.kind, "threads": device.threads,
            "folder": str(context.folder / FINAL), "resume": str(resume) if resume else None,
            "memory_gb": device.memory_gb and device.memory_gb / device.count, "share": device.share,
            "context_gb": CONTEXT_GB,
            "changes": {name: changes_of(config).get(name) for name in config.network_changes},
        }  # fmt: skip
        before = self.code_now(context.store)
        home, tree = self.folder or Path.cwd(), self.trainer.tree
        own = own_code(self.trainer, context, home, context.folder / COPY) if tree else contextlib.nullcontext(home)
        with own as place:
            python = str(home / self.interpreter) if self.interpreter else ""
            process = TrainerProcess(self._process.task, str(place), python) if tree else self._process
            ended = process.train(request, context)
            if tree:
                check_watched(context)
        files = self.code_facts(config, context, before, context.folder / COPY)
        self._refuse_changed(config, context, "while the run trained")
        keep_metrics(context.folder / FINAL, ended["returned"])
        theirs = {"device": name} if (name := ended["device_name"]) else {}
        for fact, value in ended["facts"].items():
            if TrainingResult.reserved(fact):
                log.warning(
                    "the fact %s = %r of the trainer is left out, because the record uses this name", fact, value
                )
            else:
                theirs[fact] = value
        named = {"interpreter": self.interpreter} if self.interpreter else {}
        return {"step": total_steps(config), **named, **close_folder(context, theirs | files | imported(context))}


def column(*arguments: Any, **options: Any) -> Column:
    """Return a column that a study declares. The arguments are those of `ablations_task.column`."""
    counts = options.pop("counts", None)
    return _directed({**vars(ablations_task.column(*arguments, **options)), "counts": counts})


def _directed(declared: Mapping[str, Any]) -> Column:
    """Return the declared column. If `better` is not declared, it is inferred from the metric's name."""
    return Column(**{**declared, "better": declared["better"] or direction(declared["metric"])})


def _column(declared: Mapping[str, Any], process: TrainerProcess) -> Column:
    """Return a column that a trainer declares. The function of its counts is called in the trainer's process."""
    counts = declared["counts"]
    if counts is None:
        return _directed(declared)

    def value(sums: Any) -> Any:
        import numpy as np

        sent = np.ascontiguousarray(sums, dtype="<f8")
        request = {"do": "count", "column": declared["key"], "shape": list(sent.shape)}
        try:
            answer = process.ask({**request, "sums": base64.b64encode(sent.tobytes()).decode()})
        except TrainerFailed as failed:
            raise RuntimeError(str(failed)) from None
        return np.frombuffer(base64.b64decode(answer["values"]), dtype="<f8").reshape(answer["shape"])

    kept = Counts(tuple(counts["names"]), value, file=counts["file"], length=counts["length"])
    return _directed({**declared, "counts": kept})


def _digest(path: Path) -> str:
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError as error:
        raise UserError(f"The trainer's input {path} cannot be read: {error.strerror}.") from None
