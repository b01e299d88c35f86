"""A row that sets a setting that its network does not read is refused, because it would equal another row."""

import pytest

from experiments.config.training import OPTIMIZERS, SCHEDULES

BASE = '[[variation]]\nkey = "base"\n'
NO_FEED_FORWARD = (
    'model.encoder = "N * self_attention"\nmodel.decoder = "N * (self_attention, cross_attention)"\nmodel.d_ff = 100\n'
)


@pytest.mark.parametrize("place", ["set", "fixed", "by_profile.exact"])
def test_a_knob_that_nobody_reads_is_refused_with_what_would_read_it(own_study, rows_of, mistake, place):
    study = own_study(BASE + f'[[variation]]\nkey = "x"\n[variation.{place}]\n{NO_FEED_FORWARD}')
    message = mistake(rows_of, study)
    for words in ('row "x"', "model.d_ff", 'model.encoder = "N * self_attention"', "feed_forward", "Remove"):
        assert words in message, message


def test_another_row_and_base_may_set_what_this_row_does_not_read(own_study, rows_of):
    study = own_study(
        "[base]\nmodel.d_ff = 100\n"
        + BASE
        + '[[variation]]\nkey = "x"\n[variation.set]\n'
        + NO_FEED_FORWARD.replace("model.d_ff = 100\n", "")
        + '[[variation]]\nkey = "y"\nset = {model.d_ff = 50}\n'
    )
    assert set(rows_of(study)) == {"base", "x", "y"}


def test_a_setting_that_brackets_replace_everywhere_is_not_read(own_study, rows_of, mistake):
    line = "N * (self_attention(d_k=16), cross_attention(d_k=16), feed_forward)"
    study = own_study(
        BASE
        + '[[variation]]\nkey = "x"\n[variation.set]\nmodel.encoder = "N * (self_attention(d_k=8), feed_forward)"\n'
        + f'model.decoder = "{line}"\nmodel.d_k = 32\n'
    )
    message = mistake(rows_of, study)
    assert "model.d_k" in message and "self_attention and cross_attention" in message


def test_layers_that_are_counted_in_the_lines_leave_num_layers_unread(own_study, rows_of, mistake):
    study = own_study(
        BASE
        + '[[variation]]\nkey = "x"\n[variation.set]\nmodel.encoder = "2 * self_attention"\n'
        + 'model.decoder = "2 * cross_attention"\nmodel.num_layers = 2\n'
    )
    assert "a line with N layers" in mistake(rows_of, study)


def test_an_option_of_the_command_line_needs_one_row_that_reads_it(own_study, rows_of, mistake):
    study = own_study(BASE + '[[variation]]\nkey = "x"\nset = {model.num_heads = 4}\n')
    assert "--set" in mistake(rows_of, study, sets=["model.rotary_share=0.5"])
    assert set(rows_of(study, sets=["model.encoder_layers=2"])) == {"base", "x"}


@pytest.mark.parametrize(
    ("settings", "unread", "words"),
    [
        ("training.momentum = 0.5", "training.momentum", "training.optimizer = adam does not use it; sgd and muon"),
        ("training.optimizer = 'lion', training.adam_beta1 = 0.8", "training.adam_beta1", "adam, adamw and muon use"),
        ("training.optimizer = 'muon', training.lion_beta1 = 0.8", "training.lion_beta1", "lion uses it"),
        ("training.min_lr_ratio = 0.1", "training.min_lr_ratio", "training.schedule = inverse_sqrt does not use it"),
        ("training.schedule = 'cosine', training.stable_ratio = 0.5", "training.stable_ratio", "warmup_stable_decay"),
        ("training.schedule = 'linear', training.plateau_patience = 1", "training.plateau_patience", "plateau uses"),
        ("training.learning_rate = 0.1, training.learning_rate_scale = 2", "training.learning_rate_scale", "is set"),
    ],
)
def test_what_the_optimizer_or_the_schedule_does_not_read_is_refused(
    own_study, rows_of, mistake, settings, unread, words
):
    message = mistake(rows_of, own_study(BASE + f'[[variation]]\nkey = "x"\nset = {{{settings}}}\n'))
    assert f"it sets {unread}, but" in message and words in message, message


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_option_of_an_optimizer_is_read_with_it(own_study, rows_of, name):
    options = {"nesterov": "true", "momentum": "0.5"}
    its = ", ".join(f"training.{option} = {options.get(option, '0.25')}" for option in OPTIMIZERS[name].reads)
    study = own_study(BASE + f"[[variation]]\nkey = \"x\"\nset = {{training.optimizer = '{name}', {its}}}\n")
    assert set(rows_of(study)) == {"base", "x"}


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_option_of_a_schedule_is_read_with_it(own_study, rows_of, name):
    options = {"plateau_patience": "3"}
    its = "".join(f", training.{option} = {options.get(option, '0.25')}" for option in SCHEDULES[name].reads)
    chosen = f"training.schedule = '{name}', training.eval_steps = 5, training.learning_rate = 0.1{its}"
    assert set(rows_of(own_study(BASE + f'[[variation]]\nkey = "x"\nset = {{{chosen}}}\n'))) == {"base", "x"}
