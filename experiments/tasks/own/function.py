"""A user's own trainer as a task: a function `run(settings, context) → metrics`. Imports no torch.

    from ablations_task import column, task

    @task(Settings, columns=[column("accuracy", "Accuracy", better="higher", digits=1)])
    def TASK(settings, context):
        …
        return {"accuracy": 93.2}

`run` trains and scores: it returns {metric: number}, or {set: {metric: number}} if the columns name several sets. All
numbers are stored with the run and evaluations read them there, so a study may print another one later without training
again. It runs in a process of its own (process.py). See docs/own-task.md.
"""

import base64
import contextlib
import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union

from pydantic import Field, create_model, model_validator

from experiments.attempt_context import AttemptContext
from experiments.client import ablations_task
from experiments.config.network_change import Changeable, NetworkChange, changes_of, installed_changes
from experiments.config.task_config import GIVEN_ELSEWHERE, SettingRoles, TaskConfig, total_steps
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
from experiments.tasks.own.run_code import (
    COPY,
    NO_TREE,
    check_watched,
    code_top,
    imported,
    imported_files,
    own_code,
)
from experiments.tasks.own.trainer_process import TrainerProcess
from model.strict import StrictModel

log = logging.getLogger("experiments.child.run")
N = TypeVar("N", int, float)


class OwnTask(Task):
    """A trainer of the user's, which trains and scores at once. Its code is the user's files."""

    prepare_reads: tuple[str, ...] | None = ()
    interpreter = ""  # the program that runs the user's code, as the study names it; "": this program's, or none
    named: tuple[Path, ...] = ()  # the files at which the user's code begins
    reuses_parts = False  # an evaluation only reads files, and those that it reads follow the study's patterns

    def __init__(self, name: str, config_type: type[TaskConfig], columns: Sequence[Column] = ()) -> None:
        self.name, self.config_type, self.columns = name, config_type, tuple(columns)
        self._trees: dict[str, PlannedTree] = {}

    # --- the files of its code

    def code_paths(self) -> tuple[Path, ...]:
        """The files that the study names, and those that they import, read from their text."""
        home = self.folder or Path.cwd()
        return tuple(local_files(self.named, [home, code_top(home)]))

    def code_now(self, store: Path) -> dict[str, str]:
        """The digests of the files that would be used now, as far as they are known before a run; linked data too.

        Of a run whose code is a tree: the tree, and linked data.
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
        """The digests of the files that a run has used, for its record.

        before: `code_now` as the run began. What its Python processes imported is known by now. A file that was edited
        meanwhile counts as changed, because nothing says which of its states was used. place: of a run whose code is a
        tree, its copy.
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
        names |= {name for name in static if name.startswith("../")}  # which no watcher sees
        files = as_used({name: before.get(name, "") for name in sorted(names)}, copy, context.folder)
        return {"code_home": copy.name(home), "code_files": files}

    def _base_files(
        self, config: Any, context: AttemptContext, used: Mapping[str, str], data: Mapping[str, str]
    ) -> dict[str, Any]:
        """The same files without the row's change, for the record of a row that changes code."""
        if not code_change_in(context.spec.inputs):
            return {}
        base = self.trainer.base
        return {"base_files": {**archived_digests(context.store, base, used), **data} if base else {}}

    def changed_code(self, result: TrainingResult, store: Path) -> list[str]:
        """The recorded files of a run that have changed, or are gone."""
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
        """The files that the trainer says it reads, by the names of their digests."""
        return {}

    def _refuse_changed(self, config: Any, context: AttemptContext, when: str) -> None:
        """Raises UserError if the content of what the run reads differs from that of the plan."""
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
        """One evaluation per set of the columns, named by the set alone: no other column makes it anew."""
        if not self.columns:
            raise UserError(
                f"The task {self.name} has no columns. Declare them in the study ([[metric]] with a name), or in "
                "task(columns=[…])."
            )
        printed: dict[str, set[str]] = {}
        for one in self.columns:
            printed.setdefault(one.set, set()).add(one.metric)
        several = len(printed) > 1  # then a number without a set is ambiguous
        return [
            EvaluationSpec(name, {"set": name}, {}, tuple(sorted(f"{name}.{m}" if several else m for m in metrics)))
            for name, metrics in printed.items()
        ]

    def num_params(self, config: Any) -> int | None:
        return None

    def cost(self, config: Any) -> float:
        return 0.0

    def outdated(self, made: EvaluationResult) -> bool:
        """Return whether the study reads a metric by another pattern now: the number is in the kept log."""
        printed = {column.metric for column in self.columns if column.set == made.set}
        return outdated(made, printed, patterns_of(self.trainer.patterns, made.set or ""))

    def prepare(self, config: Any, store: Path, progress: Progress) -> dict[str, Any]:
        """Pack the run's tree, if its code is one, into the store: the plan that made it is this process's."""
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
        """The stored evaluation of the same weights that this one renews; None if there is none."""
        eval_id = eval_identity(context.spec.run_id, evaluation.settings, evaluation.inputs)
        with contextlib.suppress(Damaged):
            made = Store.open(context.store, create=False).evaluation(context.spec.run_id, eval_id)
            if made is not None and made.weights_attempt == int(weights.name):
                return made
        return None

    def _not_reported(self, name: str, set_: str, reported: Mapping[str, Mapping[str, float]], config: Any) -> str:
        """A message for a metric of the table that the trainer did not report."""
        return not_returned(name, set_, {name: dict(metrics) for name, metrics in reported.items()})


