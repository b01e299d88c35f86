"""`training.compile = "auto"` gives one answer for a whole table, and `plan` prints it."""

import pytest

from ablations.planning.plan import plan_study
from ablations.study.selectors import selection
from ablations.study.study import load_study
from experiments.run_state import RunState
from experiments.tasks import compiling
from experiments.tasks.translation import TASK

AUTO = ["training.compile=auto"]
TABLE3 = load_study("table3")
RECURRENT = """
[base]
model.d_model = 8
model.num_heads = 2
[[variation]]
key = "base"
[[variation]]
key = "rnn"
[variation.set]
model.encoder = "N * (lstm, feed_forward)"
"""


@pytest.fixture
def plan_of(tmp_path):
    """Return the plan of the real task on the built-in corpus."""

    def make(study, *, profile=None, rows=None, seeds=None, sets=()):
        chosen = selection(profile, "builtin", rows, seeds, sets)
        return plan_study(study, chosen, TASK, tmp_path, lambda *_: RunState("missing"))

    return make


def compiled(plan):
    return {run.config.training.compile for run in plan.trainings}


@pytest.mark.parametrize(("profile", "answer"), [("paper", "cuda"), ("demo", False)])
def test_long_trainings_are_compiled_on_gpus_and_short_ones_nowhere(plan_of, profile, answer):
    plan = plan_of(TABLE3, profile=profile, sets=AUTO)
    assert compiled(plan) == {answer}
    (note,) = [note for note in plan.notes if "training.compile = auto" in note]
    assert f"{compiling.PAYS_FROM:.1e}" in note
    without = plan_of(TABLE3, profile=profile)
    assert [run.run_id for run in plan.runs] == [run.run_id for run in without.runs]
    assert not any("training.compile" in note for note in without.notes)


@pytest.mark.parametrize("selected", [{"rows": "A-h4"}, {"rows": "C-dmodel256"}, {"seeds": 3}])
def test_a_selection_of_rows_or_seeds_changes_no_answer(plan_of, monkeypatch, selected):
    whole = plan_of(TABLE3, profile="demo", sets=AUTO)
    costs = [run.spec.cost for run in whole.runs]
    mean = sum(costs) / len(costs)
    assert min(costs) < mean * 0.9 and max(costs) > mean * 1.1
    for pays_from, answer in ((mean * 0.999, "cuda"), (mean * 1.001, False)):
        monkeypatch.setattr(compiling, "PAYS_FROM", pays_from)
        assert compiled(plan_of(TABLE3, profile="demo", sets=AUTO, **selected)) == {answer}


def test_a_row_that_cannot_be_compiled_leaves_all_rows_as_they_are(own_study, plan_of, monkeypatch):
    monkeypatch.setattr(compiling, "PAYS_FROM", 1.0)
    study = own_study(RECURRENT)
    for rows in (None, "base"):
        plan = plan_of(study, rows=rows, sets=AUTO)
        assert compiled(plan) == {False}
        assert any("lstm of rnn" in note for note in plan.notes)
    alone = own_study(RECURRENT.partition('[[variation]]\nkey = "rnn"')[0])
    assert compiled(plan_of(alone, sets=AUTO)) == {"cuda"}
