"""The two identities of a run: `run_id` names a training, `eval_id` one decoding and scoring of its weights.

    run_id    the task, the seed, the settings that differ from the declared defaults, digests of the training inputs,
              and the declared change of code
    eval_id   the run_id, all evaluation settings, digests of the evaluated set

The defaults of built-in tasks are frozen. Those of a user's trainer may change at any time, so all settings are
recorded beside the name, and a run whose record differs from the requested settings is another run
(store/run_names.py): a digest of the changed defaults then joins the name.

An ensemble trains nothing: it reads finished runs, its members, so their run_ids are among its inputs and name it.
So does a branch, which begins with the state of another run, its parent run, after one of that run's steps.
Settings that change no trained number are not part of run_id (config/run_config.py: NOT_IN_RUN_ID). Imports no torch.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from experiments.config.task_config import TaskConfig
from experiments.dotted import defaults, difference, flatten
from experiments.messages import plural

PROBE_ID = "0" * 16  # run_id of trainings that are only measured
NO_SEED = 0  # of an ensemble: seeds of trainings begin at 1
_MEMBER = re.compile(r"ensemble member ([1-9][0-9]{0,5})")
_PARENT, _AFTER = "parent_run", "parent run steps"
_IMPORTED = "imported row"
CODE_CHANGE = "code change"


class ParentRun(NamedTuple):
    """Origin of a branch: the state of a run after a step."""

    run_id: str
    step: int


def run_identity(config: TaskConfig, inputs: Mapping[str, str], changed: Mapping[str, Any] | None = None) -> str:
    """The run_id of a configuration whose type has the declared defaults.

    inputs: digests of the training inputs (the task's `inputs`), such as a corpus's recipe or content.
    changed: settings whose defaults changed since a run of the plain name was recorded, with their present values.
    """
    return identity_of(config.task, config.seed, named_settings(config), inputs, changed)


def identity_of(
    task: object,
    seed: object,
    settings: Mapping[str, Any],
    inputs: Mapping[str, str],
    changed: Mapping[str, Any] | None = None,
) -> str:
    """The run_id from what enters it. settings: those that name the run, by dotted name."""
    payload = {"task": task, "seed": seed, "settings": dict(settings), "inputs": dict(inputs)}
    return digest({**payload, "changed defaults": digest(dict(changed))} if changed else payload)


def named_settings(config: TaskConfig) -> dict[str, Any]:
    """The settings that name a run, by dotted name: those that differ from the declared defaults."""
    changed = difference(config, defaults(type(config)))
    return _without(changed, ("task", "seed", *config.roles().not_in_run_id))


def eval_identity(run_id: str, settings: Mapping[str, Any], inputs: Mapping[str, str]) -> str:
    """The eval_id: hash of a run's weights, all decoding settings, and digests of the decoded set."""
    return digest({"run_id": run_id, "settings": dict(settings), "inputs": dict(inputs)})


def seed_in_words(seed: int) -> str:
    """ "seed 3"; "ensemble" for a run that has no seed of its own."""
    return "ensemble" if seed == NO_SEED else f"seed {seed}"


def ensemble_in_words(seeds: Sequence[int]) -> str:
    """Return the seeds of an ensemble's members: "seed 1", "seeds 1, 2, 3"."""
    return f"{plural(len(seeds), 'seed')} {', '.join(map(str, seeds))}"


def with_members(inputs: Mapping[str, str], run_ids: Iterable[str]) -> dict[str, str]:
    """The inputs of an ensemble: those of its members' trainings, and the members in the order of their run_ids."""
    return {**inputs, **{f"ensemble member {n}": run_id for n, run_id in enumerate(sorted(run_ids), start=1)}}


def members_in(inputs: Mapping[str, str]) -> tuple[str, ...]:
    """The run_ids of an ensemble's members; () for the inputs of a training."""
    members = {int(match[1]): run_id for name, run_id in inputs.items() if (match := _MEMBER.fullmatch(name))}
    return tuple(members[number] for number in sorted(members))


def with_parent_run(inputs: Mapping[str, str], parent_run: ParentRun) -> dict[str, str]:
    """The inputs of a branch: those of its own training, and where it begins."""
    return {**inputs, _PARENT: parent_run.run_id, _AFTER: str(parent_run.step)}


def parent_run_in(inputs: Mapping[str, str]) -> ParentRun | None:
    """Return the origin of a branch; None for the inputs of a training from the start."""
    run_id, step = inputs.get(_PARENT, ""), inputs.get(_AFTER, "")
    return ParentRun(run_id, int(step)) if re.fullmatch("[0-9a-f]{16}", run_id) and step.isdecimal() else None


def of_imported(study: str, row: str) -> dict[str, str]:
    """The inputs of a run that was trained elsewhere: the place that it was imported to. No training has its name."""
    return {_IMPORTED: digest([study, row])}


def imported_in(inputs: Mapping[str, str]) -> bool:
    """Return whether these are the inputs of a run that was trained elsewhere."""
    return _IMPORTED in inputs


def with_code_change(inputs: Mapping[str, str], change: str) -> dict[str, str]:
    """The inputs of a run whose row changes the code. change: its digest; "" for a row that changes none."""
    return {**inputs, CODE_CHANGE: change} if change else dict(inputs)


def code_change_in(inputs: Mapping[str, str]) -> str:
    """The digest of the change of code that a run's row declares; "" for none."""
    return inputs.get(CODE_CHANGE, "")


def without_runs(inputs: Mapping[str, str]) -> dict[str, str]:
    """The digests of the data alone: no members of an ensemble, no parent of a branch, no place of an imported run.

    A row's change of code is left out too.
    """
    theirs = (_IMPORTED, CODE_CHANGE, *((_PARENT, _AFTER) if parent_run_in(inputs) else ()))
    return {name: value for name, value in inputs.items() if not _MEMBER.fullmatch(name) and name not in theirs}


def lineage(config: TaskConfig, inputs: Mapping[str, str], command: str = "") -> str:
    """Equal for runs that differ only in train_steps, where the schedule lets the longer continue the shorter.

    Of a user's trainer all settings count, and its command: a default that changed since the shorter run is a
    difference.
    """
    roles = config.roles()
    settings = named_settings(config) if roles.frozen_defaults else identity_settings(config)
    settings = _without(settings, roles.not_in_lineage) | ({"command": command} if command else {})
    return digest({"task": config.task, "seed": config.seed, "settings": settings, "inputs": dict(inputs)})


def identity_settings(config: TaskConfig) -> dict[str, Any]:
    """All settings by dotted name on which a run's identity may depend, also those that have their defaults."""
    return _without(dict(flatten(config)), ("task", "seed", *config.roles().not_in_run_id))


def digest(payload: Any) -> str:
    """16 hex digits of the SHA-256 of canonical JSON (sorted keys, no spaces)."""
    text = json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _without(settings: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    groups = tuple(name for name in names if name.endswith("."))
    return {k: v for k, v in settings.items() if k not in names and not k.startswith(groups)}
