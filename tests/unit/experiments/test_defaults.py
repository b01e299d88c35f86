"""Defaults must not change, because run_ids contain the settings that differ from them."""

from experiments.config.run_config import RunConfig
from experiments.dotted import defaults
from experiments.identity import digest

# A new or removed setting changes this: write the new digest here. A changed default must not.
PINNED = "893d1fbe8f7243fc"


def test_every_default_is_what_it_was():
    assert digest(dict(defaults(RunConfig))) == PINNED
