"""Outcomes and frames are found by identity, and a missing value is never a number."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from ablations.planning.declare_table import table_spec
from experiments.errors import Damaged
from experiments.events.event_log import EventWriter
from experiments.store.checksummed import write_json
from experiments.store.layout import Store
from experiments.store.results import Earlier, EvaluationResult, TrainingResult
from experiments.tasks.columns import Column, Counts
from experiments.tasks.translation import ACCURACY, PERPLEXITY
from reports.render.formats import render
from reports.results.evaluation_counts import differs, read_counts, recomputed
from reports.results.frames import frames
from reports.results.run_outcomes import collect, failures, last_failure
from reports.spec.choices import Choices
from reports.table.build import _why, build_table
from reports.table.notes import footnotes
from tests.planned_runs import with_spec


def test_frames_have_a_line_per_run_and_one_per_metric(bench):
    bench.row("base", results=[(5.0, 25.0), None], sets=("dev", "test"))
    found = frames(bench.spec(), bench.store)
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
    base, own = collect(bench.spec().runs, bench.store)
    assert base.measured("dev", "bleu") == base.measured("test", "bleu") == 25.0 and not any(base.harm.values())
    assert own.measured("dev", "bleu") is None and "has other set than the plan" in own.harm["dev"]


def test_frames_of_nothing_keep_their_columns(bench):
    bench.row("base", results=[None])
    found = frames(bench.spec(), bench.store)
    assert len(found.evaluations) == 0
    assert {"row", "set", "metric", "value"} <= set(found.evaluations.columns)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None])
def test_what_is_no_finite_number_is_not_measured(bench, value):
    bench.row("base", scored={"metrics": {"perplexity": value, "bleu": 25.0}})
    outcome = collect(bench.spec().runs, bench.store)[0]
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
    outcome = collect(bench.spec().runs, bench.store)[0]
    assert outcome.measured("dev", "bleu") is None
    assert "is damaged (metrics.perplexity: " in outcome.harm["dev"]


def test_a_score_without_its_training_is_not_measured(bench):
    bench.row("base")
    del bench.store.results["base#1"]
    assert collect(bench.spec().runs, bench.store)[0].measured("dev", "bleu") is None


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


ERRORS = Counts(("errors", "words"), lambda sums: 100 * sums[..., 0] / sums[..., 1])  # in the examples' fields
WER = Column("wer", "dev", "wer", "WER", "lower", 1, counts=ERRORS)


def examples(folder, *lines):
    (folder / ERRORS.file).write_text(
        "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    )


def test_a_score_is_computed_again_from_the_sums_of_its_counts(tmp_path):
    assert recomputed(WER, tmp_path, EvaluationResult(sentences=2)) is None  # none are kept
    examples(tmp_path, {"errors": 1, "words": 4}, {"errors": 2, "words": 2})
    assert recomputed(WER, tmp_path, EvaluationResult(sentences=2)) == 50.0
    assert recomputed(WER, tmp_path, EvaluationResult()) == 50.0
    assert recomputed(replace(WER, counts=None), tmp_path, EvaluationResult(sentences=2)) is None
    with pytest.raises(Damaged, match=r"2 sentences, result\.json says 3"):
        recomputed(WER, tmp_path, EvaluationResult(sentences=3))
    examples(tmp_path)
    assert recomputed(WER, tmp_path, EvaluationResult(sentences=3)) is None


def test_counts_are_whole_numbers_where_all_of_them_are(tmp_path):
    examples(tmp_path, {"errors": 1, "words": 4.0}, {"errors": 2, "words": 2})
    assert read_counts(tmp_path, ERRORS).dtype == np.int64
    examples(tmp_path, {"errors": 0.5, "words": 4})
    assert read_counts(tmp_path, ERRORS).tolist() == [[0.5, 4.0]]
    examples(tmp_path, {"errors": 2**53, "words": 4})
    assert read_counts(tmp_path, ERRORS).dtype == np.float64, "beyond this not every whole number is one"
    for other in ({"errors": 1}, [1, 2]):
        examples(tmp_path, other)
        assert read_counts(tmp_path, ERRORS) is None
    for damage in (
        "{\n",
        '{"errors": NaN, "words": 1}\n',
        '{"errors": "x", "words": 1}\n',
        '{"errors": [1], "words": 1}\n',
    ):
        examples(tmp_path, damage)
        with pytest.raises(Damaged):
            read_counts(tmp_path, ERRORS)


@pytest.mark.parametrize(
    ("array", "harm"),
    [(np.ones((3, 3)), True), (np.ones(6), True), (np.full((3, 2), np.inf), True), (np.ones((3, 2), bool), True),
     (np.ones((3, 2), np.int16), False)],
    ids=["wide", "flat", "infinite", "of truth", "whole"],
)  # fmt: skip
def test_an_array_of_counts_has_a_line_for_each_sentence(tmp_path, array, harm):
    counts = replace(ERRORS, file="counts.npy")
    np.save(tmp_path / "counts.npy", array)
    if harm:
        with pytest.raises(Damaged, match="does not hold 2 numbers a sentence"):
            read_counts(tmp_path, counts)
    else:
        assert read_counts(tmp_path, counts).shape == array.shape
    (tmp_path / "counts.npy").write_bytes(b"no array")
    with pytest.raises(Damaged, match="cannot be read"):
        read_counts(tmp_path, counts)


@pytest.mark.parametrize(
    ("recorded", "computed", "other"),
    [(25.0, 25.0, False), (25.0, 25.0 + 5e-7, False), (25.0, 25.0 + 2e-6, True), (1e9, 1e9 + 5e-4, False),
     (1e9, 1e9 + 2e-3, True), (None, 1.0, True), ("25", 25.0, True), (math.nan, 25.0, True), (25.0, math.nan, True),
     (-25.0, 25.0, True)],
)  # fmt: skip
def test_a_score_differs_beyond_the_rounding_of_its_sums(recorded, computed, other):
    assert differs(recorded, computed) is other


class TestEnds:
    """The last attempt that recorded its end tells how a failed run ended."""

    RUN = "a" * 16

    def attempt(self, store, *messages):
        _, folder = store.new_attempt(self.RUN)
        writer = EventWriter(folder)
        for message in messages:
            writer.emit("failed", cls="bug", message=message)
        writer.emit("trained", step=1)
        writer.close()

    def test_the_last_word_of_the_last_attempt_that_left_one(self, tmp_path):
        store = Store.open(tmp_path / "store")
        assert last_failure(store, self.RUN) is None
        self.attempt(store, "first", "second")
        self.attempt(store)
        assert last_failure(store, self.RUN) == (1, "bug", "second")
        self.attempt(store, "third")
        assert last_failure(store, self.RUN) == (3, "bug", "third")

    def test_failed_runs_have_a_message_of_bounded_length(self, bench, tmp_path):
        store = Store.open(tmp_path / "store")
        self.attempt(store, "x" * 5000)
        bench.row("base", results=[None, None], states=["failed", "missing"])
        plan = bench.plan()
        plan = replace(plan, runs=(with_spec(plan.runs[0], run_id=self.RUN), *plan.runs[1:]))
        first, second = collect(table_spec(plan).runs, bench.store)
        [(outcome, ended)] = failures([first, second], store)
        assert outcome is first and ended.message == "x" * 2000 and ended.attempt == 1
        [(_, silent)] = failures([first, second], bench.store)
        assert silent.attempt == 0 and silent.kind == ""


def test_a_metric_that_an_earlier_version_did_not_measure_is_a_gap_and_no_missing_seed(bench):
    bench.row("base", results=[(5.0, 25.0)] * 2)
    bench.row("new", results=[(5.0, 25.0)] * 2, scored={"metrics": {"perplexity": 5.0, "token_accuracy": 60.0}})
    table = build_table(bench.spec((PERPLEXITY, ACCURACY)), bench.store)
    base, new = table.rows
    assert base.measures["accuracy"].lacking == ("not measured",) * 2 and new.measures["accuracy"].mean == 60.0
    assert [row.n for row in table.rows] == [2, 2]
    assert "accuracy" not in render(table, "markdown") and "accuracy" not in render(table, "csv")
    chosen = replace(table, chosen=Choices(columns=("ppl", "accuracy")))
    chosen = replace(chosen, footnotes=footnotes(chosen))
    for name in ("accuracy % (dev)", "token_accuracy", "Accuracy.change"):
        assert [column.key for column in replace(table, chosen=Choices(columns=(name,))).listed] == ["ppl", "accuracy"]
    text = render(chosen, "markdown")
    assert "– (0/2, 2 not measured)" in text and "accuracy" in render(chosen, "csv")
    assert "accuracy % (dev): not measured by the version that evaluated base." in text


@pytest.mark.parametrize(("state", "failure", "why"), [
    ("finished", "", "not reported"), ("failed", "user_error", "failed"), ("failed", "diverged", "diverged"),
])  # fmt: skip
def test_a_metric_that_the_log_of_a_failed_run_lacks_is_missing_because_the_run_failed(state, failure, why):
    roles = SimpleNamespace(frozen_defaults=False)
    run = SimpleNamespace(state=state, config=SimpleNamespace(setting_roles=roles), spec=SimpleNamespace(imported=""))
    read = SimpleNamespace(record=EvaluationResult(metrics={"loss": 0.5}))
    outcome = SimpleNamespace(run=run, record=object(), scored={"test": read}, harm={}, failure=failure)
    assert _why(outcome, SimpleNamespace(set="test", metric="accuracy")) == why


def test_a_damaged_description_is_a_warning_and_no_gap(bench, tmp_path):
    store = Store.open(tmp_path / "store")
    run_id = "0123456789abcdef"
    bench.row("base", results=[(5.0, 25.0)])
    run = replace(with_spec(bench.plan().runs[0], run_id=run_id), evaluations=())
    store.run_folder(run_id).mkdir()
    write_json(store.run_folder(run_id) / "result.json", {"run_id": run_id, "attempt": 1})
    assert [one.undescribed for one in collect([run], store)] == [""]  # a run without description
    (store.run_folder(run_id) / "config.json").write_text("")
    [outcome] = collect([run], store)
    assert outcome.record is not None
    assert outcome.undescribed.startswith(f"runs/{run_id}/config.json is damaged")
