"""The two identities of a run: `run_id` names a training, `eval_id` one decoding and scoring of its weights.

    run_id    the task, the seed, the settings that differ from the frozen defaults, digests of the training inputs
    eval_id   the run_id, all evaluation settings, digests of the evaluated set

Settings that change no trained number are not part of run_id (config.NOT_IN_RUN_ID). Imports no torch.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from experiments.config import TaskConfig, defaults, difference, flatten

PROBE_ID = "0" * 16  # run_id of trainings that are only measured


def run_identity(config: TaskConfig, inputs: Mapping[str, str]) -> str:
    """The run_id. Training results are a function of these arguments and of the code, and of nothing else.

    inputs: digests of the training inputs (the task's `inputs`), such as a corpus's recipe or content.
    """
    return digest(_training_payload(config, inputs))


def eval_identity(run_id: str, settings: Mapping[str, Any], inputs: Mapping[str, str]) -> str:
    """The eval_id: hash of a run's weights, all decoding settings, and digests of the decoded set."""
    return digest({"run_id": run_id, "settings": dict(settings), "inputs": dict(inputs)})


def lineage(config: TaskConfig, inputs: Mapping[str, str]) -> str:
    """Equal for runs that differ only in train_steps, where the schedule lets the longer continue the shorter."""
    payload = _training_payload(config, inputs)
    payload["settings"] = _without(payload["settings"], config.roles().not_in_lineage)
    return digest(payload)


def identity_settings(config: TaskConfig) -> dict[str, Any]:
    """The settings, by dotted name, that are part of a run's identity."""
    return _without(dict(flatten(config)), ("task", "seed", *config.roles().not_in_run_id))


def digest(payload: Any) -> str:
    """16 hex digits of the SHA-256 of canonical JSON (sorted keys, no spaces)."""
    text = json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _training_payload(config: TaskConfig, inputs: Mapping[str, str]) -> dict[str, Any]:
    roles = config.roles()
    settings = difference(config, defaults(type(config))) if roles.frozen_defaults else dict(flatten(config))
    settings = _without(settings, ("task", "seed", *roles.not_in_run_id))
    return {"task": config.task, "seed": config.seed, "settings": settings, "inputs": dict(inputs)}


def _without(settings: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    groups = tuple(name for name in names if name.endswith("."))
    return {k: v for k, v in settings.items() if k not in names and not k.startswith(groups)}
