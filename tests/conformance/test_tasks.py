"""Tests of the task contract (experiments/tasks/base.py), for every task. A new task adds a function to CASES."""

import json
import math
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ablations.service.selected import task_of_study
from ablations.study.study import load_study
from experiments.attempt_context import AttemptContext
from experiments.config.task_config import TaskConfig
from experiments.device_spec import DeviceSpec
from experiments.dotted import nested
from experiments.errors import Preempted
from experiments.identity import eval_identity, run_identity
from experiments.run_spec import RunSpec
from experiments.store.layout import Store
from experiments.store.spec import AttemptSpec
from experiments.tasks.base import Task
from experiments.tasks.load import load_task

ROOT = Path(__file__).parents[2]


@dataclass
class Case:
    """A task, settings that train within a second, and the call of `should_stop` that first returns True."""

    task: Task
    settings: dict[str, Any] = field(default_factory=dict)
    asked_before_stop: int = 3

    def config(self, seed: int = 1) -> TaskConfig:
        values = nested(self.settings) | {"task": "conformance", "seed": seed}
        return self.task.config_type.model_validate_json(json.dumps(values))


def translation(tmp_path: Path) -> Case:
    return Case(
        load_task("translation"),
        {
            "model.num_layers": 1, "model.d_model": 8, "model.d_ff": 16, "model.num_heads": 2, "model.d_k": 4,
            "model.d_v": 4, "data.vocab_size": 200, "data.builtin_pairs": 300, "training.train_steps": 6,
            "training.tokens_per_batch": 400, "training.checkpoint_steps": 2, "training.precision": "fp32",
            "evaluation.beam_size": 2, "evaluation.max_extra_length": 3,
        },
    )  # fmt: skip


def characters(tmp_path: Path) -> Case:
    made = translation(tmp_path)
    del made.settings["data.vocab_size"]  # does not apply to characters
    return Case(made.task, {**made.settings, "data.units": "char", "model.shared_vocabulary": False})


def parsing(tmp_path: Path) -> Case:
    return Case(
        load_task("parsing"),
        {
            "model.num_layers": 1, "model.d_model": 8, "model.d_ff": 16, "model.num_heads": 2, "model.d_k": 4,
            "model.d_v": 4, "data.vocab_size": 120, "data.target_vocab_size": 64, "data.builtin_pairs": 300,
            "training.train_steps": 6, "training.tokens_per_batch": 400, "training.checkpoint_steps": 2,
            "training.precision": "fp32", "evaluation.beam_size": 2, "evaluation.max_extra_length": 3,
        },
    )  # fmt: skip


def algorithmic(tmp_path: Path) -> Case:
    return Case(
        load_task("algorithmic"),
        {
            "model.num_layers": 1, "model.d_model": 8, "model.d_ff": 16, "model.num_heads": 2, "model.d_k": 4,
            "model.d_v": 4, "data.algorithm": "dyck", "data.builtin_pairs": 300, "data.set_pairs": 20,
            "training.train_steps": 6, "training.tokens_per_batch": 400, "training.checkpoint_steps": 2,
            "training.precision": "fp32",
        },
    )  # fmt: skip


OWN = """
import random
from dataclasses import dataclass
from ablations_task import column, task

@dataclass
class Settings:
    steps: int = 6

@task(Settings, steps="steps", columns=[column("distance", set="dev"), column("distance")])
def TASK(settings, context):
    start, position = 0, 0.0
    if context.resume:
        start, position = (float(word) for word in (context.resume / "state").read_text().split())
    for step in range(int(start) + 1, settings.steps + 1):
        position += random.Random(f"{context.seed} {step}").random()
        context.log(step, distance=position)
        if step % 4 == 0 or context.should_stop():
            with context.checkpoint(step) as folder:
                (folder / "state").write_text(f"{step} {position!r}")
    context.examples("test", [{"case": n, "distance": position} for n in range(3)])
    return {"dev": {"distance": position}, "test": {"distance": position + 1}}
"""


