"""Tests of rows that are ensembles: identities, settings, members and refusals."""

import pytest

from ablations.planning.plan import plan_as_json
from ablations.planning.resolve import resolve
from ablations.study.selectors import selection
from ablations.study.study import load_study
from experiments.identity import NO_SEED, members_in, run_identity, with_members, without_runs
from experiments.tasks.load import load_task

STUDY = """
[base]
training = {train_steps = 600}

[profile.small]
scale = {width = 0.5}

[[variation]]
key = "base"

[[variation]]
key = "wide"
set = {model.d_ff = 4096}
by_profile.small = {model.d_ff = 512}

"""


def ensemble(of="base", seeds="[1, 2, 3]", more="", key="three"):
    return f'[[variation]]\nkey = "{key}"\nensemble = {{of = "{of}", seeds = {seeds}}}\n{more}\n'


def test_its_identity_is_a_function_of_its_members(own_study, plan_of):
    plan = plan_of(own_study(STUDY + ensemble()), seeds=3)
    runs = {(run.row, run.seed): run for run in plan.runs}
    three, trained = runs["three", NO_SEED], [runs["base", seed] for seed in (1, 2, 3)]
    assert three.spec.members == tuple(sorted(run.run_id for run in trained))
    assert [run.run_id for run in plan.members] == [run.run_id for run in trained]  # nothing is trained twice
    assert three.run_id == run_identity(three.config, with_members(trained[0].spec.inputs, three.spec.members))
    assert three.run_id not in three.spec.members and members_in(trained[0].spec.inputs) == ()
    assert without_runs(three.spec.inputs) == trained[0].spec.inputs
    again = plan_of(own_study(STUDY + ensemble(seeds="[3, 1, 2]", key="other"))).runs[-1]
    assert again.run_id == three.run_id and again.eval_ids == three.eval_ids
    fewer = plan_of(own_study(STUDY + ensemble(seeds="[1, 2]"))).runs[-1]
    assert fewer.run_id != three.run_id


def test_decoding_changes_its_evaluations_and_none_of_its_members(own_study, plan_of):
    more = 'set = {evaluation.checkpoint = "average:5", evaluation.beam_size = 1, training.keep_checkpoints = 5}'
    plain = plan_of(own_study(STUDY + ensemble()))
    other = plan_of(own_study(STUDY + ensemble(more=more)))
    assert other.runs[-1].run_id == plain.runs[-1].run_id and other.runs[-1].spec.members == plain.runs[-1].spec.members
    assert other.runs[-1].eval_ids != plain.runs[-1].eval_ids
    assert {spec.settings["checkpoint"] for run in other.members for spec in run.read_by} == {"average:5"}
    assert all(not run.evaluations for run in other.members)


@pytest.mark.parametrize("profile", ["small", None])
def test_it_has_the_settings_of_its_members_row_in_every_profile(own_study, plan_of, profile):
    plan = plan_of(own_study(STUDY + ensemble(of="wide", more="by_profile.small = {evaluation.beam_size = 2}")))
    wide, three = (next(run for run in plan.runs if run.row == key) for key in ("wide", "three"))
    assert three.config.model == wide.config.model and three.config.training == wide.config.training
    assert three.spec.num_params == 3 * wide.spec.num_params
    assert three.planned_row.overrides.keys() - wide.planned_row.overrides.keys() <= {"evaluation.beam_size"}
    assert {run.row for run in plan.members} == {"wide"}


def test_it_has_one_entry_whatever_the_number_of_seeds(own_study, plan_of):
    plan = plan_of(own_study(STUDY + ensemble(seeds="[7, 9]")), seeds=2)
    assert [(run.row, run.seed) for run in plan.trainings] == [
        ("base", 1), ("base", 2), ("wide", 1), ("wide", 2), ("three", NO_SEED), ("base", 7), ("base", 9),
    ]  # fmt: skip
    assert plan_of(own_study(STUDY + ensemble()), rows="three").runs[0].seed == NO_SEED


def test_a_study_whose_first_row_is_an_ensemble_still_has_its_base(own_study):
    assert own_study(ensemble() + '[[variation]]\nkey = "base"').base_row.key == "base"


