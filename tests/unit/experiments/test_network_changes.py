"""Changes of networks are refused if they are not installed, do not work, or do not apply to users' functions."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ablations.service.choose_run import _recorded_config
from ablations.study.overrides import check_names, setting_names
from experiments.attempt_context import AttemptContext
from experiments.child.evaluations import Evaluations
from experiments.config import network_change
from experiments.config.network_change import NetworkChange, changes_of, installed_changes, with_changes
from experiments.config.run_config import RunConfig
from experiments.device_spec import DeviceSpec
from experiments.errors import UserError
from experiments.evaluation.export import FORMAT, exported_config
from experiments.events.event_log import EventWriter, read_events
from experiments.run_spec import EvaluationSpec, RunSpec
from experiments.store.checksummed import write_json
from experiments.store.layout import Store
from experiments.store.results import TrainingResult
from experiments.store.spec import AttemptSpec
from experiments.tasks.load import load_task, validated
from experiments.tasks.own.settings_type import config_type_of
from experiments.tasks.translation import Translation
from model.extensions import ExtensionError

SIZES = {"d_model": 8, "num_heads": 2}
MISSING = "No installed extra or package has the setting"


class Scale(NetworkChange):
    kind = float
    default = 0.0

    def apply(self, value: Any, model: Any, batches: Any, *, saved: Any, seed: Any) -> dict[str, Any]:
        raise NotImplementedError


class ForFunctions(Scale):
    client = Path(__file__).parent


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    changes: dict[str, Any] = {}

    def load(name: str) -> Any:
        if isinstance(changes[name], Exception):
            raise changes[name]
        return changes[name]

    monkeypatch.setattr(network_change, "added", lambda kind: {name: name for name in changes})
    monkeypatch.setattr(network_change, "load", load)
    return changes


class Counting(Translation):
    """A translation task whose parts only count their calls."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.config_type = with_changes(RunConfig)

    def evaluation_settings(self, config: Any) -> dict[str, Any]:
        return {**super().evaluation_settings(config), "signature": "of the scores"}

    def likelihood(self, *_: Any) -> dict[str, Any]:
        self.made.append("likelihood")
        return {"metrics": {"perplexity": 2.0}}

    def decode(self, *_: Any) -> dict[str, Any]:
        self.made.append("decode")
        return {"metrics": {}}

    def score(self, *_: Any) -> dict[str, Any]:
        self.made.append("score")
        return {"metrics": {"bleu": 1.0}}


def evaluate(folder: Path, specs: list[EvaluationSpec]) -> tuple[list[str], list[str]]:
    """Return the parts that are made and the evaluations that are stored, even if one evaluation fails."""
    store, task = Store.open(folder / "store"), Counting()
    config: Any = task.config_type.from_mapping({"model": SIZES})
    attempt = AttemptSpec(RunSpec("a" * 16, {}, {}), str(store.root), 1, DeviceSpec())
    context = AttemptContext(attempt, folder, lambda *_, **__: None, lambda: False)
    evaluations = Evaluations(config, task, folder, context, EventWriter(folder), dict.fromkeys(task.code, "1"))
    try:
        evaluations.make(specs, {})
    finally:
        stored = [event["set"] for event in read_events(folder) if event["kind"] == "evaluated"]
        ids = {spec.eval_id for spec in specs if spec.set in stored}
        assert {path.name for path in folder.glob("evaluations/*")} == ids
    return task.made, stored


def scored(settings: Mapping[str, Any], name: str) -> EvaluationSpec:
    own = Counting()
    config: Any = own.config_type.from_mapping({"model": SIZES, "evaluation": settings})
    return EvaluationSpec(name, own.evaluation_settings(config), {"set": "c" * 16}).named("a" * 16)


def test_an_evaluation_with_a_change_that_is_not_here_fails_and_the_others_are_made(
    tmp_path: Path, declared: dict[str, Any]
) -> None:
    """Otherwise the unchanged network would be scored under the changed row's name."""
    declared["scale"] = Scale()
    average = {"checkpoint": "average:2", "coverage_penalty": 0.2}
    specs = [scored({}, "dev"), scored({"scale": 0.5}, "changed"), scored(average, "average")]
    made, stored = evaluate(tmp_path / "with", specs)
    assert stored == ["dev", "changed", "average"] and made.count("decode") == 3
    declared.clear()
    with pytest.raises(UserError, match=rf"evaluation of changed .*setting scale.*{MISSING} evaluation\.scale"):
        evaluate(tmp_path / "without", specs)
    assert evaluate(tmp_path / "base", [specs[0], specs[2]])[1] == ["dev", "average"]
    declared["scale"] = ExtensionError("The installed package sizes does not work: no torch")
    with pytest.raises(UserError, match="package sizes does not work"):
        evaluate(tmp_path / "broken", specs[1:2])


def test_a_run_that_was_trained_with_a_change_that_is_not_here_is_refused(
    tmp_path: Path, declared: dict[str, Any]
) -> None:
    plain = {"task": "translation", "model": SIZES}
    changed = {**plain, "scale": 0.5, "evaluation": {"scale": 0.5}}

    def read(config: dict[str, Any]) -> list[Any]:
        """Return the settings of a run in the store, and of an exported model."""
        write_json(tmp_path / "config.json", {"format": FORMAT, "config": config})
        result = TrainingResult(spec=RunSpec("a" * 16, config, {}))
        return [_recorded_config("a" * 16, result), exported_config(tmp_path, RunConfig, "translation")]

    declared["scale"] = Scale()
    assert [changes_of(config) for config in read(changed)] == [{"scale": 0.5}] * 2
    declared.clear()
    assert [config.model.d_model for config in read(plain)] == [8, 8]
    result = TrainingResult(spec=RunSpec("a" * 16, changed, {}))
    with pytest.raises(UserError, match=rf"^The run a+ was trained with the setting scale\. {MISSING} scale"):
        _recorded_config("a" * 16, result)
    write_json(tmp_path / "config.json", {"format": FORMAT, "config": {**plain, "scale": 0.5}})
    with pytest.raises(UserError, match=rf"^The exported model .* was trained with the setting scale\. {MISSING}"):
        exported_config(tmp_path, RunConfig, "translation")
    with pytest.raises(UserError, match=MISSING):
        validated(load_task("translation"), RunSpec("a" * 16, changed, {}))


def test_a_change_without_a_client_is_no_setting_of_users_functions(declared: dict[str, Any]) -> None:
    declared.update(scale=Scale(), prune=ForFunctions())
    kind = with_changes(config_type_of({"name": "Settings", "fields": []}, lambda values: None))
    assert set(kind.network_changes) == {"prune"}
    assert changes_of(kind.from_mapping({"prune": 0.5})) == {"prune": 0.5}
    with pytest.raises(UserError, match="there is no setting scale"):
        check_names(["scale"], setting_names(kind), "the row")
    assert set(with_changes(RunConfig).network_changes) == {"scale", "prune"}


def test_a_change_with_the_name_of_a_clients_module_is_refused_where_it_is_used(declared: dict[str, Any]) -> None:
    """A trainer's process would import that module in place of the change's."""
    declared.update(trainer=ForFunctions(), prune=ForFunctions())
    assert set(installed_changes()) == {"prune"}
    with pytest.raises(UserError, match=r"there is no setting trainer\. .* has the name of a module of ablations_task"):
        check_names(["trainer"], setting_names(with_changes(RunConfig)), "the row")
