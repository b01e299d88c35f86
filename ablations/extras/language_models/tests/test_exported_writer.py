"""A language model in one folder: what reads it, and what refuses it."""

import json

import pytest
import torch

from ablations.extras.language_models.sampler import Choice, Sampler
from ablations.extras.language_models.task import TASK, LanguageConfig
from experiments.data.encoding.tokenizer import Tokenizer, train_tokenizer
from experiments.device_spec import DeviceSpec
from experiments.errors import UserError
from experiments.evaluation.export import export
from experiments.evaluation.translator import Translator
from experiments.training.checkpoint import add_file, model_tensors, save_weights
from model.network import build_model

USE = TASK.use.readme
MODEL = {"num_layers": 2, "d_model": 16, "d_ff": 64, "num_heads": 4, "d_k": 4, "d_v": 4, "norm": "sandwich"}


def test_the_folder_continues_text_and_is_told_from_others(tmp_path):
    config = LanguageConfig.model_validate({"model": MODEL, "data": {"units": "byte", "window": 32}, "seed": 3})
    attempt = tmp_path / "attempt"
    attempt.mkdir()
    train_tokenizer([], config.data, attempt / "bytes.model", "the text")
    content = (attempt / "bytes.model").read_bytes()
    torch.manual_seed(0)
    model = build_model(config.model, Tokenizer(content).vocab_size)
    save_weights(attempt / "final", model_tensors(model), {})
    add_file(attempt / "final", "tokenizer.model", content)
    export(config, attempt, tmp_path / "model", run_id="0" * 16, choice="last", facts={}, use=USE)
    choice = Choice(temperature=0)
    expected = Sampler.of_run(config, attempt, DeviceSpec()).sample("The", 20, choice)
    assert Sampler.load(tmp_path / "model").sample("The", 20, choice) == expected
    assert "Sampler.load" in (tmp_path / "model" / "README.md").read_text()
    with pytest.raises(UserError, match="Name a new folder"):
        export(config, attempt, tmp_path / "model", run_id="0" * 16, choice="last", facts={}, use=USE)
    with pytest.raises(UserError, match="language_modelling, not of translation"):
        Translator.load(tmp_path / "model")
    with pytest.raises(UserError, match="is not an exported model"):
        Sampler.load(attempt)
    (attempt / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(UserError, match="is damaged"):
        Sampler.load(attempt)
