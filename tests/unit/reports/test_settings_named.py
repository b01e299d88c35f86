"""The notes and the set-up paragraph name every setting that differs from the paper's, including new settings."""

from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from pydantic import BaseModel

from ablations.plan.plan import plan_study
from ablations.plan.planned import RunState
from ablations.study.selectors import Selection
from ablations.study.study import Study
from experiments.config import TaskConfig, flatten
from experiments.tasks.load import load_task
from reports.render.setup import paragraph
from reports.table.build import build_table
from reports.table.settings import show
from tests.unit.reports.conftest import FakeStore


def fields(kind: type[BaseModel], prefix: str = "") -> dict[str, Any]:
    """Every setting by its dotted name, with its annotation."""
    found: dict[str, Any] = {}
    for name, field in kind.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found |= fields(field.annotation, f"{prefix}{name}.")
        else:
            found[prefix + name] = field.annotation
    return found


def another(kind: Any, value: Any) -> Any:
    """Another value of a setting's type; None if there is no other."""
    if isinstance(value, str) and "attention" in value:
        return value.replace("N *", "2 *")
    if value is None and int in get_args(kind):
        return 2
    if value is None and float in get_args(kind):
        return 0.5
    if value is None and bool in get_args(kind):
        return True
    if get_origin(kind) is not None and all(isinstance(option, str) for option in get_args(kind)):
        return next(option for option in get_args(kind) if option != value)
    if get_origin(kind) is not None and bool in map(type, get_args(kind)):
        return None  # a single choice
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value * 2 + 2
    if isinstance(value, float):
        return round((value + 0.7) / 2, 4) if value <= 1 else value * 2
    return ["one", "two"] if isinstance(value, list) else "xx"


# How the sets are decoded stands in notes of its own; identity and place of the corpus likewise.
ELSEWHERE = ("task", "seed", "data.corpus", "evaluation.sets", "evaluation.rules")
TASKS = {name: load_task(name) for name in ("translation", "parsing")}
CHANGES = [
    (task, name, another(kind, dict(flatten(TASKS[task].config_type()))[name]))
    for task in TASKS
    for name, kind in fields(TASKS[task].config_type).items()
    if name not in ELSEWHERE
]


def said(task: str, base: dict[str, Any], tmp_path: Path) -> list[str]:
    """The notes and the paragraph under a base row that changes some settings, with nothing trained."""
    study = Study.model_validate(
        {"name": "s", "title": "S", "task": task, "base": base, "variation": [{"key": "base"}]}
    )
    plan = plan_study(
        study, Selection(), Inputless(TASKS[task]), tmp_path, lambda run_id, eval_ids: RunState("missing")
    )
    table = build_table(plan, FakeStore(), TASKS[task].columns)
    return [" ".join(table.footnotes), paragraph(table)]


class Inputless:
    """A task whose files need not exist: names of files are settings too."""

    def __init__(self, task: Any) -> None:
        self._task = task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def inputs(self, config: TaskConfig, store: Path) -> dict[str, str]:
        return {"corpus": "c" * 16}

    def evaluations(self, config: Any, store: Path) -> list[Any]:
        plain = type(config)(**{"evaluation": config.evaluation, "training": config.training})
        return list(self._task.evaluations(plain, store))


@pytest.mark.parametrize(("task", "name", "value"), CHANGES, ids=[f"{task}-{name}" for task, name, _ in CHANGES])
def test_a_setting_of_base_is_named(task: str, name: str, value: Any, tmp_path: Path) -> None:
    if value is None:
        pytest.skip("it has one value only")
    more = {"training.keep_checkpoints": 9, "training.eval_steps": 5} if name == "evaluation.checkpoint" else {}
    value = "average:7" if name == "evaluation.checkpoint" else value
    names = (show(name, value), f"{value:,}" if isinstance(value, int) else "no number")
    for text, usual in zip(said(task, {name: value, **more}, tmp_path), said(task, more, tmp_path), strict=True):
        assert text != usual and any(shown in text for shown in names)
