"""Tests of [tune]: the searched settings of each row, refusals, and the study with the found settings."""

from pathlib import Path

import pytest

from ablations.planning.resolve import resolve
from ablations.study.selectors import selection
from ablations.study.tuning import about, deciding_column, space_of, tune_of, with_tuned
from experiments.identity import digest
from experiments.run_spec import NO_TRAINER, TrainerSpec
from experiments.store.layout import Store
from experiments.tasks.load import load_task
from experiments.tuning import Range, Search, Space

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


def key_of(task, settings, trainer=NO_TRAINER, inputs=None):
    """Return the key of a search of `lr` for a row with these settings."""
    space = Space({"lr": Range(0.1, 1.0, True, None, ())}, "accuracy", "dev", False, "random", 1)
    config = task.with_trainer(trainer).config_type.from_mapping({"seed": 1, **settings})
    return Search(Store(Path("unused")), space, about(config, trainer, inputs or {}, space))._key


def of_a_command(command, **code):
    trainer = TrainerSpec(command, **code)
    task = load_task("command", str(Path.cwd())).with_settings({"lr": 0.1, "wd": 0.0}, trainer)
    return key_of(task, {}, trainer)


def test_the_keys_of_searches_are_those_of_version_0_1_0():
    """The values were computed with a program that recorded empty `modules`, and facts of trainers as settings."""
    corpus = {"corpus": "x"}
    assert key_of(load_task("translation"), {}, inputs=corpus) == "7368b2e8392f6993"
    assert key_of(load_task("parsing"), {}, inputs=corpus) == "c65503b41dff1372"
    lines = ["encoder.0 -> identity"]
    assert key_of(load_task("translation"), {"modules": lines}, inputs=corpus) == "18a061a698ab1b4a"
    assert key_of(load_task("translation"), {"evaluation": {"modules": lines}}, inputs=corpus) == "b0bf5c1c5ed2b114"
    command = "python a.py --lr {lr} --wd {wd}"
    assert of_a_command(command) == "155fb7cfd1a1423b"
    assert of_a_command(command, tree="a" * 40) == "fa59b3fad1292bf2"
    assert of_a_command(command, tree="b" * 40, base="a" * 40, lines=3) == "dea88ee884fff02d"
    assert of_a_command(command, tree="b" * 40, lines=3) == "75c0a0b888b86be7"


def test_trials_of_another_command_or_of_other_code_do_not_count():
    one = of_a_command("python a.py --lr {lr} --wd {wd}")
    assert of_a_command("python b.py --lr {lr} --wd {wd}") != one
    assert of_a_command("python a.py --rate {lr} --wd {wd}") != one
    assert of_a_command("python a.py --lr {lr} --wd {wd}", tree="a" * 40) != one


def test_a_setting_with_the_name_of_a_fact_of_the_trainer_hides_neither():
    """A function may have a setting `code_lines`, which is not the size of the row's change."""
    space = Space({}, "accuracy", "dev", False)

    def key(setting, lines):
        trainer = TrainerSpec(tree="a" * 40, lines=lines)
        return digest(about({"code_lines": setting}, trainer, {}, space))

    assert len({key(1, 1), key(1, 2), key(2, 1), key(2, 2)}) == 4
