"""Tests of rows that branch from another row: identities, settings, parent runs and refusals."""

import pytest

from ablations.planning.plan import plan_as_json
from ablations.service.enqueue import wanted
from ablations.service.forecast import step_cost
from ablations.study.study import load_study
from experiments.identity import ParentRun, run_identity, with_parent_run, without_runs
from experiments.tasks.base import Task

STUDY = """
[base]
training = {train_steps = 600}

[profile.exact]

[profile.small]
scale = {width = 0.5, steps = 0.5}

[profile.short]
set = {training.train_steps = 60}

[[variation]]
key = "base"

[[variation]]
key = "wide"
set = {model.d_ff = 4096}
by_profile.small = {model.d_ff = 512}

"""


def branch(start='row = "base", step = 300', more="set = {training.label_smoothing = 0.3}", key="smooth"):
    return f'[[variation]]\nkey = "{key}"\nfrom = {{{start}}}\n{more}\n'


def runs_of(plan):
    return {(run.row, run.seed): run for run in plan.runs}


def test_its_identity_is_a_function_of_parent_run_step_and_settings(own_study, plan_of):
    plan = plan_of(own_study(STUDY + branch()), seeds=3)
    runs = runs_of(plan)
    for seed in (1, 2, 3):
        base, smooth = runs["base", seed], runs["smooth", seed]
        assert smooth.spec.parent_run == ParentRun(base.run_id, 300) and smooth.seed == smooth.config.seed == seed
        assert smooth.run_id == run_identity(smooth.config, with_parent_run(base.spec.inputs, smooth.spec.parent_run))
        assert smooth.run_id != run_identity(smooth.config, base.spec.inputs), (
            "never that of a row trained from the start"
        )
        assert without_runs(smooth.spec.inputs) == base.spec.inputs and base.spec.parent_run is None
    names = {
        plan_of(own_study(text)).runs[-1].run_id
        for text in (
            STUDY + branch(),
            STUDY + branch(start='row = "base", step = 299'),
            STUDY + branch(more="set = {training.label_smoothing = 0.2}"),
            STUDY.replace("600", "700")
            + branch(more="set = {training.label_smoothing = 0.3, training.train_steps = 600}"),
            STUDY + branch(more=""),
            STUDY,
        )
    }
    assert len(names) == 6


def test_rows_from_the_start_keep_their_identities(own_study, plan_of):
    alone = plan_of(own_study(STUDY)).runs
    beside = plan_of(own_study(STUDY + branch())).runs
    assert [run.run_id for run in alone] == [run.run_id for run in beside[:2]]
    assert [run.eval_ids for run in alone] == [run.eval_ids for run in beside[:2]]
    assert [run.kept_at for run in alone] == [(), ()] and [run.kept_at for run in beside[:2]] == [(300,), ()]


def test_it_has_the_settings_of_its_parent_run_and_its_own(own_study, plan_of):
    wide = branch(start='row = "wide", step = 300')
    for profile in ("small", None):
        runs = runs_of(plan_of(own_study(STUDY + wide), profile=profile))
        parent_run, smooth = runs["wide", 1].config, runs["smooth", 1].config
        assert smooth.model == parent_run.model and smooth.data == parent_run.data
        assert smooth.training == parent_run.training.model_copy(update={"label_smoothing": 0.3})


def test_profiles_scale_its_step_as_they_scale_train_steps(own_study, plan_of):
    study = own_study(STUDY + branch(start='row = "base", step = 300, by_profile = {short = 25}'))
    steps = {
        name: runs_of(plan_of(study, profile=name))["smooth", 1].spec.parent_run.step for name in ("small", "short")
    }  # fmt: skip
    assert steps == {"small": 150, "short": 25}
    run = runs_of(plan_of(study, profile="short"))["smooth", 1]
    assert (run.spec.own_steps, run.spec.cost) == (
        35,
        pytest.approx(35 / 60 * runs_of(plan_of(study, profile="short"))["base", 1].spec.cost),
    )


def test_only_its_own_steps_are_forecast(own_study, plan_of):
    runs = runs_of(plan_of(own_study(STUDY + branch())))
    base, smooth = runs["base", 1], runs["smooth", 1]
    assert (base.spec.own_steps, smooth.spec.own_steps) == (600, 300)
    assert step_cost(base) == step_cost(smooth) and smooth.spec.cost == base.spec.cost / 2


def test_it_has_its_parent_runs_seeds(own_study, plan_of):
    text = STUDY.replace('key = "wide"', 'key = "wide"\nseeds = 2\nseed_offset = 10')
    plan = plan_of(own_study(text + branch(start='row = "wide", step = 300')))
    assert [run.seed for run in plan.runs if run.row == "smooth"] == [11, 12]
    assert [run.run_id for run in plan.members] == [run.run_id for run in plan.runs if run.row == "wide"]


def test_a_parent_run_that_is_no_row_of_the_table_is_planned_too(own_study, plan_of):
    study = own_study(STUDY + branch() + branch(key="later", start='row = "base", step = 500', more=""))
    plan = plan_of(study, rows="smooth", seeds=2)
    assert [(run.row, run.seed) for run in plan.trainings] == [
        ("smooth", 1), ("smooth", 2), ("base", 1), ("base", 2),
    ]  # fmt: skip
    whole = runs_of(plan_of(study, seeds=2))
    for parent_run in plan.members:
        assert parent_run.run_id == whole["base", parent_run.seed].run_id
        assert (parent_run.kept_at, parent_run.read_at, parent_run.evaluations) == ((300, 500), (300,), ())
    assert wanted(plan, "keep") == [*plan.runs, *plan.members]
    assert [run.kept_at for run in plan_of(study, rows="base").runs] == [(300, 500)], "also of rows not selected"


