"""Defaults are frozen, because run_ids contain the differences from them, and count as code."""

from pathlib import Path

import pytest

from experiments.config import RunConfig, defaults
from experiments.identity import digest
from experiments.store import code
from experiments.tasks.algorithmic_config import AlgorithmicConfig
from experiments.tasks.language_config import LanguageConfig
from experiments.tasks.load import load_task
from experiments.tasks.parsing_config import ParsingConfig

# A new setting with a default of its own changes these: write the new digest here. A changed default must not.
PINNED = {RunConfig: "9da947b33fc4009b", ParsingConfig: "30f3d56323dcc334", LanguageConfig: "5345802dad855e3d"}


@pytest.mark.parametrize("kind", PINNED)
def test_every_default_is_what_it_was(kind):
    assert digest(dict(defaults(kind))) == PINNED[kind]


@pytest.mark.parametrize("name", ["translation", "parsing", "algorithmic", "language_modelling"])
@pytest.mark.parametrize("module", ["experiments.config", "model.config"])
def test_a_default_that_is_edited_makes_results_stale(monkeypatch, name, module):
    roots = load_task(name).training_code
    before, edited, read = code.code_digest(roots), code._file(module), Path.read_bytes
    default, changed = {
        "experiments.config": (b"adam_beta2: float = Field(0.98,", b"adam_beta2: float = Field(0.5,"),
        "model.config": (b"num_layers: int = Field(6,", b"num_layers: int = Field(5,"),
    }[module]

    def edit(path):
        text = read(path)
        return text.replace(default, changed) if path == edited else text

    assert default in read(edited)
    monkeypatch.setattr(Path, "read_bytes", edit)
    assert code.code_digest(roots) != before


def test_the_defaults_of_an_algorithmic_corpus_are_what_they_were():
    own = {name: value for name, value in defaults(AlgorithmicConfig).items() if name.startswith("data.")}
    assert digest(own) == "04ba14c4736f26f7"
