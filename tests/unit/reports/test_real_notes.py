"""Footnotes and warnings about how numbers were made, from records written by real children."""

import json
import math
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ablations.cli.ui import _table as view
from ablations.service.choose_run import Named, find_trained
from ablations.service.selected import Selectors
from experiments.data.batching import BatchPlan
from experiments.data.encoding.encoded import open_encoded
from experiments.store import provenance, results
from experiments.store.checksummed import read_json, write_json
from experiments.store.record_base import Facts
from experiments.store.results import EvaluationResult, Imported, TrainingResult
from model.config import ModelConfig
from model.cost import forward_flops
from reports.audit.explain import as_text, explain
from reports.audit.verify import SUFFIXES, verify
from reports.render.formats import RENDERERS, render
from reports.render.setup import checklist, paragraph
from reports.results.run_outcomes import failures
from reports.table.cost import by_time, counted, training_seconds
from tests.unit.reports.real import Made, said, write

KINDS: list[Any] = [
    *("translation", "ensembles", "own", "command"),
    pytest.param("language", marks=pytest.mark.extra("language_models")),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("format_", RENDERERS)
def test_every_format_prints_the_table_of_every_task(small, kind, format_):
    table = small[kind].table()
    text = render(table, format_)
    assert "None" not in text and len(text) > 100
    if format_ in SUFFIXES.values():
        verdict = verify(text, table, format_)
        assert verdict.same and verdict.cells >= 2 * len(table.rows)


@pytest.mark.parametrize("kind", KINDS)
def test_every_row_can_be_explained(small, kind):
    table = small[kind].table()
    for row in table.rows:
        text = as_text(explain(table, row.key))
        assert all(outcome.run.run_id in text for outcome in row.outcomes)


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_made_alike_has_no_warning(small, kind):
    table = small[kind].table()
    assert table.warnings == () or kind == "translation"
    assert not failures(table.outcomes, small[kind].chosen().store)


def test_notes_of_data(small):
    table = small["translation"].table()
    assert said(table, "Corpus: letters (", "), en–de, 120 training pairs, 120 pieces of vocabulary")
    assert said(table, "unknown pieces in train: source 0.00%, target 0.00%")
    assert said(table, "Evaluated: dev (20 sentences, 3 of them also in train), test (10 sentences, 0 of them")
    assert not said(table, str(small["translation"].study.parent.parent))


def test_notes_of_training_and_software(small):
    table = small["translation"].table()
    assert said(table, "Training of base: 7 steps, 300 tokens per batch and side at most, 10 steps of warm-up.")
    assert said(
        table,
        "Settings of base (defaults in parentheses): ",
        "training.learning_rate_scale 0.4 (1.0)",
        "data.vocab_size 120 (37000)",
    )
    assert said(table, "learned: model.positions learned")
    (software,) = said(table, "Software: python")
    assert all(f"{name} {version}" in software for name, version in provenance.versions(provenance.PACKAGES).items())
    assert said(small["own"].table(), "Settings of base: learning_rate 0.5, steps 200, bias yes.")
    assert said(small["own"].table(), "Software: python") and not said(small["command"].table(), "Software")
    assert said(small["command"].table(), "Settings of base: command python3 walk.py", "depth.n 2")


def test_notes_of_a_users_metric_say_nothing_of_word_pieces(small):
    assert said(small["translation"].table(), "Perplexity: unsmoothed, per piece")
    own = small["own"].table()
    assert not said(own, "piece") and not said(own, "Corpus")


def test_a_row_in_another_precision_is_warned_of(small):
    (warning,) = small["translation"].table().warnings
    assert warning == "The rows mix 2 precisions of training: fp32 (base, learned); bf16 (bf16)."
    assert small["translation"].table(rows="base,learned").warnings == ()


def test_evaluations_in_int8_of_version_0_1_0_stay_aside(small, tmp_path):
    """No row has their settings; weights of a run whose record has them can be used."""
    made = small["translation"].copied(tmp_path / "other")
    before = render(made.table(), "csv")
    (outcome,) = made.table(rows="base").rows[0].outcomes
    home = made.store / "runs" / outcome.run.run_id
    for number, scored in enumerate(outcome.scored.values()):
        eval_id = f"{number:016x}"
        folder = shutil.copytree(home / "evaluations" / scored.spec.eval_id, home / "evaluations" / eval_id)
        settings = {**scored.record.settings, "precision": "int8"}
        scored.record.write(folder / "result.json", eval_id=eval_id, settings=settings, precision="int8")
    usual = outcome.record.config["evaluation"]
    config = {**outcome.record.config, "evaluation": {**usual, "precision": "int8"}}
    outcome.record.write(home / "result.json", spec={**outcome.record.content["spec"], "config": config})
    write_json(home / "config.json", {**read_json(home / "config.json"), "config": config})
    assert render(made.table(), "csv") == before
    found = find_trained(Named(run=outcome.run.run_id), Selectors(store=made.store)).config.evaluation
    assert found.model_dump(mode="json") == {**usual, "precision": "fp32"}


@pytest.mark.process
def test_a_perplexity_over_other_pieces_is_not_compared(small, tmp_path):
    made = small["translation"].copied(tmp_path / "other")
    made.study.write_text(made.study.read_text() + '\n[[variation]]\nkey = "pieces"\nset = {data.vocab_size = 140}\n')
    made.run(rows="pieces")
    table = made.table(rows="base,pieces")
    assert said(table, "The rows mix 2 tokenizers: ", "(base);", "(pieces).")
    assert said(table, "PPL (dev) was measured over different tokens", "changes from base are left out")
    changes = {name: measure.change for name, measure in table.rows[1].measures.items()}
    assert changes["ppl"] is None and changes["bleu"] is not None


def test_seeds_are_counted_and_tested(small):
    table = small["own"].table()
    assert said(table, "n = 3 seeds; base: 5 seeds.")
    assert said(table, "Values over several seeds are mean ± sample standard deviation.")
    assert said(table, "Dunnett") and said(table, "with 80 % power")
    one = small["translation"].table()
    assert said(one, "One seed: no significance test (needs 3 or more).")
    assert said(one, "n = 1 seed.") and not said(one, "±")
    assert said(small["translation"].table("seeds"), "PPL (dev): no significance test", "one seed per row")


def test_a_column_that_is_not_tested_between_sentences_says_so(small):
    table = small["translation"].table("sentences")
    assert said(table, "p < .05 against base, between sentences")
    assert said(table, "PPL (dev): no test between sentences")
    assert said(small["own"].table("sentences", rows="data"), "base is not in the table")


def test_operations_are_counted_from_the_pairs_that_were_seen(small):
    made = small["translation"]
    table = made.table()
    for key, row in made.rows().items():
        record, config = row.outcomes[0].record.content, row.outcomes[0].run.config
        weights = json.loads(
            (made.store / "runs" / record["spec"]["run_id"] / "attempts/0001/final/meta.json").read_text()
        )
        assert record["target_tokens"] == weights["target_tokens"], key  # added up step by step, in the loop
        pairs = open_encoded(made.store / "corpora", record["data"]["encoded"]).train
        lengths = pairs["source"].lengths.tolist(), pairs["target"].lengths.tolist()
        plan, flops = BatchPlan(*lengths, 300, config.seed), 0.0
        for step in range(7):
            flops += sum(3 * forward_flops(config.model, 120, *(side[i] for side in lengths)) for i in plan.batch(step))
        assert counted(row, table) == record["flops"] == flops
        assert not math.isclose(flops, row.outcomes[0].run.spec.cost, rel_tol=0.01)  # the forecast
    assert "| 3.3e18 |" in render(made.table(), "markdown")


def at_rates(table, rates):
    return replace(table, spec=replace(table.spec, sustained_flops=rates))


def test_cost_by_time_is_time_times_devices_times_rate(small):
    table = small["translation"].table()
    row, record = table.rows[0], table.rows[0].outcomes[0].record
    assert record is not None and record.train_s is not None
    assert by_time(row, table) == pytest.approx(record.train_s * 1e9)
    assert by_time(row, at_rates(table, {})) is None
    for devices, share in ((8, 1.0), (1, 1 / 3)):  # no GPUs here: what a child on them writes
        other = replace(row.outcomes[0], record=record.model_copy(update={"devices": devices, "device_share": share}))
        of_others = replace(row, outcomes=(other,))
        assert by_time(of_others, at_rates(table, {"(1 thread)": 1e9})) == pytest.approx(
            record.train_s * 1e9 * devices * share
        )


def test_rows_that_are_not_trained_have_no_cost(small, tmp_path):
    table = at_rates(Made(small["translation"].study, tmp_path / "empty").table(), {"": 1.0})
    assert (counted(table.rows[0], table), by_time(table.rows[0], table)) == (None, None)


def test_an_empty_store_is_described_by_its_plan(small, tmp_path):
    for kind in small:
        table = Made(small[kind].study, tmp_path / kind).table()
        assert "took" not in paragraph(table) and dict(checklist(table))["Runtime"] == "not recorded"
        assert said(table, "–: not available, in") and not said(table, "Trained on")


@pytest.mark.slow
def test_an_edited_trainer_makes_rows_stale_and_a_mixture(small, tmp_path):
    made = small["own"].copied(tmp_path / "edited")
    with (made.study.parent / "mine_task.py").open("a") as text:
        text.write("\n\nassert True\n")
    assert said(made.table(), "kept (†): base, without-bias, data-noise0.0, data-noise1.0")
    assert said(made.table(), "†: trained or scored by other code")
    made.run(rows="data-noise0.0", stale="rerun")
    assert said(made.table(), "Different code made these rows (", "mine_task.py", "; data-noise0.0.")
    assert said(made.table(), "kept (†): base, without-bias, data-noise1.0.")


@pytest.mark.slow
def test_versions_of_what_a_trainer_imports_are_named_and_compared(small, tmp_path, monkeypatch):
    made = small["own"].copied(tmp_path / "versions")
    trainer = made.study.parent / "mine_task.py"
    trainer.write_text(trainer.read_text().replace("import math\n", "import math\nimport wobble\n\nassert wobble\n", 1))
    for version, row in (("1.0", "base"), ("2.5", "without-bias")):
        folder = tmp_path / version
        write(
            folder / f"wobble-{version}.dist-info",
            {"METADATA": f"Metadata-Version: 2.1\nName: wobble\nVersion: {version}\n"},
        )
        write(folder, {"wobble.py": ""})
        with monkeypatch.context() as patch:
            patch.setenv("PYTHONPATH", str(folder), prepend=":")
            patch.syspath_prepend(str(folder))
            made.run(rows=row, stale="rerun")
    table = made.table(rows="base,without")
    assert said(table, "The rows mix 2 versions of wobble in training: 1.0 (base); 2.5 (without-bias).")
    assert said(table, "Software: python", "wobble 1.0; python", "wobble 2.5")


KILLED = """
import os, signal, time
from dataclasses import dataclass
from ablations_task import column, task

@dataclass
class Settings:
    steps: int = 6
    size: float = 1.0

@task(Settings, steps="steps", continues=True, columns=[column("loss", better="lower")])
def TASK(settings, context):
    start = int((context.resume / "state").read_text()) if context.resume else 0
    for step in range(start + 1, settings.steps + 1):
        time.sleep(0.2)
        context.log(step, loss=1.0)
        with context.checkpoint(step) as folder:
            (folder / "state").write_text(str(step))
        if step in (2, 4) and start < step - 1:
            os.kill(os.getpid(), signal.SIGKILL)
    return {"loss": settings.size}
"""
KILLED_STUDY = """
name = "killed"
title = "Killed twice"
task = "killed:TASK"

[[variation]]
key = "base"
paper = {flops = 1.0}
"""


@pytest.fixture
def killed(tmp_path):
    folder = write(tmp_path / "killed", {"killed.toml": KILLED_STUDY, "killed.py": KILLED})
    return Made(folder / "killed.toml", folder / "store").run()


@pytest.mark.slow
def test_training_time_is_that_of_all_attempts(killed):
    record, table = killed.record("base"), killed.table()
    ends = [part["ended"] for part in record["earlier_attempts"]]
    assert ends and set(ends) == {"killed"} and record["attempt"] == len(ends) + 1
    lost = sum(part["seconds"] for part in record["earlier_attempts"])
    assert record["train_s"] == pytest.approx(record["wall_s"] + lost, abs=0.01)
    assert lost >= 0.2 * len(ends) and record["train_s"] >= 6 * 0.2  # six steps at least, of 0.2 s
    assert training_seconds(table.rows[0].outcomes[0]) == record["train_s"]
    assert by_time(table.rows[0], at_rates(table, {"(1 thread)": 2.0})) == pytest.approx(2 * record["train_s"])
    found = dict(checklist(table))
    assert f"in {len(ends)} attempt" in found["Runtime"] and "ended early" in found["Exact number of training runs"]


@pytest.mark.slow
def test_a_run_that_continues_a_shorter_one_says_so(killed):
    killed.study.write_text(KILLED_STUDY + '\n[[variation]]\nkey = "longer"\nset = {steps = 8}\n')
    killed.run()
    record, table = killed.record("longer"), killed.table()
    assert record["continues"] == {"run_id": killed.record("base")["spec"]["run_id"], "step": 4}
    assert by_time(table.rows[1], at_rates(table, {"(1 thread)": 1.0})) is None
    assert said(table, "By time is blank for longer")
    assert "1 run continued a shorter one" in dict(checklist(table))["Runtime"]


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    return subprocess.run(["git", "-C", folder, *identity, *words], capture_output=True, check=True, text=True).stdout


@pytest.mark.slow
def test_the_code_that_trained_is_the_users_repository(small, tmp_path):
    made = small["own"].copied(tmp_path / "our-paper")
    folder, trainer = made.study.parent, made.study.parent / "mine_task.py"
    git(folder, "init", "-q")
    (folder / ".gitignore").write_text("store\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    commit = git(folder, "rev-parse", "HEAD")[:10]
    with trainer.open("a") as text:
        text.write("\n\nassert True\n")
    made.run(rows="data-noise0.0", stale="rerun")
    record = made.record("data-noise0.0")
    kept = made.store / "runs" / record["spec"]["run_id"] / "attempts" / f"{record['attempt']:04d}" / "uncommitted.diff"
    assert "+assert True" in kept.read_text() and record["revision"]["repository"] == "our-paper"
    (code,) = said(made.table(rows="data-noise0.0"), "Code: ")
    assert f"our-paper, commit {commit} with uncommitted changes (kept beside the run) (" in code
    assert f"run by transformer-ablations {provenance.tool()['version']}" in code
    assert said(small["translation"].table(), f"Code: transformer-ablations {provenance.tool()['version']}")


def test_counts_of_many_pairs_are_the_sum_over_each():
    config = ModelConfig(num_layers=2, d_model=8, d_ff=16, num_heads=2, d_k=4, d_v=4)
    import numpy as np

    source, target = np.array([1, 5, 9]), np.array([2, 7, 4])
    one_by_one = [forward_flops(config, 50, s, t) for s, t in zip(source.tolist(), target.tolist(), strict=True)]
    assert forward_flops(config, 50, source, target).tolist() == one_by_one


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.process
def test_the_page_and_the_view_are_made_for_every_task(small, kind):
    chosen, table = small[kind].chosen(), small[kind].table()
    files = view(chosen, chosen.plan, table).files
    assert {"table.html", "setup.md", "table.md", "effects.svg"} <= set(files)
    assert all(row.key.encode() in files["table.html"] for row in table.rows)


def test_every_field_of_a_record_is_written_by_some_child(small):
    """If no record had the field, for example under another name, the note would never be printed."""
    written: set[str] = set()
    for kind in small:
        for row in small[kind].table().rows:
            for outcome in row.outcomes:
                for record in (outcome.record, *(scored.record for scored in outcome.scored.values())):
                    record.check(built_in=kind not in ("own", "command"))
                    written |= _fields(record)
    named = {*_named(TrainingResult), *_named(EvaluationResult)}
    # Tests of their own have: runs of several attempts, renewed evaluations, branches (test_branches.py), imported runs
    # (test_external_runs.py), and metrics that are read from kept logs or are lacking there (test_kept_metrics.py).
    assert named - written == {
        "TrainingResult.imported", *_named(Imported),
        "Earlier.attempt", "Earlier.seconds", "Earlier.ended", "EvaluationResult.renews",
        "TrainingResult.base_files", "EvaluationResult.lacking", "EvaluationResult.readings",
        "TrainingResult.parent_run", "ParentRunRecord.run_id", "ParentRunRecord.step", "ParentRunRecord.weights",
    }  # fmt: skip


def _fields(facts: Facts) -> set[str]:
    found = {f"{type(facts).__name__}.{name}" for name in facts.model_fields_set & type(facts).model_fields.keys()}
    for value in vars(facts).values():
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
        found |= {name for item in inner if isinstance(item, Facts) for name in _fields(item)}
    return found


def _named(kind: type[Facts]) -> set[str]:
    found = {f"{kind.__name__}.{name}" for name in kind.model_fields}
    for field in kind.model_fields.values():
        for part in re.findall(r"results\.(\w+)", str(field.annotation)):
            found |= _named(getattr(results, part))
    return found
