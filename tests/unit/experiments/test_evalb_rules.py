"""EVALB's parameter files."""

from pathlib import Path

import pytest

from experiments.errors import UserError
from experiments.evaluation.evalb import COLLINS, Rules, read_rules, rules_of_text

# The settings of COLLINS.prm, laid out as such files are.
TEXT = """\
##  Debug mode  ##
DEBUG 0
MAX_ERROR 10
CUTOFF_LEN 40

LABELED 1                 
DELETE_LABEL TOP
DELETE_LABEL -NONE-
DELETE_LABEL ,
DELETE_LABEL :
DELETE_LABEL ``
DELETE_LABEL ''
DELETE_LABEL .
DELETE_LABEL_FOR_LENGTH -NONE-
EQ_LABEL ADVP PRT
# EQ_WORD  Example example
"""  # noqa: W291


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "x.prm"
    path.write_text(text, newline="")
    return path


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_defaults_are_collins(tmp_path: Path, end: str) -> None:
    assert read_rules(written(tmp_path, TEXT.replace("\n", end))) == COLLINS == Rules()
    assert COLLINS.text() == "COLLINS" and rules_of_text("COLLINS") == COLLINS


def test_other_rules_come_back_from_their_text(tmp_path: Path) -> None:
    more = (
        "LABELED 0\nCUTOFF_LEN 15\nDELETE_LABEL\t S1\nQUOTE_LABEL POS\nEQ_WORD  This this\nEQ_LABEL A B\nEQ_LABEL C D\n"
    )
    rules = read_rules(written(tmp_path, more))
    assert rules == Rules(False, ("S1",), (), ("POS",), (("A", "B"), ("C", "D")), (("This", "this"),), 15)
    assert rules_of_text(rules.text()) == rules


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("DELETE_LABELS TOP", "there is no parameter DELETE_LABELS. EVALB knows DELETE_LABEL,"),
        ("DELETE_LABEL", "DELETE_LABEL takes 1 value:"),
        ("EQ_LABEL ADVP", "EQ_LABEL takes 2 values: EQ_LABEL ADVP"),
        ("CUTOFF_LEN forty", "CUTOFF_LEN is a whole number, and not forty"),
    ],
)
def test_mistakes_are_named_with_their_line(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        read_rules(written(tmp_path, f"# rules\n{line}\n"))
    assert "x.prm, line 2: " in str(error.value) and message in str(error.value)


def test_a_missing_file_is_the_users(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        read_rules(tmp_path / "none.prm")
