"""Fixtures: a task that trains nothing, and short forms of studies."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ablations.planning.match import matched
from ablations.planning.plan import Plan, plan_study
from ablations.planning.resolve import PlannedRow, resolve
from ablations.study.selectors import selection
from ablations.study.study import Study, load_study
from experiments.config.network_change import with_changes
from experiments.config.run_config import RunConfig
from experiments.errors import UserError
from experiments.run_spec import EvaluationSpec
from experiments.run_state import RunState
from experiments.tasks.base import Task
from experiments.tasks.columns import Column
from experiments.tasks.translation import SequenceTask
from experiments.training.warm_start import why_no_branch
from model.cost import num_params

HEAD = 'name = "mine"\ntitle = "A study of mine"\n'


class FakeTask(Task):
    """The planning half of translation, with a corpus whose digest is zeros. It counts look-ups."""

    name = "translation"
    config_type = with_changes(RunConfig)
    inputs_read = ("data.",)
    ensembles = True
    init_stats = SequenceTask.init_stats
    columns = (
        Column("ppl", "dev", "perplexity", "PPL", "lower", 2, "perplexity"),
        Column("accuracy", "dev", "token_accuracy", "accuracy", "higher", 1, optional=True),
        Column("bleu", "dev", "bleu", "BLEU", "higher", 1, "bleu"),
    )

    def __init__(self) -> None:
        self.asked_inputs: list[str] = []

    def inputs(self, config: RunConfig, store: Path) -> dict[str, str]:
        self.asked_inputs.append(config.data.corpus)
        return {"corpus": "0" * 16 if config.data.corpus == "builtin" else "1" * 16}

    def evaluations(self, config: RunConfig, store: Path) -> list[EvaluationSpec]:
        settings = config.evaluation.model_dump(mode="json", exclude={"sets"})
        return [EvaluationSpec(name, settings, {"set": name}) for name in config.evaluation.sets]

    def num_params(self, config: RunConfig) -> int:
        return num_params(config.model, config.data.vocab_size)

    def cost(self, config: RunConfig) -> float:
        return float(config.model.d_model * config.training.train_steps)

    def not_a_branch(self, parent_run: RunConfig, config: RunConfig, step: int) -> str:
        return why_no_branch(parent_run, config, step)

    def prepare(self, *arguments: Any) -> dict[str, Any]:
        raise AssertionError("planning prepares nothing")

    def train(self, *arguments: Any) -> dict[str, Any]:
        raise AssertionError("planning trains nothing")

    def evaluate(self, *arguments: Any) -> dict[str, Any]:
        raise AssertionError("planning evaluates nothing")


@pytest.fixture
def task() -> FakeTask:
    return FakeTask()


@pytest.fixture
def own_study(tmp_path: Path) -> Callable[[str], Study]:
    """Return a function that makes a study from a file's text and adds name and title."""

    def write(text: str) -> Study:
        path = tmp_path / "mine.toml"
        path.write_text(HEAD + text, encoding="utf-8")
        return load_study(str(path))

    return write


@pytest.fixture
def rows_of(task: FakeTask) -> Callable[..., dict[str, PlannedRow]]:
    """Return a function that resolves rows by key. Its keywords are the command line's options."""

    def rows(study: Study, **options: Any) -> dict[str, PlannedRow]:
        study, _ = matched(study, selection(**options), task)
        return {row.variation.key: row for row in resolve(study, selection(**options), task)}

    return rows


@pytest.fixture
def plan_of(task: FakeTask) -> Callable[..., Plan]:
    def plan(study: Study, **options: Any) -> Plan:
        return plan_study(study, selection(**options), task, Path("unused"), lambda *_: RunState("missing"))

    return plan


@pytest.fixture
def mistake() -> Callable[..., str]:
    """Return a function that calls a function and returns the message of its UserError, which must be one paragraph."""

    def call(function: Callable[..., Any], *arguments: Any, **keywords: Any) -> str:
        with pytest.raises(UserError) as caught:
            function(*arguments, **keywords)
        text = str(caught.value)
        assert "\n" not in text
        assert "  " not in text
        return text

    return call
