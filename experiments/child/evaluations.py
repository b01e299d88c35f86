"""Evaluate the weights of a run. An evaluation consists of parts: likelihood, decode and score.

The identity of a part is a hash of the run, the evaluated set and the settings that the part reads. The store may have
a part with the same identity that the present code made from the same weights. In this case, the child copies the
stored part and does not compute it again. For example, a row with another beam size reuses the perplexity, and an
evaluation with another metric reuses the translations.
"""

import contextlib
import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.attempt_context import AttemptContext
from experiments.config.network_change import why_unknown
from experiments.errors import Damaged, Diverged, Preempted, UserError, failure_class
from experiments.events.event_log import EventWriter
from experiments.identity import eval_identity
from experiments.records import FailureClass
from experiments.run_spec import EvaluationSpec
from experiments.store.checksummed import check_file, describe_file, write_json
from experiments.store.layout import Store
from experiments.store.results import RESULT_FILE, EvaluationResult, Part
from experiments.tasks.base import Task, join_facts

log = logging.getLogger("experiments.child.run")


class _Made(NamedTuple):
    """A finished part: its entry in the evaluation's record, checksums of its files, and the folder of these files."""

    entry: Part
    files: Mapping[str, Mapping[str, Any]]
    folder: Path


class Evaluations(NamedTuple):
    """The evaluations that an attempt makes.

    weights: the folder of the attempt that trained the weights. If an earlier attempt trained them, parts of the run's
        stored evaluations may be reused.
    code: the name of each part → the digest of its code when this attempt began.
    """

    config: Any
    task: Task
    weights: Path
    context: AttemptContext
    events: EventWriter
    code: Mapping[str, str]

    def make(self, items: Sequence[EvaluationSpec], renew: Mapping[str, int]) -> None:
        """Make all evaluations in `items`.

        If one evaluation fails, the other evaluations are still made, and the first error is raised at the end. But if
        memory runs out, the disk is full or the device fails, the error is raised immediately.

        renew: eval_id → the attempt whose stored evaluation is replaced.
        """
        store = Store.open(self.context.store, create=False)
        stored = (
            [] if self.weights == self.context.folder else [store.run_folder(self.context.spec.run_id) / "evaluations"]
        )
        failed: Exception | None = None
        named: dict[str, EvaluationSpec] = {}
        for item in items:
            named.setdefault(item.eval_id, item)  # sets with equal content are evaluated once, under the first name
        for item in named.values():
            if self.context.should_stop():
                raise Preempted(None)
            made = _made_parts([self.context.folder / "evaluations", *stored])
            try:
                self._one(item, renew.get(item.eval_id), made)
            except Preempted:
                raise
            except Exception as error:
                if failure_class(error) in (FailureClass.OUT_OF_MEMORY, FailureClass.DISK_FULL, FailureClass.DEVICE):
                    raise
                quiet = isinstance(error, Diverged)  # the message of Diverged is sufficient without a traceback
                log.error("the evaluation %s of %s failed", item.eval_id, item.set, exc_info=not quiet)
                failed = failed or error
        if failed is not None:
            raise failed

    def _one(self, spec: EvaluationSpec, renew: int | None, made: Mapping[tuple[str, str], _Made]) -> None:
        for name in self.task.unknown_settings(self.config, spec):
            raise UserError(
                f"The evaluation of {spec.set} was queued with the setting {name}, so it was not made. "
                f"{why_unknown(f'evaluation.{name}')} Then `ablations run` makes the evaluation."
            )
        target = self.context.folder / "evaluations" / spec.eval_id
        target.parent.mkdir(exist_ok=True)  # no parents=True, because a store that was moved must not be created again
        target.mkdir(exist_ok=True)
        versions = self.task.versions()
        parts: dict[str, Part] = {}
        again: set[str] = set()
        for part in self.task.evaluation_parts:
            reads = self.task.part_settings.get(part)
            names = spec.settings if reads is None else (*reads, *self.config.network_changes)
            settings = {name: value for name, value in spec.settings.items() if name in names}
            identity = eval_identity(self.context.spec.run_id, {"part": part, **settings}, spec.inputs)
            stored = made.get((identity, self.code[part])) if self.task.reuses_parts else None
            if stored is not None and again.isdisjoint(self.task.part_reads.get(part, ())) and _take(stored, target):
                parts[part] = stored.entry
                continue
            again.add(part)
            before, began, cpu_began = _names(target), time.monotonic(), time.process_time()
            facts = getattr(self.task, part)(self.config, spec, self.weights, target, self.context)
            parts[part] = Part(
                id=identity,
                code_digest=self.code[part],
                wall_s=round(time.monotonic() - began, 3),
                cpu_s=round(time.process_time() - cpu_began, 3),
                versions=versions,
                facts=facts,
                files=sorted(_names(target) - before),
            )
        renews: dict[str, Any] = {} if renew is None else {"renews": renew}
        outcome = join_facts(made_part.facts for made_part in parts.values())
        result = EvaluationResult(
            eval_id=spec.eval_id,
            run_id=self.context.spec.run_id,
            set=spec.set,
            settings=dict(spec.settings),
            inputs=dict(spec.inputs),
            metrics=outcome["metrics"],
            parts=parts,
            wall_s=round(sum(made_part.wall_s for made_part in parts.values()), 3),
            versions=versions_of(self.task, outcome),
            files={name: describe_file(target / name) for name in sorted(_names(target))},
            **renews,
        )
        write_json(target / RESULT_FILE, {**outcome, **result.content})
        self.events.emit("evaluated", eval_id=spec.eval_id, set=spec.set, metrics=outcome["metrics"], **renews)


def versions_of(task: Task, facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the versions of the packages on which the results depend.

    facts: facts of a training or evaluation; their entry "versions" may add further versions, such as CUDA's.
    """
    own = facts.get("versions")
    return {**task.versions(), **(own if isinstance(own, dict) else {})}


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.is_file() and path.name != RESULT_FILE}


def _made_parts(homes: Sequence[Path]) -> dict[tuple[str, str], _Made]:
    """Return the finished parts of the evaluations in the folders, by (identity, digest of the part's code)."""
    parts: dict[tuple[str, str], _Made] = {}
    for home in homes:
        for path in sorted(home.glob(f"*/{RESULT_FILE}")):
            with contextlib.suppress(Damaged):
                record = EvaluationResult.load(path) or EvaluationResult()
                for part in record.parts.values():
                    files = {name: record.files.get(name, {}) for name in part.files}
                    parts.setdefault((part.id, part.code_digest or ""), _Made(part, files, path.parent))
    return parts


def _take(made: _Made, target: Path) -> bool:
    """Copy the files of a part to `target`. Return False if a file is damaged or missing."""
    try:
        for name, written in made.files.items():
            check_file(made.folder / name, written)
            shutil.copyfile(made.folder / name, target / name)
    except (Damaged, OSError):
        return False
    return True
