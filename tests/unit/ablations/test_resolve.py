"""Tests of how a study becomes checked rows: precedence, sizes, and the checks for declared and distinct rows."""

import pytest
from pydantic import model_validator

from ablations.planning.resolve import resolve
from ablations.study.selectors import Selection
from ablations.study.study import load_study
from experiments.config.run_config import RunConfig
from experiments.config.training import TrainingConfig
from experiments.dotted import difference, flatten
from experiments.errors import UserError

BASE = '[[variation]]\nkey = "base"\n'


def row(key: str, rest: str) -> str:
    return f'[[variation]]\nkey = "{key}"\n{rest}\n'


def value(planned, name):
    return dict(flatten(planned.config))[name]


@pytest.mark.parametrize(
    ("base", "row_set", "scale", "profile_set", "fixed", "command", "expected"),
    [
        (None, None, None, None, None, None, 512),
        (64, None, None, None, None, None, 64),
        (64, 32, None, None, None, None, 32),
        (64, 32, 0.5, None, None, None, 16),
        (64, None, 0.5, None, None, None, 32),
        (None, None, 0.5, None, None, None, 256),
        (64, 32, 0.5, 40, None, None, 40),
        (64, None, 0.5, 40, 24, None, 24),
        (64, 32, 0.5, 40, None, 20, 20),
        (64, None, 0.5, 40, 24, 20, 20),
    ],
)
def test_what_is_later_wins(own_study, rows_of, base, row_set, scale, profile_set, fixed, command, expected):
    def put(template, number):
        return "" if number is None else template.format(number)

    study = own_study(
        put("[base]\nmodel.d_model = {}\n", base)
        + "[profile.p]\n"
        + put("scale = {{width = {}}}\n", scale)
        + put("set = {{model.d_model = {}}}\n", profile_set)
        # the second setting keeps the row distinct from base when d_model is replaced
        + "[[variation]]\nkey = 'x'\n[variation.set]\nmodel.num_heads = 2\n"
        + put("model.d_model = {}\n", row_set)
        + put("[variation.fixed]\nmodel.d_model = {}\n", fixed)
    )
    sets = [] if command is None else [f"model.d_model={command}"]
    assert value(rows_of(study, sets=sets)["x"], "model.d_model") == expected


def test_corpus_option_sets_the_corpus(rows_of):
    assert rows_of(load_study("table3"), rows="base", corpus="/some/where")["base"].config.data.corpus == "/some/where"


def test_what_a_row_changes_is_told_after_scaling(rows_of):
    assert rows_of(load_study("table3"), profile="demo")["A-h4"].overrides == {
        "model.num_heads": 4,
        "model.d_k": 32,
        "model.d_v": 32,
    }


@pytest.mark.parametrize("profile", ["paper", "demo", "small"])
def test_rows_differ_from_base_only_in_what_they_declare(profile, rows_of):
    rows = rows_of(load_study("table3"), profile=profile)
    for key, planned in rows.items():
        changed = difference(planned.config, dict(flatten(rows["base"].config)))
        assert changed == planned.overrides, key
        assert set(changed) <= set(planned.variation.declared), key