@pytest.mark.extra("bundles")
def test_a_plan_is_read_back_from_json_with_its_parent_runs(own_study, plan_of):
    from ablations.extras.bundles.plan_file import plan_from_json, plan_to_json

    for rows in ("smooth", None):
        plan = plan_of(own_study(STUDY + branch(start='row = "wide", step = 300')), rows=rows)
        again = plan_from_json(plan_to_json(plan))
        assert [(run.row, run.seed, run.run_id, run.config, run.spec.parent_run) for run in again.trainings] == [
            (run.row, run.seed, run.run_id, run.config, run.spec.parent_run) for run in plan.trainings
        ]
        assert [run.row for run in again.members] == ["wide"]
    told = {line["row"]: line.get("parent_run") for line in plan_as_json(plan)}
    assert told == {"base": None, "wide": None, "smooth": plan.runs[-1].spec.parent_run._asdict()}


def test_a_branch_that_changes_nothing_is_a_row_like_others(own_study, plan_of):
    plan = plan_of(own_study(STUDY + branch(more="")))
    assert len({run.run_id for run in plan.runs}) == 3 and plan.study.base_row.key == "base"


@pytest.mark.parametrize(
    ("rows", "part"),
    [
        (branch(start='row = "bas", step = 3'), 'row "smooth", from: the row = "bas" does not exist. Nearest'),
        (branch() + branch(start='row = "smooth", step = 3', key="more"), 'row = "smooth" is a branch itself'),
        (branch(start='row = "smooth", step = 3'), 'row = "smooth" is a branch itself, or this row'),
        (branch(start='row = "base", step = 0'), "from: step = 0: it must be at least 1"),
        (branch(start='row = "base", step = -1'), "it must be at least 1"),
        (branch(start='row = "base", step = 1.5'), "expected an integer"),
        (branch(start='row = "base", step = "3"'), "expected an integer"),
        (branch(start='row = "base"'), "from, step: it is missing"),
        (branch(start="step = 3"), "from, row: it is missing"),
        (branch(start='row = "base", steps = 3'), "unknown key `steps`; did you mean `step`"),
        (branch(start='row = "base", step = 3, by_profile = {smal = 2}'), "by_profile.smal: there is no such profile"),
        (branch(more="seed_offset = 3"), "a branch has the seeds of its parent run"),
        (branch(more='ensemble = {of = "base", seeds = [1]}'), "`ensemble` and `from` cannot be combined"),
        (
            branch() + '[[variation]]\nkey = "all"\nensemble = {of = "smooth", seeds = [1, 2]}',
            'the row of = "smooth" is a branch. Members are trained from the start',
        ),
    ],
)  # fmt: skip
def test_mistakes_are_named(own_study, mistake, rows, part):
    assert part in mistake(own_study, STUDY + rows)


@pytest.mark.parametrize(
    ("rows", "options", "part"),
    [
        (branch(start='row = "base", step = 700'), {}, 'from step 700, and its parent run "base" has 600 steps'),
        (branch(start='row = "base", step = 600'), {}, "from step 600, and it has 600 steps"),
        (branch(), {"profile": "short"}, 'branches from step 300, and its parent run "base" has 60 steps'),
        (branch(), {"sets": ["training.train_steps=200"]}, 'and its parent run "base" has 200 steps'),
        (branch(start='row = "base", step = 301'), {"profile": "small"}, "from.step = 301 times steps = 0.5 is 150.5"),
        (branch(more="set = {model.d_model = 256}"), {}, "in model.d_model, which acts before step 300"),
        (branch(more="set = {data.vocab_size = 256}"), {}, "differs from its parent run in data.vocab_size"),
        (branch(more="set = {training.warmup_steps = 8000}"), {}, "the learning rate differs already at step 1"),
        (branch(more='set = {evaluation.checkpoint = "average:2", training.checkpoint_steps = 300}'), {},
         "would need the checkpoint of step 300"),
        (branch() + branch(key="again"), {}, '"smooth" and "again" have equal settings'),
    ],
)  # fmt: skip
def test_mistakes_that_the_plan_sees(own_study, plan_of, mistake, rows, options, part):
    text = mistake(plan_of, own_study(STUDY + rows), **options)
    assert part in text
    if "equal settings" not in part and "times steps" not in part:
        assert text.startswith(f'{own_study(STUDY + rows).origin}, row "smooth", profile ')


def test_rows_not_selected_may_be_wrong(own_study, plan_of):
    study = own_study(STUDY + branch(start='row = "base", step = 301'))
    assert [run.kept_at for run in plan_of(study, profile="small", rows="base").runs] == [()]


def test_another_task_says_that_it_has_none(own_study, plan_of, task, mistake):
    task.not_a_branch = lambda *arguments: Task.not_a_branch(task, *arguments)
    assert "the task translation cannot start a training from the state" in mistake(
        plan_of, own_study(STUDY + branch())
    )


def test_built_in_studies_have_none():
    assert not any(row.branch for row in load_study("table3").variations)
