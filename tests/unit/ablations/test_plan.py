"""Tests of the plan: stable identities, notes, and the output of `plan --json`."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ablations.planning.plan import of_added, plan_as_json, plan_study
from ablations.study.selectors import Selection
from ablations.study.study import Study, load_study
from experiments.errors import UserError
from experiments.identity import ParentRun, of_imported, run_identity, with_members, with_parent_run
from experiments.run_state import RunState
from tests.planned_runs import with_spec, with_state

TABLE3 = load_study("table3")
BASE = '[[variation]]\nkey = "base"\n'


def test_run_id_of_base_is_frozen(plan_of):
    (run,) = plan_of(TABLE3, profile="paper", rows="base").runs
    assert run.run_id == "c83167f3deb05984", (
        "The identity of the paper's base has changed: a default of RunConfig or the way identities are made is not "
        "what it was. Every run of every store that users have would be trained again. Undo that; a new setting takes "
        "a default under which nothing changes."
    )


def test_same_run_is_one_run_whatever_the_study_calls_it(own_study, plan_of):
    mine = own_study(
        "[[variation]]\nkey = 'four'\ngroup = 'G'\nlabel = 'x'\n"
        "set = {model.d_v = 128, model.d_k = 128, model.num_heads = 4}\n"
    )
    (ours,), (theirs,) = plan_of(mine).runs, plan_of(TABLE3, profile="paper", rows="A-h4").runs
    assert (ours.run_id, ours.eval_ids) == (theirs.run_id, theirs.eval_ids)


def test_all_identities_of_the_table_differ(plan_of):
    for profile in TABLE3.profiles:
        runs = plan_of(TABLE3, profile=profile, seeds=3).runs
        assert len({run.run_id for run in runs}) == len(runs) == 60
        evaluated = [e for run in runs for e in run.eval_ids]
        assert len(set(evaluated)) == len(evaluated) >= 60


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(TABLE3.variations))
def test_order_of_rows_changes_no_identity(task, order):
    def ids(study: Study) -> dict[tuple[str, int], str]:
        plan = plan_study(study, Selection(seeds=2), task, Path("unused"), lambda *_: RunState("missing"))
        return {(run.row, run.seed): run.run_id for run in plan.runs}

    assert ids(TABLE3.model_copy(update={"variations": tuple(order)})) == ids(TABLE3)


def test_seeds_differ_in_nothing_but_the_seed(plan_of):
    first, second = plan_of(TABLE3, rows="A-h4", seeds=2).runs
    assert (first.seed, second.seed) == (first.config.seed, second.config.seed) == (1, 2)
    assert first.config.model_copy(update={"seed": 2}) == second.config
    assert first.run_id != second.run_id


def test_run_id_is_that_of_its_configuration(plan_of):
    for run in plan_of(TABLE3, seeds=2, rows="A,base").runs:
        assert run.run_id == run_identity(run.config, run.spec.inputs)


def test_rows_that_differ_in_decoding_share_one_training(own_study, plan_of):
    study = own_study("".join(f"[[variation]]\nkey = 'b{k}'\nset = {{evaluation.beam_size = {k}}}\n" for k in (1, 4)))
    one, four = plan_of(study).runs
    assert one.run_id == four.run_id
    assert one.eval_ids != four.eval_ids


def test_another_corpus_is_another_run(plan_of):
    here, there = (plan_of(TABLE3, rows="base", corpus=c).runs[0] for c in ("builtin", "/x"))
    assert here.run_id != there.run_id


def test_inputs_are_asked_once_per_corpus(own_study, plan_of, task):
    plan_of(TABLE3, seeds=3)
    assert task.asked_inputs == ["builtin"]
    plan_of(own_study(BASE + "[[variation]]\nkey = 'x'\nset = {data.corpus = '/x'}\n"), seeds=3)
    assert task.asked_inputs[1:] == ["builtin", "/x"]


def test_replaced_values_are_said(own_study, plan_of):
    profile = '[profile.short]\nset = {training.train_steps = 6}\nnotes = ["Of the profile."]\n'
    long = '[[variation]]\nkey = "long"\nset = {training.train_steps = 9, model.dropout = 0.3}\n'
    assert plan_of(own_study(BASE + profile + long), profile="short").notes == (
        'profile "short" sets training.train_steps = 6 in every row, also in long (declares 9).',
        "Of the profile.",
    )
    assert plan_of(TABLE3, profile="paper").notes == ()
    (note,) = plan_of(TABLE3, profile="paper", rows="base,A", sets=["model.num_heads=2"]).notes
    assert note == (
        "--set sets model.num_heads = 2 in every row, also in A-h1 (declares 1), A-h4 (declares 4), "
        "A-h16 (declares 16), A-h32 (declares 32)."
    )


def test_value_replaced_by_itself_is_not_worth_a_note(plan_of):
    assert plan_of(TABLE3, profile="paper", rows="base,A-h4", sets=["model.num_heads=4"]).notes == ()


def test_rows_that_differ_in_nothing_that_counts_are_refused(own_study, plan_of, mistake):
    study = own_study(BASE + "[[variation]]\nkey = 'x'\nset = {training.checkpoint_steps = 7}\n")
    text = mistake(plan_of, study)
    assert 'the rows "base" and "x" are the same run' in text
    assert "training.checkpoint_steps" in text


def test_state_is_looked_up_by_run_and_its_evaluations(task):
    asked = []

    def state_of(run_id: str, eval_ids: list[str], *_: object) -> RunState:
        asked.append((run_id, eval_ids))
        return RunState("stale", ("score",))

    chosen = Selection(rows=("base",), overrides={"evaluation.sets": ["dev", "test2016"]})
    (run,) = plan_study(TABLE3, chosen, task, Path("unused"), state_of).runs
    assert (run.state, run.store_state.stale) == ("stale", ("score",))
    assert asked == [(run.run_id, run.eval_ids)]
    assert [e.set for e in run.evaluations] == ["dev", "test2016"]
    assert len(set(run.eval_ids)) == 2


def test_json_is_the_contract(plan_of):
    entries = json.loads(json.dumps(plan_as_json(plan_of(TABLE3, rows="base,A-h1", profile="paper")), allow_nan=False))
    assert {"row", "group", "seed", "run_id", "num_params", "overrides", "paper", "state"} <= set(entries[0])
    base, one_head = entries
    assert base["paper"] == {"perplexity": 4.92, "bleu": 25.8, "params": 65, "flops": None}
    assert one_head["paper"] == {"perplexity": 5.29, "bleu": 24.9, "params": None, "flops": None}
    assert one_head["overrides"] == {"model.num_heads": 1, "model.d_k": 512, "model.d_v": 512}
    assert (one_head["row"], one_head["group"], one_head["seed"], one_head["state"]) == ("A-h1", "A", 1, "missing")
    assert one_head["num_params"] == base["num_params"] == 63_082_496


@pytest.mark.parametrize("more", [{"sets": ["training.train_steps=20"]}, {"corpus": "/letters"}])
def test_what_a_profile_says_of_itself_is_not_said_of_other_settings_or_corpora(plan_of, more):
    own = TABLE3.profiles["demo"].notes
    assert own and not set(own) & set(plan_of(TABLE3, profile="demo", **more).notes)


def test_an_imported_row_is_named_by_its_place_and_costs_nothing_here(own_study, plan_of):
    """Whatever its settings: how it was trained and decoded elsewhere is not known."""
    text = BASE + '[[variation]]\nkey = "theirs"\nimported = true\nset = {model.d_k = 8}\n'
    base, one, other = plan_of(own_study(text), seeds=2).runs[0], *plan_of(own_study(text), rows="theirs", seeds=2).runs
    changed = plan_of(own_study(text.replace("d_k = 8", "d_k = 16")), rows="theirs", seeds=2).runs
    assert (one.spec.cost, one.spec.num_params, one.spec.imported, base.spec.imported) == (0.0, None, True, False)
    assert base.spec.cost > 0 and one.spec.inputs == other.spec.inputs == of_imported("mine", "theirs")
    assert one.run_id != other.run_id == run_identity(other.config, other.spec.inputs)
    assert {spec.set: dict(spec.settings) for spec in one.evaluations} == {
        evaluation.set: {"imported": evaluation.set} for evaluation in base.evaluations
    }
    assert all(dict(evaluation.inputs) == {} for evaluation in one.evaluations)
    assert [run.spec.inputs for run in changed] == [one.spec.inputs, other.spec.inputs]


def test_equal_rows_are_refused_only_where_they_share_a_seed(own_study, plan_of):
    twice = BASE + '[[variation]]\nkey = "again"\nset = {model.d_k = 64}\n'
    with pytest.raises(UserError, match="share seed 1"):
        plan_of(own_study(twice))
    first, second = plan_of(own_study(twice + "seed_offset = 5\n"), seeds=1).runs
    assert (first.seed, second.seed) == (1, 6) and first.run_id != second.run_id
    with pytest.raises(UserError, match="share seed 2"):
        plan_of(own_study(twice + "seed_offset = 1\n"), seeds=2)


def test_what_a_run_trains_itself(plan_of):
    """An ensemble trains no steps, and a branch trains the steps after its parent run's step."""
    (run,) = plan_of(TABLE3, profile="paper", rows="base").runs
    steps = run.config.training.train_steps
    assert run.spec.own_steps == steps
    assert with_spec(run, inputs=with_members(run.spec.inputs, ["a" * 16])).spec.own_steps == 0
    assert (
        with_spec(run, inputs=with_parent_run(run.spec.inputs, ParentRun("a" * 16, 300))).spec.own_steps == steps - 300
    )


def test_runs_that_were_trained_without_a_setting_are_told_once_a_row(plan_of):
    one, two = plan_of(TABLE3, profile="paper", rows="base", seeds=2).runs
    done = [
        with_state(replace(run, added={"size": 2.0}), state=state) for run, state in ((one, "finished"), (two, "stale"))
    ]
    assert of_added(done) == ["base: trained before size existed; counted as size = 2.0."]
    assert of_added([replace(one, added={"size": 2.0}), with_state(two, state="finished")]) == []
