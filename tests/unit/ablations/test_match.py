"""With `match`, the solved value is the best one, is an ordinary setting of its row, and is noted under the table."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablations.planning.match import WITHIN, nearest
from ablations.planning.plan import Plan, plan_study
from ablations.service.selected import task_of_study
from ablations.study.selectors import selection
from ablations.study.study import Study, load_study
from experiments.run_state import RunState
from experiments.tasks.translation import TASK
from model.cost import num_params

SMALL = "[base]\nmodel = {d_model = 16, d_ff = 64, d_k = 4, d_v = 4, num_layers = 2}\ndata.vocab_size = 100\n"
CONVOLUTION = '[[variation]]\nkey = "conv"\nset = {model.encoder = "N * (convolution, feed_forward)"}\n'
BY_D_FF = 'match = "params"\nby = "model.d_ff"\n'
BASE = '[[variation]]\nkey = "base"\n'


def plan_of(study: Study, **options: object) -> Plan:
    chosen = selection(**options)  # type: ignore[arg-type]
    return plan_study(study, chosen, task_of_study(study), Path("unused"), lambda *_: RunState("missing"))


def run_of(plan: Plan, row: str):
    return next(run for run in plan.runs if run.row == row)


@pytest.mark.parametrize("by", ["model.d_ff", "width", "model.d_model"])
def test_the_solved_value_is_better_than_its_neighbours(by, own_study):
    plan = plan_of(own_study(f'match = "params"\nby = "{by}"\n{SMALL}{BASE}{CONVOLUTION}'))
    base, conv = run_of(plan, "base"), run_of(plan, "conv")
    model = conv.config.model
    names = {"width": ("d_model", "d_ff", "d_k", "d_v")}.get(by, (by.removeprefix("model."),))
    values = [getattr(model, name) for name in names]
    for step in (-2, -1, 1, 2):
        other = {name: value + step * (value // values[-1]) for name, value in zip(names, values, strict=True)}
        if other.get("d_model", 2) % 2 == 0:  # positions are sinusoidal
            count = num_params(model.model_copy(update=other), 100)
            assert abs(count - base.spec.num_params) >= abs(conv.spec.num_params - base.spec.num_params), step
    if len(names) > 1:
        assert values == [values[-1] * ratio for ratio in (4, 16, 1, 1)]


@given(start=st.integers(1, 300), target=st.integers(20, 90_000), step=st.sampled_from([1, 2, 8]))
def test_bisection_finds_what_trying_every_number_finds(start, target, step):
    start *= step

    def count(number: int) -> float | None:
        return None if number % step else 17 + 3 * number + number**2

    last = start * 1024
    valid = range(step, min(last, 400) + step, step)
    if count(step) > target * (1 + WITHIN):
        with pytest.raises(ValueError, match="above base"):
            nearest(count, start, target)
    elif count(min(last, 400 - 400 % step)) >= target:
        best = min(abs(count(number) - target) for number in valid)
        assert abs(count(nearest(count, start, target)) - target) == best


def test_a_run_with_a_solved_value_is_the_run_with_the_same_value_by_hand(own_study):
    solved = run_of(plan_of(own_study(BY_D_FF + SMALL + BASE + CONVOLUTION)), "conv")
    by_hand = CONVOLUTION.replace("}", f", model.d_ff = {solved.config.model.d_ff}}}")
    written = run_of(plan_of(own_study(SMALL + BASE + by_hand)), "conv")
    assert solved.planned_row.overrides["model.d_ff"] == solved.config.model.d_ff != 64
    assert (solved.run_id, solved.eval_ids, solved.planned_row.overrides) == (
        written.run_id,
        written.eval_ids,
        written.planned_row.overrides,
    )


def test_flops_are_matched_by_steps(own_study):
    deep = '[[variation]]\nkey = "deep"\nset = {model.num_layers = 4}\n'
    head = 'match = "flops"\nby = "training.train_steps"\n'
    plan = plan_of(own_study(head + SMALL + "[base.training]\ntrain_steps = 1000\nwarmup_steps = 10\n" + BASE + deep))
    base, row = run_of(plan, "base"), run_of(plan, "deep")
    one_step = TASK.cost(row.config) / row.config.training.train_steps
    assert abs(row.spec.cost - base.spec.cost) <= one_step / 2 and row.config.training.warmup_steps == 10
    assert plan.notes[0].startswith("Operations of training are matched to base's by training.train_steps: deep within")


def test_rows_without_a_change_in_the_count_keep_their_runs(own_study):
    same = '[[variation]]\nkey = "dropout"\nset = {model.dropout = 0.3}\n'
    plain, matching = (plan_of(own_study(head + SMALL + BASE + same)) for head in ("", BY_D_FF))
    assert [run.run_id for run in plain.runs] == [run.run_id for run in matching.runs]
    assert matching.notes == ("Parameters are matched to base's by model.d_ff: dropout within 0 %.",)


def test_a_row_s_word_goes_before_the_profile_s_and_the_study_s(own_study):
    text = BY_D_FF + SMALL + '[profile.p]\nmatch = "none"\n[profile.q]\nby = "model.d_model"\n' + BASE + CONVOLUTION
    by_profile = {name: run_of(plan_of(own_study(text), profile=name), "conv").planned_row.overrides for name in "pq"}
    assert set(by_profile["p"]) == {"model.encoder"} and "model.d_model" in by_profile["q"]
    own = text + 'match = "params"\nby = "model.d_ff"\n'
    assert set(run_of(plan_of(own_study(own), profile="p"), "conv").planned_row.overrides) == {
        "model.encoder",
        "model.d_ff",
    }
    assert plan_of(own_study(text + 'match = "none"\n'), profile="q").notes == ()


def test_what_is_given_to_every_row_is_not_solved_for(own_study):
    plan = plan_of(own_study(BY_D_FF + SMALL + BASE + CONVOLUTION), sets=["model.d_ff=32"])
    assert {run.config.model.d_ff for run in plan.runs} == {32}
    assert plan.notes == ("Not matched, because --set gives model.d_ff: conv.",)


def test_the_note_says_which_row_is_not_within_one_percent(own_study):
    plan = plan_of(own_study('match = "params"\nby = "width"\n' + SMALL + BASE + CONVOLUTION))
    off = run_of(plan, "conv").spec.num_params / run_of(plan, "base").spec.num_params - 1
    assert abs(off) > WITHIN
    assert plan.notes == (f"Parameters are matched to base's by width: conv is {100 * off:+.1f} % off, the nearest.",)


def test_ensembles_and_branches_have_the_solved_values_of_their_rows(own_study):
    more = (
        '[[variation]]\nkey = "both"\nensemble = {of = "conv", seeds = [1, 2]}\n'
        '[[variation]]\nkey = "on"\nfrom = {row = "conv", step = 10}\nset = {training.train_steps = 200_000}\n'
    )
    study = own_study(BY_D_FF + SMALL + BASE + CONVOLUTION + more)
    conv = run_of(plan_of(study, rows="conv"), "conv")
    plan = plan_of(study, rows="both,on")
    assert {run.config.model.d_ff for run in plan.trainings} == {conv.config.model.d_ff}
    assert (
        conv.run_id
        in {member.run_id for member in plan.members}
        == {*run_of(plan, "both").spec.members} | {conv.run_id}
    )


@pytest.mark.extra("bundles")
def test_a_plan_read_back_has_the_solved_rows(own_study):
    from ablations.extras.bundles.plan_file import plan_from_json, plan_to_json

    plan = plan_of(own_study(BY_D_FF + SMALL + BASE + CONVOLUTION))
    again = plan_from_json(plan_to_json(plan))
    assert again.study.factors == plan.study.factors and "model.d_ff" in plan.study.factors
    assert [run.run_id for run in again.runs] == [run.run_id for run in plan.runs] and again.notes == plan.notes


@pytest.mark.parametrize(
    ("name", "profile", "base", "measure"),
    [
        ("history", "demo", "transformer", "num_params"),
        ("layers", "demo", "base", "num_params"),
        ("layers", "paper", "base", "num_params"),
        ("table2", "small", "base-en-de", "cost"),
    ],
)
def test_built_in_studies_meet_base_within_one_percent(name, profile, base, measure, tmp_path):
    corpus = "builtin"
    if profile == "small":
        corpus = str(tmp_path)
        for each in ("train", "val", "test"):
            for language in ("en", "de", "fr"):
                (tmp_path / f"{each}.{language}").write_text(f"a line in {language}\n" * 30, encoding="utf-8")
    plan = plan_of(load_study(name), profile=profile, corpus=corpus)
    target = getattr(run_of(plan, base).spec, measure)
    for run in plan.runs:
        if not run.spec.members and not run.spec.parent_run:
            assert getattr(run.spec, measure) == pytest.approx(target, rel=WITHIN), run.row


MISTAKES = {
    "an unknown count": ('match = "param"\nby = "model.d_ff"\n', "", "params"),
    "an unknown setting": ('match = "params"\nby = "model.dff"\n', "", "model.d_ff"),
    "a setting on which no parameter depends": ('match = "params"\nby = "training.train_steps"\n', "", "gives no more"),
    "a setting that is no number": ('match = "params"\nby = "model.positions"\n', "", "no whole number"),
    "a fraction": ('match = "params"\nby = "model.dropout"\n', "", "no whole number"),
    "no setting": ('match = "params"\n', "", "belong together"),
    "no count": ("", 'by = "model.d_ff"\n', "belong together"),
    "the row's own value": (BY_D_FF, "fixed = {model.d_ff = 8}\n", "sets model.d_ff = 8 itself"),
    "a row without the setting": (
        BY_D_FF,
        'fixed = {model.decoder = "N * (self_attention, cross_attention)"}\n',
        "model.d_ff changes nothing",
    ),
    "a row too large at its smallest": (BY_D_FF, "fixed = {model.num_layers = 60}\n", "even with 1 it is above base"),
}


@pytest.mark.parametrize(("head", "of_row", "words"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_paragraph(head, of_row, words, own_study, mistake):
    row = (CONVOLUTION.replace(", feed_forward", "") if "model.decoder" in of_row else CONVOLUTION) + of_row
    text = mistake(lambda: plan_of(own_study(head + SMALL + BASE + row)))
    assert words in text and "mine.toml" in text


def test_a_trainer_without_counts_is_refused(own_study, mistake):
    rows = '[base]\nwidth = 8\nrate = 1\n[[variation]]\nkey = "base"\n[[variation]]\nkey = "a"\nset = {rate = 2}\n'
    study = own_study('match = "params"\nby = "width"\ncommand = "train {width} {rate}"\n' + rows)
    text = mistake(lambda: plan_of(study))
    assert "unknown before training" in text and "num_params" in text
