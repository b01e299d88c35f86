"""Defaults are frozen, because run_ids contain the differences from them (they count as code: test_code_reach.py)."""

import pytest

from experiments.config.run_config import RunConfig
from experiments.dotted import defaults
from experiments.identity import digest
from experiments.tasks.algorithmic import AlgorithmicConfig
from experiments.tasks.language_modelling import LanguageConfig
from experiments.tasks.parsing import ParsingConfig

# A new setting with a default of its own changes these: write the new digest here. A changed default must not.
PINNED = {RunConfig: "02a366ee2ec77995", ParsingConfig: "67af6bccc1ecf894", LanguageConfig: "a4a1ab36d71d889e"}


@pytest.mark.parametrize("kind", PINNED)
def test_every_default_is_what_it_was(kind):
    assert digest(dict(defaults(kind))) == PINNED[kind]


def test_the_defaults_of_an_algorithmic_corpus_are_what_they_were():
    own = {name: value for name, value in defaults(AlgorithmicConfig).items() if name.startswith("data.")}
    assert digest(own) == "04ba14c4736f26f7"
