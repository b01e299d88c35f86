"""Sections are typed by JSON's rules, whether values come from a study file, a queue or a child's spec."""

from pathlib import Path
from types import MappingProxyType

import pytest
from pydantic import ValidationError

from experiments.config.run_config import RunConfig
from model.strict import StrictModel


class Knobs(StrictModel):
    count: int = 1
    rate: float = 0.5
    on: bool = False
    sizes: tuple[int, ...] = ()
    folder: Path = Path("here")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"rate": 1}, {"rate": 1.0}),
        ({"sizes": [1, 2]}, {"sizes": (1, 2)}),
        ({"sizes": (1, 2)}, {"sizes": (1, 2)}),
        ({"folder": "there"}, {"folder": Path("there")}),
        ({"folder": Path("there")}, {"folder": Path("there")}),
        ({"on": True, "count": 2}, {"on": True, "count": 2}),
    ],
)
@pytest.mark.parametrize("wrapped", [dict, MappingProxyType])
def test_lists_are_tuples_and_texts_are_paths(values, expected, wrapped):
    made = Knobs.from_mapping(wrapped(values))
    assert made == Knobs(**expected)
    assert all(type(getattr(made, name)) is type(value) for name, value in expected.items())


@pytest.mark.parametrize(
    "values",
    [{"count": "1"}, {"count": 1.5}, {"count": True}, {"rate": "0.5"}, {"on": 1}, {"sizes": 3}, {"other": 1}],
    ids=str,
)
def test_nothing_else_is_converted(values):
    with pytest.raises(ValidationError):
        Knobs.from_mapping(values)


def test_what_a_configuration_writes_is_that_configuration():
    config = RunConfig.from_mapping({"evaluation": {"sets": ["dev"]}, "training": {"train_steps": 7}})
    assert RunConfig.from_mapping(config.model_dump(mode="json")) == config
    assert RunConfig.from_mapping(config.model_dump()) == config
