"""Outcomes and frames: look-ups by identity; a missing value is never a number."""

import json
import math
import subprocess
import sys

import pytest

from experiments.store.results import Earlier, TrainingResult
from reports.results.frames import frames
from reports.results.results import collect


def test_frames_have_a_line_per_run_and_one_per_metric(bench):
    bench.row("base", results=[(5.0, 25.0), None], sets=("dev", "test"))
    found = frames(bench.plan(), bench.store)
    assert list(found.runs["seed"]) == [1, 2]
    assert found.runs.loc[0, "wall_s"] == 12.5
    assert found.runs.loc[0, ["device_kind", "precision", "torch", "commit"]].tolist() == [
        "cpu", "fp32", "2.13.0", "0123456789abcdef",
    ]  # fmt: skip
    assert math.isnan(found.runs.loc[1, "wall_s"])
    assert list(found.runs["state"]) == ["finished", "missing"]
    lines = found.evaluations.set_index(["set", "metric"])["value"].to_dict()
    assert lines == {
        ("dev", "perplexity"): 5.0, ("dev", "bleu"): 25.0, ("test", "perplexity"): 5.0, ("test", "bleu"): 25.0,
    }  # fmt: skip
    assert set(found.evaluations["run_id"]) == {"base#1"}


def test_a_set_of_known_content_has_the_scores_that_were_made_under_another_name(bench):
    """Its name is no part of its identity: dev copied as test, or a renamed file."""
    inputs = {"set": "c" * 16}
    bench.row("base", sets=("dev", "test"), inputs=inputs, scored={"set": "test_2016", "inputs": inputs})
    bench.row("own", {"model.d_k": 8}, sets=("dev",), inputs={"other": "1"}, scored={"set": "test"})
    base, own = collect(bench.plan(), bench.store)
    assert base.measured("dev", "bleu") == base.measured("test", "bleu") == 25.0 and not any(base.harm.values())
    assert own.measured("dev", "bleu") is None and "has other set than the plan" in own.harm["dev"]


def test_frames_of_nothing_keep_their_columns(bench):
    bench.row("base", results=[None])
    found = frames(bench.plan(), bench.store)
    assert len(found.evaluations) == 0
    assert {"row", "set", "metric", "value"} <= set(found.evaluations.columns)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None])
def test_what_is_no_finite_number_is_not_measured(bench, value):
    bench.row("base", scored={"metrics": {"perplexity": value, "bleu": 25.0}})
    outcome = collect(bench.plan(), bench.store)[0]
    assert outcome.measured("dev", "perplexity") is None
    assert outcome.measured("dev", "bleu") == 25.0
    assert outcome.measured("dev", "unheard of") is None
    assert outcome.measured("test", "bleu") is None


@pytest.mark.parametrize(("value", "word"), [(float("nan"), "nan"), (float("inf"), "infinite"), (None, "")])
def test_the_gap_of_a_number_that_is_not_finite_names_it(bench, value, word):
    bench.row("base", scored={"metrics": {"perplexity": value, "bleu": 25.0}})
    (row,) = bench.table().rows
    assert row.measures["ppl"].lacking == (word,)


@pytest.mark.parametrize("value", ["5.0", True, []])
def test_scores_one_of_which_is_no_number_are_left_out_with_the_reason(bench, value):
    bench.row("base", scored={"metrics": {"perplexity": value, "bleu": 25.0}})
    outcome = collect(bench.plan(), bench.store)[0]
    assert outcome.measured("dev", "bleu") is None
    assert "is damaged (metrics.perplexity: " in outcome.harm["dev"]


def test_a_score_without_its_training_is_not_measured(bench):
    bench.row("base")
    del bench.store.results["base#1"]
    assert collect(bench.plan(), bench.store)[0].measured("dev", "bleu") is None


@pytest.mark.process
def test_reports_start_without_torch_mlflow_or_pandas():
    code = "import sys, json, reports.table.build, reports.render.formats; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert not {"torch", "mlflow", "pandas", "optuna"} & set(loaded)


def test_facts_of_another_type_are_left_out_and_the_others_kept(small):
    """Each fact that a child writes may be damaged in a bundle from elsewhere."""
    record = small["translation"].record("base")
    whole = TrainingResult.read(record)
    assert whole.data.train.kept == 120 and whole.versions["torch"]
    assert whole.model_dump() == TrainingResult.model_validate(record).model_dump()
    for wrong in (True, -1, [], {"a": 1}, "x", None, math.nan):
        spoilt = TrainingResult.read({**record, "step": wrong, "data": {**record["data"], "train": wrong}})
        assert spoilt.step is None and spoilt.data.train.kept is None
        assert (spoilt.data.corpus, spoilt.versions) == (whole.data.corpus, whole.versions)
    assert TrainingResult.read({**record, "step": 3, "earlier_attempts": [7, {"seconds": 2.0}]}).earlier_attempts == [
        Earlier(seconds=2.0)
    ]
