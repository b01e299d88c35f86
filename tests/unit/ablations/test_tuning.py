"""[tune]: the searched settings of each row, refusals, and the study with the found settings."""

import pytest

from ablations.planning.resolve import resolve
from ablations.study.selectors import selection
from ablations.study.tuning import deciding_column, space_of, tune_of, with_tuned

STUDY = """
[tune]
trials = 8
metric = "perplexity"

[tune.range]
training.learning_rate_scale = {low = 0.1, high = 10.0, log = true}
training.warmup_steps = {low = 50, high = 400, step = 50}
model.dropout = [0.0, 0.1, 0.3]

[[variation]]
key = "base"

[[variation]]
key = "D"
set = {model.dropout = 0.2}
"""


def test_a_rows_own_factor_and_the_command_lines_settings_are_not_tuned(own_study, task):
    study = own_study(STUDY)
    base, row = study.variations
    config = task.config_type()
    assert list(space_of(study, base, config, selection(), task).ranges) == [
        "training.learning_rate_scale", "training.warmup_steps", "model.dropout",
    ]  # fmt: skip
    assert "model.dropout" not in space_of(study, row, config, selection(), task).ranges
    forced = space_of(study, base, config, selection(sets=["training.warmup_steps=100"]), task)
    assert "training.warmup_steps" not in forced.ranges
    assert forced.minimize and forced.metric == "perplexity"


def test_what_a_row_does_not_read_is_not_tuned_for_it(own_study, task):
    """An LSTM has no attention weights to drop: its trials would differ in name alone, and be refused."""
    study = own_study(STUDY.replace("model.dropout = [", "model.attention_dropout = ["))
    lstm = task.config_type.model_validate({"model": {"encoder": "lstm", "decoder": "attentional_lstm"}})
    assert (
        "model.attention_dropout" in space_of(study, study.variations[0], task.config_type(), selection(), task).ranges
    )
    assert "model.attention_dropout" not in space_of(study, study.variations[0], lstm, selection(), task).ranges


def test_the_first_column_of_the_set_decides_if_none_is_named(own_study, task):
    assert deciding_column(own_study(STUDY.replace('metric = "perplexity"', "")), task).metric == "perplexity"
    assert deciding_column(own_study(STUDY.replace("perplexity", "bleu")), task).better == "higher"


def test_tuned_settings_go_before_the_profile_and_leave_base_base(own_study, task):
    study = own_study(STUDY + "\n[profile.p]\nset = {training.warmup_steps = 10}\n")
    tuned = with_tuned(study, {"base": {"training.warmup_steps": 100}, "D": {"training.warmup_steps": 200}}, ["a note"])
    rows = {row.variation.key: row for row in resolve(tuned, selection(), task)}
    assert rows["base"].config.training.warmup_steps == 100 and rows["D"].config.training.warmup_steps == 200
    assert rows["D"].overrides == {"model.dropout": 0.2, "training.warmup_steps": 200}
    assert tuned.base_row is not None and tuned.base_row.key == "base" and tuned.notes[-1] == "a note"
    assert study.variations[0].tuned == {}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("[tune]", "[tuna]"), ["tuna"]),
        (('metric = "perplexity"', 'metric = "perplexit"'), ["perplexit on dev", "perplexity on dev"]),
        (('metric = "perplexity"', 'set = "test"'), ["test", "development"]),
        (("model.dropout", "model.droput"), ["model.droput", "model.dropout"]),
        (("low = 0.1", "low = 20.0"), ["learning_rate_scale", "low below high"]),
        (("low = 0.1", "low = 0.0"), ["log = true requires low above 0"]),
        (("trials = 8", "trials = 0"), ["trials = 0", "at least 1"]),
        (("trials = 8", 'trials = 8\nsampler = "tep"'), ["tep", "tpe"]),
        (("[0.0, 0.1, 0.3]", "[]"), ["model.dropout", "low below high"]),
    ],
    ids=lambda value: value[1][:24] if isinstance(value, tuple) else "",
)
def test_mistakes(own_study, task, mistake, change, words):
    def tune():
        study = own_study(STUDY.replace(*change))
        tune_of(study, task)
        deciding_column(study, task)

    message = mistake(tune)
    assert all(word in message for word in words), message
