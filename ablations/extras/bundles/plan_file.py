"""Serialise a plan as JSON, so that a table can be printed without the corpus, the study file and the task's code."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from ablations.extras.bundles.recorded_settings import describe, recorded_type
from ablations.planning.plan import Plan, PlannedRun
from ablations.planning.resolve import PlannedRow
from ablations.study.study import Study
from ablations.study.variation import Variation
from experiments.config.task_config import TaskConfig
from experiments.identity import NO_SEED
from experiments.run_spec import NO_TRAINER, EvaluationSpec, TrainerSpec, run_spec, separate
from experiments.run_state import RunState
from experiments.tasks.load import is_built_in


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """Return all parts of a plan that reports read, with the current states of the runs."""
    return {
        "settings": describe(type(plan.rows[0].config)),
        "study": plan.study.model_dump(mode="json", by_alias=True, exclude={"folder"}),
        "profile": plan.profile,
        "notes": list(plan.notes),
        "paper_keys": list(plan.paper_keys),
        "rows": [
            {
                "key": row.variation.key,
                "config": row.config.model_dump(mode="json"),
                "seeds": list(row.seeds),
                "overrides": dict(row.overrides),
                **_trainer(row),
            }
            for row in plan.rows
        ],
        "runs": [_run(run) for run in plan.runs],
        "members": [_run(run) | _config(run, plan) for run in plan.members],
    }


def _run(run: PlannedRun) -> dict[str, Any]:
    spec = run.spec
    return {
        "row": run.row,
        "seed": spec.seed,
        "run_id": spec.run_id,
        "num_params": spec.num_params,
        "cost": spec.cost,
        "state": run.state,
        "stale": list(run.store_state.stale),
        "inputs": dict(spec.inputs),
        "evaluations": [asdict(evaluation) for evaluation in run.evaluations],
        **({"named_by": dict(spec.named_by)} if spec.named_by is not None else {}),
        **({"added": dict(run.added)} if run.added else {}),
    }


def _trainer(row: PlannedRow) -> dict[str, Any]:
    return {} if row.config.setting_roles.frozen_defaults else {"trainer": row.trainer.to_json()}


def _config(run: PlannedRun, plan: Plan) -> dict[str, Any]:
    """Return the settings of a parent run. Return {} for an ensemble's member, which has the ensemble's settings."""
    if not any(other.spec.parent_run and other.spec.parent_run.run_id == run.run_id for other in plan.runs):
        return {}
    row = run.planned_row
    return {"config": run.config.model_dump(mode="json"), "overrides": dict(row.overrides), **_trainer(row)}


def plan_from_json(data: Mapping[str, Any]) -> Plan:
    """Read a plan from JSON. Raises ValueError (including pydantic's), KeyError or TypeError for invalid data.

    Only the code of built-in tasks is loaded. The settings of other tasks are read by the description in the plan.
    """
    # Older bundles have these sections in a study. tests/unit/ablations/stores contains a bundle of version 0.1.0.
    given = {name: given for name, given in data["study"].items() if name not in ("sinks", "same_as", "guard")}
    data = _without_facts({**data, "study": given})
    study = Study.from_mapping(data["study"])
    config_type = recorded_type(study.task, data["settings"])
    variations = {row.key: row for row in study.variations}
    rows = {item["key"]: _row(item, variations[item["key"]], config_type, item["seeds"]) for item in data["rows"]}
    runs = tuple(_run_again(item, rows[item["row"]]) for item in data["runs"])
    members = tuple(_run_again(item, _row_of(item, runs, rows, variations)) for item in data["members"])
    notes, paper_keys = tuple(data["notes"]), tuple(data["paper_keys"])
    return Plan(study, data["profile"], tuple(rows.values()), runs, notes, paper_keys, members)


def _without_facts(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the plan in the current format: version 0.1.0 had the facts of a user's trainer among the settings.

    Raises ValueError for facts of wrong types.
    """
    study = data["study"]
    task = study.get("task", "translation")
    if is_built_in(task) or any("trainer" in row for row in data["rows"]):
        return data

    def row(item: Mapping[str, Any]) -> dict[str, Any]:
        config, trainer = separate(item["config"], task)
        return {
            **item,
            "config": config,
            "overrides": separate(item["overrides"], task)[0],
            "trainer": trainer.to_json(),
        }

    def variation(item: Mapping[str, Any]) -> dict[str, Any]:
        fixed, code = separate(item.get("fixed", {}), task)
        return {**item, "fixed": fixed, "code_tree": code.tree, "code_base": code.base, "code_lines": code.lines}

    defaults, of_base = separate(data["settings"]["defaults"], task)
    return {
        **data,
        "study": {**study, "code_tree": of_base.tree, "variation": [variation(item) for item in study["variation"]]},
        "settings": {**data["settings"], "defaults": defaults},
        "rows": [row(item) for item in data["rows"]],
        "members": [row(item) if "config" in item else item for item in data["members"]],
    }


def _row(
    item: Mapping[str, Any], variation: Variation, config_type: type[TaskConfig], seeds: Iterable[int]
) -> PlannedRow:
    config = config_type.from_mapping(item["config"])
    trainer = TrainerSpec.from_json(item.get("trainer", {})) if not config.setting_roles.frozen_defaults else NO_TRAINER
    return PlannedRow(variation, config, tuple(seeds), item["overrides"], (), trainer)


def _row_of(
    item: Mapping[str, Any],
    runs: Iterable[PlannedRun],
    rows: Mapping[str, PlannedRow],
    variations: Mapping[str, Variation],
) -> PlannedRow:
    """Return the row of a run that another run reads: a parent run, or a member of an ensemble.

    A member has the settings of its ensemble.
    """
    reader = next(rows[run.row] for run in runs if item["run_id"] in run.spec.reads)
    variation = variations[item["row"]]
    if "config" not in item:
        return replace(reader, variation=variation)
    return _row(item, variation, type(reader.config), [item["seed"]])


def _run_again(item: Mapping[str, Any], row: PlannedRow) -> PlannedRun:
    """Read a run of a row from JSON."""
    config = row.config_of(item["seed"]) if item["seed"] != NO_SEED else row.config
    spec = run_spec(
        config,
        item["run_id"],
        item["inputs"],
        row.trainer,
        named_by=item.get("named_by"),
        num_params=item["num_params"],
        cost=item["cost"],
    )
    evaluations = tuple(map(EvaluationSpec.from_json, item["evaluations"]))
    state = RunState(item["state"], tuple(item["stale"]))
    return PlannedRun(spec, row, state, evaluations, added=item.get("added", {}))
