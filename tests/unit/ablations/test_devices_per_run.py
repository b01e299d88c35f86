"""The number of devices of Table 3's rows with `auto`, and the values of the option."""

import pytest

from ablations.planning.plan import plan_study
from ablations.planning.planned import RunState
from ablations.service.selected import device_count
from ablations.study.selectors import selection
from ablations.study.study import load_study
from experiments.errors import UserError
from experiments.jobs.devices.sharing import devices_per_run, simulate
from experiments.tasks.translation import TASK


@pytest.fixture(scope="module")
def table3(tmp_path_factory):
    """(row, seed) → predicted cost, of the paper's sizes with two seeds."""
    chosen, store = selection("paper", None, None, 2, ()), tmp_path_factory.mktemp("store")
    plan = plan_study(load_study("table3"), chosen, TASK, store, lambda run_id, eval_ids: RunState("missing"))
    return {f"{run.row}-{run.seed}": run.cost for run in plan.runs}


@pytest.mark.parametrize("devices", [8, 16])
def test_big_gets_more_where_it_would_outlast_all_others(table3, devices):
    one_seed = {name: cost for name, cost in table3.items() if name.endswith("-1")}
    for costs in (one_seed, table3):
        wide = devices_per_run(costs, devices)
        narrow, wider = (
            max(simulate(costs, {**dict.fromkeys(costs, 1), **some}, devices).values()) for some in ({}, wide)
        )
        assert wide and max(wide, key=wide.__getitem__).startswith("big")
        assert wider < 0.8 * narrow


def test_on_one_device_nothing_is_shared(table3):
    assert devices_per_run(table3, 1) == {}


@pytest.mark.parametrize(("text", "count"), [("1", 1), ("4", 4), ("auto", 0)])
def test_what_the_option_says(text, count):
    assert device_count(text) == count


@pytest.mark.parametrize("text", ["0", "-1", "two", ""])
def test_what_the_option_may_not_say(text):
    with pytest.raises(UserError, match="--devices-per-run"):
        device_count(text)
