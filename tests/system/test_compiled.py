"""With `training.compile`, batches that are padded to a few shapes give the same numbers as batches of any shape."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from experiments.attempt_context import AttemptContext
from experiments.config.run_config import RunConfig
from experiments.data.shapes import MOST_SHAPES
from experiments.device_spec import DeviceSpec
from experiments.run_spec import RunSpec
from experiments.store.layout import Store
from experiments.store.spec import AttemptSpec
from experiments.tasks.base import Task
from experiments.tasks.load import load_task
from experiments.tasks.translation import TASK
from experiments.training import state

SETTINGS: dict[str, Any] = {
    "model": {"num_layers": 2, "d_model": 16, "d_ff": 32, "num_heads": 2, "d_k": 8, "d_v": 8, "dropout": 0.0},
    "data": {"vocab_size": 300, "builtin_pairs": 200},
    "training": {"train_steps": 10, "warmup_steps": 20, "tokens_per_batch": 3000, "precision": "fp32",
                 "learning_rate_scale": 0.1, "eval_steps": 5},
}  # fmt: skip


TEXT: dict[str, Any] = {
    **SETTINGS,
    "data": {"units": "byte", "window": 32, "builtin_pairs": 200},
    "training": {**SETTINGS["training"], "label_smoothing": 0.0},
}


def _train(
    store: Store, name: str, task: Task = TASK, of: dict[str, Any] = SETTINGS, **settings: Any
) -> tuple[dict[int, float], dict[str, Any]]:
    config = task.config_type.from_mapping({**of, "training": {**of["training"], **settings}})
    folder = store.root / name
    folder.mkdir()
    losses: dict[int, float] = {}

    def emit(kind: str, **fields: Any) -> None:
        if kind == "metrics" and fields["step"] % 10 == 0 and "loss" in fields["metrics"]:
            losses[fields["step"]] = fields["metrics"]["loss"]

    inputs = task.inputs(config, store.root)
    attempt = AttemptSpec(RunSpec(name, {}, inputs), str(store.root), 1, DeviceSpec())
    facts = task.train(config, AttemptContext(attempt, folder, emit, lambda: False))
    return losses, facts


@pytest.mark.nightly
def test_padded_shapes_and_graphs_change_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # torch traces the graphs and their backward passes; only code generation is skipped, because it takes minutes
    monkeypatch.setattr(state, "compile_layers", partial(state.compile_layers, backend="aot_eager"))
    store = Store.open(tmp_path / "store")
    TASK.prepare(RunConfig(**SETTINGS), store.root, lambda *_: None)
    free, plain = _train(store, "free")
    fixed, facts = _train(store, "fixed", compile=True)
    assert list(free) == [10]
    assert fixed == pytest.approx(free, rel=1e-5)
    assert (plain["compiled"], facts["compiled"]) == (False, True)
    assert facts["batches"]["shapes"] <= MOST_SHAPES
    assert plain["batches"]["padding"] <= facts["batches"]["padding"]
    assert facts["target_tokens"] == plain["target_tokens"]


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.extra("language_models")
def test_a_compiled_language_model_has_the_same_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "compile_layers", partial(state.compile_layers, backend="aot_eager"))
    store = Store.open(tmp_path / "store")
    language = load_task("language_modelling")
    language.prepare(language.config_type.from_mapping(TEXT), store.root, lambda *_: None)
    free, plain = _train(store, "free", language, TEXT)
    fixed, facts = _train(store, "fixed", language, TEXT, compile=True)
    assert list(free) == [10]
    assert fixed == pytest.approx(free, rel=1e-5)
    assert (plain["compiled"], facts["compiled"]) == (False, True)
    assert facts["target_tokens"] == plain["target_tokens"]
