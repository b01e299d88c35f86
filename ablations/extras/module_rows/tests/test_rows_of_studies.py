"""Rows with `modules`: their names, their records, what they exclude, and `context.ablate` in a trainer."""

import json
from pathlib import Path
from typing import Any, cast

import pytest
from torch import nn

from ablations.extras.module_rows import change
from ablations.extras.module_rows.change import MODULES
from ablations.planning.plan import Plan, plan_study
from ablations.planning.resolve import resolve
from ablations.study.selectors import selection
from ablations.study.study import load_study
from experiments.client import ablations_task
from experiments.client.ablations_task.trainer import Channel, RunContext
from experiments.config.network_change import Added, all_settings, changes_of, with_changes
from experiments.config.run_config import RunConfig
from experiments.errors import UserError
from experiments.identity import named_settings, run_identity
from experiments.run_state import RunState
from experiments.tasks import compiling
from experiments.tasks.load import load_task
from experiments.tasks.network import evaluation_settings
from experiments.tasks.own.settings_type import config_type_of
from experiments.training.warm_start import why_no_branch

HEAD = """
name = "heads"
title = "Heads"
task = "translation"
[base]
model.d_model = 8
model.num_heads = 2
[[variation]]
key = "base"
[[variation]]
key = "head"
"""
FIELD = {"kind": {"simple": "int"}, "limits": {}, "about": None}
LINE = "head.1 of decoder.layers.0.self_attention -> zero"


@pytest.fixture(autouse=True)
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan predicts what lines add without the process that builds networks."""
    monkeypatch.setattr(change, "added_by", lambda network, lines: Added())


def plan_of(folder: Path, row: str, *settings: str) -> Plan:
    file = folder / "heads.toml"
    file.write_text(HEAD + row)
    chosen = selection(corpus="builtin", sets=settings)
    return plan_study(load_study(str(file)), chosen, load_task("translation"), folder, lambda *_: RunState("missing"))


def test_the_lines_name_the_training_and_its_evaluation_as_in_version_0_1_0() -> None:
    kind: Any = load_task("translation").config_type
    config = kind.from_mapping({"modules": ["a -> zero"]})
    assert run_identity(config, {"corpus": "x"}) == "261866d0bcb2efaf"
    assert run_identity(kind.from_mapping({"modules": []}), {"corpus": "x"}) == "75cc2e58d4f66bf5"
    scored = kind.from_mapping({"evaluation": {"modules": ["a -> zero"]}})
    assert run_identity(scored, {"corpus": "x"}) == "75cc2e58d4f66bf5"
    assert evaluation_settings(scored) == evaluation_settings(kind()) | {"modules": ["a -> zero"]}


def test_only_lines_that_are_set_are_recorded() -> None:
    """Version 0.1.0 recorded empty ones too: an installation without this extra reads these, and no others."""
    kind: Any = load_task("translation").config_type
    config = kind.from_mapping({"modules": [LINE], "evaluation": {"modules": [LINE]}})
    assert changes_of(config) == changes_of(config.evaluation) == {"modules": (LINE,)}
    assert kind.from_mapping(config.model_dump(mode="json")) == config
    plain = kind().model_dump(mode="json")
    assert "modules" not in {**plain, **plain["evaluation"]}
    plain["modules"] = plain["evaluation"]["modules"] = []
    assert RunConfig.from_mapping(plain) == RunConfig() and kind.from_mapping(plain) == kind()
    with pytest.raises(ValueError, match="modules"):
        RunConfig.from_mapping({**plain, "modules": [LINE]})


def test_a_row_without_the_lines_of_base_differs_from_it(tmp_path: Path) -> None:
    file = tmp_path / "heads.toml"
    base = HEAD.replace("[[variation]]", f"modules = ['{LINE}']\n[[variation]]", 1)
    file.write_text(base + "fixed = {modules = []}")
    rows = resolve(load_study(str(file)), selection(corpus="builtin"), load_task("translation"))
    assert [row.overrides for row in rows] == [{}, {"modules": []}]
    assert [all_settings(row.config)["modules"] for row in rows] == [[LINE], []]


def test_a_branch_has_the_lines_of_its_parent_run() -> None:
    kind: Any = load_task("translation").config_type
    lines, other, none = (kind.from_mapping({"modules": modules}) for modules in ([LINE], ["a -> zero"], []))
    assert not why_no_branch(lines, lines, 10)
    for parent_run, config in ((lines, none), (none, lines), (lines, other)):
        assert "differs from its parent run in modules, which acts before" in why_no_branch(parent_run, config, 10)


@pytest.mark.extra("bundles")
def test_a_row_of_a_users_function_is_read_from_a_plan_without_its_code() -> None:
    from ablations.extras.bundles.recorded_settings import describe, recorded_type

    described = {"name": "Settings", "fields": [{**FIELD, "name": "width", "default": 4}]}
    kind = with_changes(config_type_of(described, lambda settings: None))
    recorded = recorded_type("trainer:TASK", json.loads(json.dumps(describe(kind))))
    for settings in ({"width": 5, "modules": [LINE]}, {"width": 5}):
        ours, theirs = kind.from_mapping(settings), recorded.from_mapping(settings)
        assert theirs.model_dump(mode="json") == ours.model_dump(mode="json")
        assert named_settings(theirs) == named_settings(ours)


def test_a_row_names_its_lines_by_themselves_or_among_its_settings(tmp_path: Path) -> None:
    own = plan_of(tmp_path, f'modules = ["{LINE}"]\n')
    among = plan_of(tmp_path, f'fixed = {{modules = ["{LINE}"]}}\n')
    assert [run.run_id for run in own.runs] == [run.run_id for run in among.runs]
    assert len({run.run_id for run in own.runs}) == len(own.runs)


def test_a_table_with_a_row_that_changes_modules_is_not_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Compiled layers that are equal share their code, and do not see a change of one of them."""
    monkeypatch.setattr(compiling, "PAYS_FROM", 0.0)

    def compiled(plan: Plan) -> set[Any]:
        return {cast(RunConfig, run.config).training.compile for run in plan.trainings}

    assert compiled(plan_of(tmp_path, "set = {training.train_steps = 7}\n", "training.compile=auto")) == {"cuda"}
    plan = plan_of(tmp_path, f'modules = ["{LINE}"]\n', "training.compile=auto")
    assert compiled(plan) == {False} and any("head changes the network by modules" in note for note in plan.notes)
    with pytest.raises(UserError, match=r"training\.compile to false in this row"):
        plan_of(tmp_path, f'modules = ["{LINE}"]\n', "training.compile=true")


# --- `context.ablate` of a trainer


def context_of(changes: dict[str, Any]) -> RunContext:
    return RunContext(1, "cpu", 1, Path(), None, cast("Channel", None), changes)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))


def test_the_parameters_of_base_are_recorded_as_those_of_its_rows_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a column of parameters has base's, too; what the trainer says itself comes first."""
    monkeypatch.setattr(ablations_task, "__path__", [*ablations_task.__path__, str(MODULES.client)])

    def recorded(lines: list[str] | None, said: int | None = None) -> Any:
        context = context_of({"modules": lines})
        if said is not None:
            context.facts(num_params=said)
        context.ablate(network())
        return context._facts["num_params"]

    assert recorded(None) == 9 * 8 + 9 * 2
    assert recorded(["0 -> identity"]) == 9 * 2
    assert recorded(None, said=7) == 7