class FunctionTask(OwnTask):
    """A function in the process of its trainer."""

    def __init__(self, process: TrainerProcess, python: str) -> None:
        told = process.declared
        steps = told["steps"]
        roles = SettingRoles(steps=steps, not_in_lineage=(steps,) if steps and told["continues"] else ())
        kind = config_type_of(told["settings"], process.check, roles)
        super().__init__(told["name"], kind, [_column(one, process) for one in told["columns"]])
        self._process, self.interpreter = process, python
        # the function may be in another module
        self.named = tuple(dict.fromkeys(Path(told[name]).resolve() for name in ("loaded_from", "file")))
        self.files, self.script = tuple(local_files(self.named)), str(Path(told["file"]).resolve())

    def inputs(self, config: Any, store: Path) -> dict[str, str]:
        """Digests of the files of `reads`, by file name; relative paths start at the module's folder."""
        return {name: _digest(path) for name, path in self._files(config).items()}

    def _files(self, config: Any) -> dict[str, Path]:
        home = Path(self._process.declared["file"]).parent
        paths = [home / path for path in self._process.answer("reads", settings_of(config)) or ()]
        return {f"{number}-{path.name}": path for number, path in enumerate(paths)}

    def versions(self) -> dict[str, str]:
        """Versions of the trainer's interpreter and of the packages that its code imports."""
        return self._process.versions(self.packages() or ())

    def preflight(self, config: Any, store: Path) -> list[UserError]:
        """Reasons why the row's changes of the network do not fit it."""
        found = []
        for name, value in changes_of(config).items():
            try:
                config.network_changes[name].check_function(value, partial(self.ask, config, name))
            except UserError as error:
                found.append(error)
        return found

    def ask(self, config: Any, name: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of the module of a network change in the trainer's process (ablations_task/changes.py).

        Raises the error that the user's code raised, most as TrainerFailed.
        """
        given = {"do": "ask", "change": name, "settings": settings_of(config), "seed": config.seed}
        return self._process.ask({**given, **request})

    def num_params(self, config: Any) -> int | None:
        return None if changes_of(config) else self._number("num_params", config, int)

    def cost(self, config: Any) -> float:
        """The cost that the function computes from the settings; 0 (unknown) for a row that changes the network."""
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
    """A column that a study declares (experiments/client/ablations_task describes it)."""
    counts = options.pop("counts", None)
    return _directed({**vars(ablations_task.column(*arguments, **options)), "counts": counts})


def _directed(declared: Mapping[str, Any]) -> Column:
    """The column; its direction is by the metric's name where it is not declared."""
    return Column(**{**declared, "better": declared["better"] or direction(declared["metric"])})


def _column(declared: Mapping[str, Any], process: TrainerProcess) -> Column:
    """A column that a trainer declares; the function of its counts is called in the trainer's process."""
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


# --- A user's settings as a configuration of the harness. Their type stays in the trainer's process
# That process describes it (`described` in experiments/client/ablations_task) and checks values by making its own
# object of them; here they have the same names, types, defaults and limits.


Check = Callable[[Mapping[str, Any]], None]  # of the settings as JSON; raises ValueError for what the user refuses
_SIMPLE: dict[str, Any] = {
    "bool": bool, "int": int, "float": float, "str": str, "null": type(None), "any": Any, "path": Path,
    "datetime": datetime, "date": date, "time": time,
}  # fmt: skip
_FROM_TEXT: dict[str, Callable[[str], Any]] = {
    "path": Path,
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
}


class OwnConfig(Changeable, TaskConfig):
    """A configuration made by `config_type_of`: the user's settings with `task` and `seed`."""

    settings_check: ClassVar[Check] = staticmethod(lambda values: None)

    @classmethod
    def accepts(cls, change: NetworkChange) -> bool:
        return change.client is not None

    @model_validator(mode="after")
    def _accepted_by_its_own_checks(self) -> "OwnConfig":
        type(self).settings_check(settings_of(self))  # so planning refuses what the user's __post_init__ refuses
        return self


def settings_of(config: TaskConfig) -> dict[str, Any]:
    """The user's settings in a configuration, nested, with JSON types only."""
    ours = (*config.setting_roles.given_elsewhere, *config.network_changes)
    return {name: value for name, value in config.model_dump(mode="json").items() if name not in ours}


def config_type_of(described: Mapping[str, Any], check: Check, roles: SettingRoles | None = None) -> type[TaskConfig]:
    """The configuration type of described settings. Raises UserError for names that the harness has for itself."""
    roles, name, fields = roles or SettingRoles(), described["name"], _fields(described["fields"])
    changes = installed_changes()
    taken = [name for name in fields if name in (*GIVEN_ELSEWHERE, *changes) or hasattr(OwnConfig, name)]
    if taken:
        raise UserError(
            f"{name}.{taken[0]}: the harness has this name for itself (the task's name and the seed are given by it: "
            f"context.seed; changes of a network: {', '.join(changes) or 'none'}). Give the setting another name."
        )
    if roles.steps and roles.steps not in fields:
        raise UserError(f"steps= names {roles.steps}, but {name} has no such setting.")
    made = create_model(name, __base__=OwnConfig, __module__=__name__, **fields)
    made.setting_roles, made.settings_check = roles, staticmethod(check)
    return made


def _fields(described: Any) -> dict[str, Any]:
    """(type, default) of every setting, by name."""
    fields: dict[str, Any] = {}
    for one in described:
        if why := unstorable(one["default"]):
            raise UserError(
                f"The setting {one['name']} has the default {str(one['default'])[:80]}: {why}. Every run of the study "
                "would be recorded with it: take another default, such as None."
            )
        kind = _type(one["kind"])
        default = kind() if "group" in one["kind"] else _restored(one["kind"], one["default"])
        fields[one["name"]] = (Annotated[kind, Field(**one["limits"])], Field(default, description=one["about"]))
    return fields


def _type(kind: Mapping[str, Any]) -> Any:
    [(name, inner)] = kind.items()
    if name == "simple":
        return _SIMPLE[inner]
    if name == "group":
        return create_model(inner["name"], __base__=StrictModel, __module__=__name__, **_fields(inner["fields"]))
    if name == "literal":
        return Literal[tuple(inner)]
    if name == "union":
        return Union[tuple(_type(one) for one in inner)]  # noqa: UP007 - of any number of types
    if name == "tuple":
        return tuple[tuple(_type(one) for one in inner)]  # type: ignore[misc]
    item = _type(inner)
    return {"list": list[item], "set": set[item], "tuple_of": tuple[item, ...]}[name]  # type: ignore[valid-type]


def _restored(kind: Mapping[str, Any], value: Any) -> Any:
    """A default as its type has it; numbers stay as the user wrote them, since they name runs."""
    [(name, inner)] = kind.items()
    if name == "simple" and isinstance(value, str) and inner in _FROM_TEXT:
        return _FROM_TEXT[inner](value)
    if name == "union" and value is not None:
        types = [one for one in inner if ("simple" in one) != isinstance(value, list)]
        return _restored(types[0], value) if len(types) == 1 else value
    if isinstance(value, list) and name == "tuple":
        return tuple(_restored(one, item) for one, item in zip(inner, value, strict=False))
    if isinstance(value, list) and name in ("list", "set", "tuple_of"):
        items = [_restored(inner, item) for item in value]
        return {"list": list, "set": set, "tuple_of": tuple}[name](items)
    return value