def own(tmp_path: Path) -> Case:
    (tmp_path / "walk_of_conformance.py").write_text(OWN)
    return Case(load_task("walk_of_conformance:TASK", str(tmp_path)))


SCRIPT = """
import json, pathlib, random, sys, time
folder, seed, size = pathlib.Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
state = folder / "state"
start, position = json.loads(state.read_text()) if state.exists() else (0, 0.0)
for step in range(start + 1, 13):
    time.sleep(0.05)
    position += size * random.Random(f"{seed} {step}").random()
    (folder / "new").write_text(json.dumps([step, position]))
    (folder / "new").replace(state)
    print(json.dumps({"step": step, "distance": position, "checkpoint": True}))
print(json.dumps({"distance": position}))
"""
COMMAND = """
name = "walk"
title = "A walk by command"
command = "{python} walk.py {{folder}} {{seed}} {{size}}"
base = {{size = 2.0}}
metric = [{{name = "distance"}}]
variation = [{{key = "base"}}]
"""


def command(tmp_path: Path) -> Case:
    (tmp_path / "walk.py").write_text(SCRIPT)
    (tmp_path / "walk.toml").write_text(COMMAND.format(python=sys.executable))
    return Case(task_of_study(load_study(str(tmp_path / "walk.toml"))), asked_before_stop=2)


def example(tmp_path: Path) -> Case:
    study = load_study(str(ROOT / "examples" / "personality" / "personality.toml"))
    return Case(task_of_study(study), study.profiles["short"].set)


CASES: list[Any] = [
    *(translation, own, command),
    pytest.param(algorithmic, marks=pytest.mark.extra("algorithmic")),
    pytest.param(parsing, marks=pytest.mark.extra("parsing")),
    *(pytest.param(case, marks=pytest.mark.nightly) for case in (characters, example)),
]


class Bench:
    """One case with a store, in which attempts run as in a child."""

    def __init__(self, case: Case, store: Store) -> None:
        self.case, self.task, self.store = case, case.task, store
        self.events: list[dict[str, Any]] = []
        self.number = 0

    def attempt(self, seed: int = 1, stop: bool = False, earlier: tuple[Path, ...] = ()) -> tuple[Path, dict[str, Any]]:
        """Train in a new folder and return it with the task's facts. The task's errors are raised."""
        self.number += 1
        folder = self.store.root / "runs" / f"attempt-{self.number}"
        folder.mkdir()
        config = self.case.config(seed)
        context = self.context(config, folder, Countdown(self.case.asked_before_stop if stop else None), earlier)
        return folder, self.task.train(config, context)

    def context(
        self, config: TaskConfig, folder: Path, should_stop: Any = lambda: False, earlier: tuple[Path, ...] = ()
    ) -> AttemptContext:
        inputs = self.task.inputs(config, self.store.root)
        attempt = AttemptSpec(
            RunSpec(run_identity(config, inputs), {}, inputs), str(self.store.root), 1, DeviceSpec("cpu", 1),
            earlier=tuple(map(str, earlier)),
        )  # fmt: skip
        code = self.task.training_code(self.store.root)
        return AttemptContext(attempt, folder, self.emit, should_stop, code_digest=code)

    def emit(self, kind: str, **fields: Any) -> None:
        json.dumps(fields)
        self.events.append({"kind": kind, **fields})

    def prepare(self) -> dict[str, Any]:
        return self.task.prepare(self.case.config(), self.store.root, lambda *_: None)

    def scores(self, weights: Path, seed: int = 1) -> dict[str, dict[str, float]]:
        """Evaluate the weights and return the metrics by set. Each evaluation has a separate folder."""
        config, found = self.case.config(seed), {}
        for spec in self.task.evaluations(config, self.store.root):
            folder = weights / "evaluations" / eval_identity("0" * 16, spec.settings, spec.inputs)
            folder.mkdir(parents=True, exist_ok=True)
            made = self.task.evaluate(config, spec, weights, folder, self.context(config, weights))
            json.dumps(made)
            found[spec.set] = dict(made["metrics"])
        return found


