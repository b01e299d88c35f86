"""In records of results, a wrong type of a required field is damage; a wrong type of a description is left out."""

import math

import pytest

from experiments.errors import Damaged
from experiments.store.checksummed import read_json
from experiments.store.record_base import Record
from experiments.store.results import EvaluationResult, TrainingResult

WRONG = (True, -1, [1], {"a": 1.5}, "x", None, math.nan)


@pytest.mark.parametrize("kind", [TrainingResult, EvaluationResult])
def test_any_value_of_any_field_gives_a_record_or_the_paragraph(kind: type[Record]) -> None:
    for name in kind.model_fields:
        for wrong in WRONG:
            try:
                record = kind.read({name: wrong, "other": 3}, "runs/1/result.json")
            except Damaged as damage:
                assert name in kind.decisive and f"runs/1/result.json is damaged ({name}" in str(damage)
            else:
                assert record.content["other"] == 3


def test_what_was_left_out_is_written_again(tmp_path):
    record = TrainingResult.read({"attempt": 3, "step": "many", "loss": 1.5})
    assert record.step is None
    record.write(tmp_path / "result.json", attempt=4)
    assert read_json(tmp_path / "result.json") == {"attempt": 4, "step": "many", "loss": 1.5}


def test_a_users_trainer_may_use_the_names_of_built_in_facts():
    record = TrainingResult.read({"attempt": 1, "data": "ours", "precision": 3})
    record.check(built_in=False)
    with pytest.raises(ValueError, match="data"):
        record.check(built_in=True)
