"""The two identities: `run_id` identifies a training, and `eval_id` one decoding and scoring of its weights.

    run_id    hash of the task, the seed, the settings that differ from the declared defaults, digests of the training
              inputs, and the declared change of code
    eval_id   hash of the run_id, the evaluation settings, and digests of the evaluated set

The defaults of built-in tasks are frozen. The defaults of a user's trainer may change at any time. All settings of a
run are therefore recorded. If the record of a run_id differs from the requested settings, the requested run is another
run, and its run_id also includes a digest of the changed defaults (store/run_names.py).

An ensemble trains nothing. An ensemble reads finished runs, which are its members. The inputs of an ensemble include
the run_ids of its members. A branch begins with the state of another run, its parent run, after a step of that run. The
inputs of a branch include the run_id of its parent run and this step.

Settings on which the trained weights do not depend are not part of run_id (config/run_config.py: NOT_IN_RUN_ID).

This module does not import torch.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from experiments.config.task_config import TaskConfig
from experiments.dotted import defaults, difference, flatten
from experiments.messages import plural

PROBE_ID = "0" * 16  # run_id of short trainings that only measure time and memory
NO_SEED = 0  # seed of an ensemble; the seeds of trainings are 1 or larger
_MEMBER = re.compile(r"ensemble member ([1-9][0-9]{0,5})")
_PARENT, _AFTER = "parent_run", "parent run steps"
_IMPORTED = "imported row"
CODE_CHANGE = "code change"


class ParentRun(NamedTuple):
    """The parent run of a branch, and the step after which the branch begins."""

    run_id: str
    step: int


def run_identity(config: TaskConfig, inputs: Mapping[str, str], changed: Mapping[str, Any] | None = None) -> str:
    """Return the run_id of a configuration. The type of the configuration has the declared defaults.

    inputs: digests of the training inputs (`Task.inputs`), such as the digest of a corpus.
    changed: settings whose defaults have changed since a run with the plain run_id was recorded, with their present
        values.
    """
    return identity_of(config.task, config.seed, named_settings(config), inputs, changed)


def identity_of(
    task: object,
    seed: object,
    settings: Mapping[str, Any],
    inputs: Mapping[str, str],
    changed: Mapping[str, Any] | None = None,
) -> str:
    """Return the run_id from its components. settings: the settings that are part of run_id, by dotted name."""
    payload = {"task": task, "seed": seed, "settings": dict(settings), "inputs": dict(inputs)}
    return digest({**payload, "changed defaults": digest(dict(changed))} if changed else payload)


def named_settings(config: TaskConfig) -> dict[str, Any]:
    """Return the settings that are part of run_id because they differ from their defaults, by dotted name."""
    changed = difference(config, defaults(type(config)))
    return _without(changed, ("task", "seed", *config.roles().not_in_run_id))


def eval_identity(run_id: str, settings: Mapping[str, Any], inputs: Mapping[str, str]) -> str:
    """Return the eval_id: a hash of the run_id, the evaluation settings, and digests of the evaluated set."""
    return digest({"run_id": run_id, "settings": dict(settings), "inputs": dict(inputs)})


def seed_in_words(seed: int) -> str:
    """Return the seed as text, such as "seed 3". An ensemble has no seed; its text is "ensemble"."""
    return "ensemble" if seed == NO_SEED else f"seed {seed}"


def ensemble_in_words(seeds: Sequence[int]) -> str:
    """Return the seeds of an ensemble's members as text: "seed 1", "seeds 1, 2, 3"."""
    return f"{plural(len(seeds), 'seed')} {', '.join(map(str, seeds))}"


def with_members(inputs: Mapping[str, str], run_ids: Iterable[str]) -> dict[str, str]:
    """Return the inputs of an ensemble: the inputs of its members' trainings, and the sorted run_ids of the members."""
    return {**inputs, **{f"ensemble member {n}": run_id for n, run_id in enumerate(sorted(run_ids), start=1)}}


def members_in(inputs: Mapping[str, str]) -> tuple[str, ...]:
    """Return the run_ids of an ensemble's members; () for the inputs of a training."""
    members = {int(match[1]): run_id for name, run_id in inputs.items() if (match := _MEMBER.fullmatch(name))}
    return tuple(members[number] for number in sorted(members))


def with_parent_run(inputs: Mapping[str, str], parent_run: ParentRun) -> dict[str, str]:
    """Return the inputs of a branch: the inputs of its training, and the parent run with the step."""
    return {**inputs, _PARENT: parent_run.run_id, _AFTER: str(parent_run.step)}


def parent_run_in(inputs: Mapping[str, str]) -> ParentRun | None:
    """Return the parent run of a branch; None if the inputs are not those of a branch."""
    run_id, step = inputs.get(_PARENT, ""), inputs.get(_AFTER, "")
    return ParentRun(run_id, int(step)) if re.fullmatch("[0-9a-f]{16}", run_id) and step.isdecimal() else None


def of_imported(study: str, row: str) -> dict[str, str]:
    """Return the inputs of an imported run: a digest of the study and of the row to which it was imported.

    No training has these inputs, so no training has the run_id of an imported run.
    """
    return {_IMPORTED: digest([study, row])}


def imported_in(inputs: Mapping[str, str]) -> bool:
    """Return whether these are the inputs of an imported run, which was trained elsewhere."""
    return _IMPORTED in inputs


def with_code_change(inputs: Mapping[str, str], change: str) -> dict[str, str]:
    """Add the change of code of a run's row to its inputs. change: digest of the change; "" if there is none."""
    return {**inputs, CODE_CHANGE: change} if change else dict(inputs)


def code_change_in(inputs: Mapping[str, str]) -> str:
    """Return the digest of the change of code that a run's row declares; "" if it declares none."""
    return inputs.get(CODE_CHANGE, "")


def without_runs(inputs: Mapping[str, str]) -> dict[str, str]:
    """Return only the digests of the data.

    The entries for the members of an ensemble, the parent run of a branch, the row of an imported run and the change of
    code are left out.
    """
    theirs = (_IMPORTED, CODE_CHANGE, *((_PARENT, _AFTER) if parent_run_in(inputs) else ()))
    return {name: value for name, value in inputs.items() if not _MEMBER.fullmatch(name) and name not in theirs}


def lineage(config: TaskConfig, inputs: Mapping[str, str], command: str = "") -> str:
    """Return a hash that is equal for two runs if the longer run may continue the shorter run.

    Such runs differ only in the settings of `SettingRoles.not_in_lineage`, such as train_steps. For a user's trainer,
    the hash includes the command and all settings with their values. A changed default therefore changes the hash.
    """
    roles = config.roles()
    settings = named_settings(config) if roles.frozen_defaults else identity_settings(config)
    settings = _without(settings, roles.not_in_lineage) | ({"command": command} if command else {})
    return digest({"task": config.task, "seed": config.seed, "settings": settings, "inputs": dict(inputs)})


def identity_settings(config: TaskConfig) -> dict[str, Any]:
    """Return all settings that may be part of run_id, by dotted name, including those that have their defaults."""
    return _without(dict(flatten(config)), ("task", "seed", *config.roles().not_in_run_id))


def digest(payload: Any) -> str:
    """Return the first 16 hex digits of the SHA-256 of a value's canonical JSON (sorted keys, no spaces)."""
    text = json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _without(settings: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    groups = tuple(name for name in names if name.endswith("."))
    return {k: v for k, v in settings.items() if k not in names and not k.startswith(groups)}
