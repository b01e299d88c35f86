"""Tests of settings by dotted name: reading, checking and error messages."""

import pytest

from ablations.planning.resolve import build
from ablations.study.overrides import setting_names
from ablations.study.variation import Setting
from experiments.config.run_config import RunConfig
from experiments.dotted import dotted, flatten, parse_set
from experiments.messages import nearest


@pytest.mark.parametrize(
    ("item", "value"),
    [
        ("training.train_steps=400", 400),
        ("training.train_steps=100_000", 100_000),
        ("model.dropout=0.0", 0.0),
        ("model.shared_vocabulary=false", False),
        ("model.positions=learned", "learned"),
        ('model.positions="learned"', "learned"),
        ("data.corpus=../some/where", "../some/where"),
        ("data.corpus=a=b", "a=b"),
        ('evaluation.sets=["dev", "test"]', ["dev", "test"]),
        ("data.corpus=1\ny = 2", "1\ny = 2"),
        (" model.d_k = 3 ", 3),
    ],
)
def test_values_are_toml_and_bare_words_text(item, value):
    (found,) = parse_set([item]).values()
    assert found == value
    assert type(found) is type(value)


def test_the_last_of_a_key_wins_and_tables_open_up():
    assert parse_set(["model.d_k=1", "model.d_k=2", "model={d_v=3}"]) == {"model.d_k": 2, "model.d_v": 3}


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("nan", "expected a finite number"),
        ("-inf", "expected a finite number"),
        ("[1, [1e999]]", "expected a finite number"),
        ("1" + "0" * 30, "an integer may be at most 9,223,372,036,854,775,807"),
        ("1" + "0" * 5000, "too many digits"),
        ('"a\\u0000b"', "it contains a NUL"),
        ("\udcff", "not Unicode"),
    ],
)
def test_values_that_no_run_can_have(value, why, mistake):
    assert why in mistake(parse_set, [f"model.dropout={value}"])


@pytest.mark.parametrize(
    "name", ["data.builtin_pairs", "model.max_length", "evaluation.beam_size", "evaluation.max_extra_length"]
)
def test_sizes_that_no_machine_has(name, mistake):
    settings = {name: Setting(10**12, "--set")}
    assert "(set by --set): it must be at most 1" in mistake(build, RunConfig, "translation", settings, "base")


def test_names_are_those_of_the_configuration_without_seed_and_task():
    everything = [name for name, _ in flatten(RunConfig())]
    assert sorted(setting_names(RunConfig)) == sorted(set(everything) - {"seed", "task"})


def test_dotted_keeps_the_order_written():
    table = {"training": {"train_steps": 1}, "model": {"d_v": 2, "d_k": 3}}
    assert list(dotted(table)) == ["training.train_steps", "model.d_v", "model.d_k"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("d_k", "model.d_k"),
        ("dropout", "model.dropout"),
        ("model.num_head", "model.num_heads"),
        ("trainning.train_step", "training.train_steps"),
        ("warmup", "training.warmup_steps"),
        ("MODEL.D_MODEL", "model.d_model"),
    ],
)
def test_nearest_finds_what_was_meant(name, expected):
    assert nearest(name, setting_names(RunConfig))[0] == expected


def test_nothing_is_near_to_nonsense():
    assert nearest("qqqqqqq", setting_names(RunConfig)) == []


def test_a_value_nested_too_deeply(mistake):
    assert "nested too deeply" in mistake(parse_set, [f"model.dropout={'[' * 5000}"])