class Countdown:
    def __init__(self, left: int | None) -> None:
        self.left = left

    def __call__(self) -> bool:
        if self.left is None:
            return False
        self.left -= 1
        return self.left <= 0


@pytest.fixture(scope="class", params=CASES, ids=lambda case: case.__name__)
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    made = Bench(request.param(tmp_path_factory.mktemp("task")), Store.open(tmp_path_factory.mktemp("store") / "store"))
    made.prepare()
    return made


@pytest.fixture(scope="class")
def whole(bench: Bench) -> tuple[Path, dict[str, Any]]:
    """Return the folder and the facts of an undisturbed training."""
    return bench.attempt()


class TestTask:
    def test_planning_gives_the_same_answers_again(self, bench: Bench) -> None:
        task, config, root = bench.task, bench.case.config(), bench.store.root
        assert run_identity(config, task.inputs(config, root)) == run_identity(config, task.inputs(config, root))
        specs = task.evaluations(config, root)
        assert specs and len({spec.set for spec in specs}) == len(specs)
        assert specs == task.evaluations(config, root)
        assert task.cost(config) >= 0 and (task.num_params(config) or 1) > 0

    def test_a_configuration_survives_the_way_to_the_child(self, bench: Bench) -> None:
        config = bench.case.config(3)
        again = bench.task.config_type.model_validate_json(json.dumps(config.model_dump(mode="json")))
        assert again == config and again.seed == 3
        assert run_identity(again, {}) == run_identity(config, {}) != run_identity(bench.case.config(4), {})

    def test_every_column_has_a_set_and_a_key_of_its_own(self, bench: Bench) -> None:
        columns = bench.task.columns
        assert columns and len({column.key for column in columns}) == len(columns)
        # the direction of a metric of a user's trainer is known only if the metric's name implies it
        directions = ("lower", "higher", *([""] if bench.task.folder else []))
        assert all(column.better in directions and column.digits >= 0 for column in columns)

    def test_preparing_twice_is_preparing_once(self, bench: Bench) -> None:
        assert bench.prepare() == bench.prepare()

    def test_the_code_is_known(self, bench: Bench) -> None:
        assert all(bench.task.code.values()) and tuple(bench.task.code) == bench.task.evaluation_parts
        assert bench.task.training_code(bench.store.root) == bench.task.training_code(bench.store.root)

    def test_training_reports_and_keeps_to_its_folder(self, bench: Bench, whole: tuple[Path, dict[str, Any]]) -> None:
        folder, facts = whole
        json.dumps(facts)
        assert (folder / "final").is_dir()
        assert {path.name for path in (bench.store.root / "runs").iterdir()} >= {folder.name}
        assert any(event["kind"] == "metrics" and isinstance(event["step"], int) for event in bench.events)

    def test_every_promised_metric_is_a_number(self, bench: Bench, whole: tuple[Path, dict[str, Any]]) -> None:
        scores = bench.scores(whole[0])
        for column in bench.task.columns:
            for name in [column.set] if column.set != "*" else []:
                assert math.isfinite(scores[name][column.metric])

    def test_stopped_and_resumed_is_undisturbed(self, bench: Bench, whole: tuple[Path, dict[str, Any]]) -> None:
        number = bench.number + 1
        with pytest.raises(Preempted):
            bench.attempt(stop=True)
        before = bench.store.root / "runs" / f"attempt-{number}"
        kept = sorted(str(path) for path in before.rglob("*"))
        again, _ = bench.attempt(earlier=(before,))
        assert bench.scores(again) == bench.scores(whole[0])
        assert sorted(str(path) for path in before.rglob("*")) == kept  # earlier attempts are not changed

    def test_the_seed_decides(self, bench: Bench, whole: tuple[Path, dict[str, Any]]) -> None:
        assert bench.scores(bench.attempt()[0]) == bench.scores(whole[0])
        assert bench.scores(bench.attempt(seed=2)[0], seed=2) != bench.scores(whole[0])
