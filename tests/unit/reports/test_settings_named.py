"""Notes and set-up name the settings that differ from the paper's; cells show the settings that a row reads."""

from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from pydantic import BaseModel

from ablations.planning.declare_table import table_spec
from ablations.planning.plan import plan_study
from ablations.service.selected import task_of_study
from ablations.study.selectors import Selection, selection
from ablations.study.study import Study, load_study
from ablations.study.study_file import builtin_studies
from experiments.config.network_change import all_settings
from experiments.config.task_config import TaskConfig
from experiments.dotted import flatten
from experiments.identity import digest
from experiments.run_spec import EvaluationSpec
from experiments.run_state import RunState
from experiments.tasks.base import Task
from experiments.tasks.load import load_task
from experiments.tasks.network import evaluation_settings
from model.cost import num_params
from reports.render.setup import paragraph
from reports.table.build import build_table
from reports.table.settings import show
from tests.unit.reports.conftest import FakeStore, lay_out


def fields(kind: type[BaseModel], prefix: str = "") -> dict[str, Any]:
    """Return every setting's dotted name and annotation."""
    found: dict[str, Any] = {}
    for name, field in kind.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found |= fields(field.annotation, f"{prefix}{name}.")
        else:
            found[prefix + name] = field.annotation
    return found


def another(kind: Any, value: Any) -> Any:
    """Return another value of a setting's type, or None if there is no other."""
    if isinstance(value, str) and "attention" in value:
        return value.replace("N *", "2 *")
    if value is None and int in get_args(kind):
        return 2
    if value is None and float in get_args(kind):
        return 0.5
    if value is None and bool in get_args(kind):
        return True
    if get_origin(kind) is not None and all(type(option) in (str, int) for option in get_args(kind)):
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
TRANSLATION = load_task("translation")


def said(task: Task, base: dict[str, Any], tmp_path: Path) -> list[str]:
    """Return the notes and the set-up of a table whose base changes some settings, without training."""
    study = Study.model_validate(
        {"name": "s", "title": "S", "task": task.name, "base": base, "variation": [{"key": "base"}]}
    )
    plan = plan_study(study, Selection(), Inputless(task), tmp_path, lambda *_: RunState("missing"))
    table = build_table(table_spec(plan, task.columns), FakeStore())
    return [" ".join(note.text for note in table.footnotes), paragraph(table)]


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


def check_setting(task: Task, name: str, tmp_path: Path) -> None:
    """A changed setting of base is named exactly if the task reads it."""
    value = another(fields(task.config_type)[name], all_settings(task.config_type())[name])
    if value is None:
        pytest.skip("it has one value only")
    more = {"training.keep_checkpoints": 9, "training.eval_steps": 5} if name == "evaluation.checkpoint" else {}
    value = "average:7" if name == "evaluation.checkpoint" else value
    names = (show(name, value), f"{value:,}" if isinstance(value, int) else "no number")
    unread = task.config_type().unread([name])
    for text, usual in zip(said(task, {name: value, **more}, tmp_path), said(task, more, tmp_path), strict=True):
        assert (text == usual) if unread else (text != usual and any(shown in text for shown in names))


@pytest.mark.parametrize("name", [name for name in fields(TRANSLATION.config_type) if name not in ELSEWHERE])
def test_a_setting_of_base_is_named_where_a_row_reads_it(name: str, tmp_path: Path) -> None:
    check_setting(TRANSLATION, name, tmp_path)


class Unmeasured(Inputless):
    """The same without reading any corpus; each has another digest."""

    def inputs(self, config: Any, store: Path) -> dict[str, str]:
        return {"corpus": digest(config.data.model_dump(mode="json"))}

    def evaluations(self, config: Any, store: Path) -> list[Any]:
        return [EvaluationSpec(name, evaluation_settings(config), {"set": name}) for name in config.evaluation.sets]

    def num_params(self, config: Any) -> int:
        return num_params(config.model, 1000)

    def cost(self, config: Any) -> float:
        return self.num_params(config) * config.training.tokens_per_batch * config.training.train_steps


@pytest.mark.parametrize("others", [False, pytest.param(True, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", builtin_studies())
def test_no_cell_shows_a_setting_that_its_row_does_not_read(name: str, others: bool, tmp_path: Path) -> None:
    """The first profile of each study is tested every day, and the other profiles in nightly tests."""
    study = load_study(name)
    task = Unmeasured(task_of_study(study))
    for profile in list(study.profiles)[1:] if others else list(study.profiles)[:1]:
        plan = plan_study(study, selection(profile=profile), task, tmp_path, lambda *_: RunState("missing"))
        table = build_table(table_spec(plan, task.columns), FakeStore())
        grid = lay_out(table)
        for line in (line for line in grid.lines if line.row.outcomes):  # others are cited
            config, base = line.row.outcomes[0].run.config, line.row.key == table.base_of(line.row)
            values = dict(flatten(config))
            for head, cell in zip(grid.heads, line.cells, strict=True):
                if head.kind == "setting" and config.unread([head.key]):
                    assert cell.text == ("" if line.row.label and not base else "–"), (profile, line.name, head)
                elif head.kind == "setting":
                    shown = show(head.key, values[head.key])
                    assert cell.text in ((shown,) if base else (shown, "")), (profile, line.name, head)