@pytest.mark.extra("bundles")
def test_a_plan_is_read_back_from_json_with_its_members(own_study, plan_of):
    from ablations.extras.bundles.plan_file import plan_from_json, plan_to_json

    plan = plan_of(own_study(STUDY + ensemble()), rows="three")
    again = plan_from_json(plan_to_json(plan))
    assert [(run.row, run.seed, run.run_id, run.config) for run in again.trainings] == [
        (run.row, run.seed, run.run_id, run.config) for run in plan.trainings
    ]
    assert again.members_of(again.runs[0])
    assert [len(line["members"]) for line in plan_as_json(plan)] == [3, 0, 0, 0]


def builtin_rows(study, profile):
    return {row.variation.key: row for row in resolve(study, selection(profile=profile), load_task("translation"))}


@pytest.mark.parametrize("profile", ["paper", "demo", "small"])
def test_the_study_averaging_differs_in_checkpoints_and_members_alone(profile):
    study = load_study("averaging")
    rows = builtin_rows(study, profile)
    assert {row.config.model_dump_json(exclude={"evaluation", "seed"}) for row in rows.values()} == {
        rows["single"].config.model_dump_json(exclude={"evaluation", "seed"})
    }
    assert {key: row.config.evaluation.checkpoint for key, row in rows.items()} == {
        "single": "last", "average5": "average:5", "average20": "average:20",
        "ensemble3": "last", "ensemble3-average5": "average:5",
    }  # fmt: skip
    kept = rows["single"].config.training
    assert kept.keep_checkpoints == 20 and 20 * kept.checkpoint_steps < kept.train_steps
    assert study.base_row is not None and study.base_row.key == "single"
    if profile == "paper":
        assert rows["single"].config == builtin_rows(load_study("table2"), profile)["base-en-de"].config.model_copy(
            update={"training": kept, "evaluation": rows["single"].config.evaluation}
        )


@pytest.mark.parametrize(
    ("rows", "part"),
    [
        (ensemble(of="bas"), 'row "three", ensemble: the row of = "bas" does not exist. Nearest rows: base'),
        (ensemble() + ensemble(of="three", key="more"), 'of = "three" is an ensemble itself'),
        (ensemble(of="three"), 'of = "three" is an ensemble itself'),
        (ensemble(seeds="[]"), "ensemble, seeds: it is empty: name the members' seeds"),
        (ensemble(seeds="[1, 2, 1]"), "ensemble, seeds: a seed is listed twice"),
        (ensemble(seeds="[1, -2]"), "it must be at least 1"),
        (ensemble(seeds="[0, 1]"), "it must be at least 1"),
        (ensemble(seeds='"1, 2"'), "expected a list"),
        (ensemble(seeds='["1"]'), "expected an integer"),
        (ensemble(more="set = {training.train_steps = 9}"), "cannot set training.train_steps"),
        (ensemble(more="fixed = {data.vocab_size = 9}"), "cannot set data.vocab_size"),
        (ensemble(more="by_profile.small = {model.d_ff = 9}"), "cannot set model.d_ff"),
        (ensemble(more="seeds = 3"), "leave out `seeds` and `seed_offset`"),
        (ensemble().replace('"base"', '["base", "wide"]'), "different vocabularies cannot be averaged"),
        (ensemble().replace("seeds", "seed"), "unknown key `seed`; did you mean `seeds`"),
        (ensemble().replace(', seeds = [1, 2, 3]', ""), "seeds: it is missing"),
    ],
)  # fmt: skip
def test_mistakes_are_named(own_study, mistake, rows, part):
    assert part in mistake(own_study, STUDY + rows)


def test_mistakes_that_the_plan_sees(own_study, plan_of, task, mistake):
    twice = own_study(STUDY + ensemble() + ensemble(key="again"))
    assert '"three" and "again" have equal settings' in mistake(plan_of, twice)
    assert "share their members" in mistake(plan_of, twice)
    task.ensembles = False
    assert "the task translation has no ensembles" in mistake(plan_of, own_study(STUDY + ensemble()))
    assert plan_of(own_study(STUDY + ensemble()), rows="base").runs
