"""Tests of `context.ablate` when no extra that changes networks is installed."""

from pathlib import Path
from typing import cast

import pytest
from torch import nn

from experiments.client.ablations_task.trainer import Channel, RunContext


def test_without_the_extra_a_network_stays_as_it_is_and_the_log_names_what_is_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    context = RunContext(1, "cpu", 1, Path(), None, cast("Channel", None))
    network = nn.Linear(8, 2)
    assert context.ablate(network) is network and context._facts == {"num_params": 18}
    assert "ablations/extras/module_rows" in capsys.readouterr().err
