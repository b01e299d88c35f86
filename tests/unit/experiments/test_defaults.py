"""Defaults are frozen, because run_ids contain the differences from them (they count as code: test_code_reach.py)."""

import pytest

from experiments.config.run_config import RunConfig
from experiments.dotted import defaults
from experiments.identity import digest
from experiments.tasks.parsing import ParsingConfig

# A new setting with a default of its own changes these: write the new digest here. A changed default must not.
PINNED = {RunConfig: "498ff07a929aa599", ParsingConfig: "eb8efd934c7039c8"}


@pytest.mark.parametrize("kind", PINNED)
def test_every_default_is_what_it_was(kind):
    assert digest(dict(defaults(kind))) == PINNED[kind]