def test_a_configuration_that_derives_settings_fails_the_proof(own_study, task):
    class Deriving(TrainingConfig):
        @model_validator(mode="before")
        @classmethod
        def _derive(cls, data: dict) -> dict:
            return {**data, "warmup_steps": data.get("train_steps", 100) // 10}

    class Config(RunConfig):
        training: Deriving = Deriving()

    task.config_type = Config
    study = own_study(BASE + row("long", "set = {training.train_steps = 990}"))
    with pytest.raises(UserError, match=r'row "long".* differs from base in training\.warmup_steps'):
        resolve(study, Selection(), task)


# --- sizes


@pytest.mark.parametrize(
    ("scale", "rest", "expected"),
    [
        ("width = 0.3", "", "model.d_model = 512 (set by the defaults) times width = 0.3 is 153.6"),
        (
            "width = 0.5, head_width = 0.01",
            "",
            "model.d_k = 64 (set by the defaults) times head_width = 0.01 is 0.64",
        ),
        (
            "depth = 0.25",
            "set = {model.num_layers = 6}",
            'model.num_layers = 6 (set by row "x") times depth = 0.25 is 1.5',
        ),
        ("steps = 0.0001", "set = {training.warmup_steps = 5000}", "times steps = 0.0001 is 0.5"),
    ],
)
def test_sizes_must_stay_whole_and_positive(own_study, rows_of, mistake, scale, rest, expected):
    text = mistake(rows_of, own_study(f"[profile.tiny]\nscale = {{{scale}}}\n" + row("x", rest)))
    assert expected in text
    assert 'row "x", profile "tiny"' in text
    assert "expected an integer of at least 1" in text


def test_ratios_are_taken_as_written(own_study, rows_of):
    """In binary floating point 0.1 × 30 is 3.0000000000000004."""
    text = "[base]\nmodel = {num_layers = 30}\n[profile.p]\nscale = {depth = 0.1}\n" + BASE
    assert rows_of(own_study(text))["base"].config.model.num_layers == 3


def test_heads_have_a_ratio_of_their_own(own_study, rows_of):
    """Without `head_width`, `width` also scales d_k and d_v."""
    text = "[profile.p]\nscale = {{width = 0.125{}}}\n" + row("x", "set = {{model.d_k = 32}}")
    for ratio, d_k, d_v in (("", 4, 8), (", head_width = 0.25", 8, 16), (", head_width = 1.0", 32, 64)):
        model = rows_of(own_study(text.format(ratio)))["x"].config.model
        assert (model.d_model, model.d_ff, model.d_k, model.d_v) == (64, 256, d_k, d_v)


def test_a_size_that_the_profile_gives_itself_need_not_scale(own_study, rows_of):
    text = "[profile.p]\nscale = {depth = 0.25}\nset = {model.num_layers = 2}\n" + BASE
    assert rows_of(own_study(text))["base"].config.model.num_layers == 2


def test_zero_steps_stay_zero_when_steps_are_scaled(own_study, rows_of):
    rows = rows_of(own_study("[profile.p]\nscale = {steps = 0.01}\n" + row("x", "set = {training.train_steps = 0}")))
    assert rows["x"].config.training.train_steps == 0


def test_a_ratio_with_nothing_to_multiply(own_study, task, mistake):
    class Other(TrainingConfig):
        pass

    class Config(RunConfig):
        model: Other = Other()  # type: ignore[assignment]

    task.config_type = Config
    text = mistake(resolve, own_study("[profile.p]\nscale = {width = 0.5}\n" + BASE), Selection(), task)
    assert 'profile "p": scale.width multiplies nothing' in text


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("model.num_heads = 0", 'model.num_heads = 0 (set by row "x"): it must be at least 1'),
        ("model.num_heads = '8'", 'model.num_heads = "8" (set by row "x"): expected an integer'),
        ("model.num_heads = 8.0", "expected an integer"),
        ("model.num_heads = true", "expected an integer"),
        ("model.d_model = '512'", 'model.d_model = "512" (set by row "x"): expected an integer'),
        ("model.dropout = 1.0", "it must be less than 1"),
        ("model.dropout = 'none'", "expected a number"),
        ("model.shared_vocabulary = 1", "expected true or false"),
        ("model.norm = 'before'", "it must be 'post', 'pre', 'sandwich' or 'none'"),
        ("training.adam_epsilon = 0", "it must be more than 0"),
        ("training.optimizer = 'adafctor'", "'lion' or 'muon' (nearest: adafactor)"),
        ("training.schedule = 'cosin'", "'warmup_stable_decay' or 'plateau' (nearest: cosine)"),
        ("training.learning_rate = 0", "it must be more than 0"),
        ("training.schedule = 'plateau'", "training.eval_steps = 0 measures none"),
        (
            "training.optimizer = 'sgd', training.nesterov = true, training.momentum = 0",
            "training.nesterov needs a momentum",
        ),
        ("evaluation.sets = 3", "expected a list"),
        ("evaluation.sets = [3]", "evaluation.sets = [3]"),
        ("evaluation.checkpoint = 'first'", "it must match"),
        ("evaluation.checkpoint = 'average:5'", "training.keep_checkpoints keeps 2"),
        ("evaluation.checkpoint = 'best'", "training.eval_steps = 0 measures none"),
        ("model.encoder = 'lstm', training.compile = true", "torch cannot compile lstm of this architecture"),
        ("model.d_model = 264", "d_model = 33 is odd, and sinusoidal positions pair each sine with a cosine"),
        ("model.d_model = 264", 'model.d_model was set by row "x", scaled by profile "eighth"'),
    ],
)
def test_impossible_values_name_row_profile_and_who_set_them(own_study, rows_of, mistake, setting, expected):
    study = own_study("[profile.eighth]\nscale = {width = 0.125}\n" + row("x", f"set = {{{setting}}}"))
    text = mistake(rows_of, study)
    assert expected in text
    assert 'mine.toml, row "x", profile "eighth"' in text
    assert "Input should" not in text


