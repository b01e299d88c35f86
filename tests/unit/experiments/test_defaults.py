"""Defaults are frozen, because run_ids contain the differences from them (they count as code: test_code_reach.py)."""

from experiments.config.run_config import RunConfig
from experiments.dotted import defaults
from experiments.identity import digest

# A new setting with a default of its own changes this: write the new digest here. A changed default must not.
PINNED = "498ff07a929aa599"


def test_every_default_is_what_it_was():
    assert digest(dict(defaults(RunConfig))) == PINNED