# --- names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[base]\nmodel.num_head = 3\n" + BASE,
            "[base]: there is no setting model.num_head. Nearest settings:",
        ),
        (row("x", "set = {d_k = 3}"), 'row "x": there is no setting d_k. Nearest settings: model.d_k.'),
        (row("x", "fixed = {model.dk = 3}"), 'row "x": there is no setting model.dk. Nearest settings: model.d_k'),
        ("[profile.p]\nset = {data.vocab = 3}\n" + BASE, 'profile "p": there is no setting data.vocab. Nearest'),
        ('[columns]\nmodel.dk = "x"\n' + BASE, "[columns]: there is no setting model.dk."),
        (row("x", "set = {model = 3}"), 'row "x": model is a group of settings. Set one of: model.num_layers'),
        (row("x", "set = {seed = 3}"), "seed cannot be set here: seeds are 1..N"),
        (row("x", "set = {task = 'command'}"), "task cannot be set here: it is the study's `task`"),
        (row("x", "set = {qqqq = 3}"), "there is no setting qqqq. The settings are: model.num_layers"),
        (
            row("x", "paper = {blue = 3}"),
            "row \"x\": no column of the task translation prints a published 'blue'. Nearest: bleu.",
        ),
    ],
)
def test_unknown_names_list_the_nearest(own_study, rows_of, mistake, text, expected):
    message = mistake(rows_of, own_study(text))
    assert "mine.toml, " in message
    assert expected in message


def test_unknown_name_in_a_row_that_is_not_selected_is_found_too(own_study, rows_of, mistake):
    study = own_study(BASE + row("x", "set = {model.dk = 3}"))
    assert 'row "x": there is no setting model.dk.' in mistake(rows_of, study, rows="base")


# --- two equal rows


def test_rows_that_scaling_makes_equal(own_study, rows_of, mistake):
    text = (
        "[profile.p]\nscale = {depth = 0.5}\nset = {model.d_k = 8}\n"
        + row("x", "set = {model.d_k = 16}")
        + row("y", "set = {model.d_k = 32}")
    )
    message = mistake(rows_of, own_study(text))
    assert 'the rows "x" and "y" have equal settings under profile "p"' in message
    assert 'profile "p" replaces model.d_k = 16 of row "x" by 8.' in message


def test_command_line_that_cancels_a_rows_only_difference(rows_of, mistake):
    table3 = load_study("table3")
    text = mistake(rows_of, table3, sets=["model.dropout=0.2"])
    assert 'the rows "base" and "D-pdrop0.0" have equal settings' in text
    assert '--set replaces model.dropout = 0.0 of row "D-pdrop0.0" by 0.2.' in text
    assert len(rows_of(table3, rows="base,A,B", sets=["model.dropout=0.2"])) == 7


def test_cancelled_row_alone_is_refused_too(rows_of, mistake):
    text = mistake(rows_of, load_study("table3"), rows="D-pdrop0.0", sets=["model.dropout=0.2"])
    assert 'the row "D-pdrop0.0" equals base under profile "demo"' in text


def test_a_row_may_state_bases_own_value(own_study, rows_of):
    rows = rows_of(own_study("".join(row(f"beam{k}", f"set = {{evaluation.beam_size = {k}}}") for k in (1, 4, 8))))
    assert rows["beam4"].overrides == {}


@pytest.mark.parametrize(("offset", "allowed"), [(0, False), (2, False), (3, True), (1000, True)])
def test_base_again_needs_seeds_of_its_own(own_study, rows_of, mistake, offset, allowed):
    study = own_study("seeds = 3\n" + BASE + row("again", f"seed_offset = {offset}"))
    if allowed:
        assert rows_of(study)["again"].seeds == (offset + 1, offset + 2, offset + 3)
    else:
        assert f"share seed {offset + 1}" in mistake(rows_of, study)
