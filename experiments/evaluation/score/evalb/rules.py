"""EVALB's parameters: which labels and words are left out, which count as equal. Imports no torch.

The defaults are COLLINS.prm, with which results on the Wall Street Journal are reported. Other sets are read from
EVALB's own parameter files. Sekine and Collins 1997; the README that comes with EVALB.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

from experiments.data.corpora.files import read_lines
from experiments.errors import UserError

Pairs = tuple[tuple[str, str], ...]

_PUNCTUATION = (",", ":", "``", "''", ".")


@dataclass(frozen=True)
class Rules:
    """The parameters of a scoring by EVALB's rules."""

    labeled: bool = True  # a bracket matches only one of its own label
    delete_labels: tuple[str, ...] = ("TOP", "-NONE-", *_PUNCTUATION)  # a word with its tag; of brackets only the label
    delete_labels_for_length: tuple[str, ...] = ("-NONE-",)  # words that a sentence's length does not count
    quote_labels: tuple[str, ...] = ()  # tags of quotes that may be mistaken for one another (see score.py)
    equal_labels: Pairs = (("ADVP", "PRT"),)
    equal_words: Pairs = ()
    cutoff_length: int = 40  # sentences up to so many words are summed once more on their own

    def label_equal(self, one: str, other: str) -> bool:
        """Whether two labels count as equal."""
        return _equal(one, other, self.equal_labels)

    def word_equal(self, one: str, other: str) -> bool:
        """Whether two words count as equal."""
        return _equal(one, other, self.equal_words)

    def text(self) -> str:
        """One line that names the rules: COLLINS, or what a parameter file says, with ";" for its line ends."""
        if self == COLLINS:
            return "COLLINS"
        lines = [f"LABELED {int(self.labeled)}", f"CUTOFF_LEN {self.cutoff_length}"]
        for keyword, name in _LISTS.items():
            values = getattr(self, name)
            lines += [f"{keyword} {value if isinstance(value, str) else ' '.join(value)}" for value in values]
        return "; ".join(lines)


def _equal(one: str, other: str, pairs: Pairs) -> bool:
    return one == other or (one, other) in pairs or (other, one) in pairs


COLLINS = Rules()
_LISTS = {
    "DELETE_LABEL": "delete_labels",
    "DELETE_LABEL_FOR_LENGTH": "delete_labels_for_length",
    "QUOTE_LABEL": "quote_labels",
    "EQ_LABEL": "equal_labels",
    "EQ_WORD": "equal_words",
}
_NUMBERS = {"LABELED": "labeled", "CUTOFF_LEN": "cutoff_length"}
_IGNORED = ("DEBUG", "MAX_ERROR")  # of the program EVALB, not of its scores


def read_rules(path: Path) -> Rules:
    """An EVALB parameter file. Raises UserError, with the line, for what EVALB would not understand."""
    return _rules(enumerate(read_lines(path), start=1), str(path))


def rules_of_text(text: str) -> Rules:
    """What `Rules.text` wrote."""
    return COLLINS if text == "COLLINS" else _rules(enumerate(text.split("; "), start=1), "the rules")


def _rules(lines: Iterable[tuple[int, str]], where: str) -> Rules:
    found: dict[str, list[object]] = {name: [] for name in _LISTS.values()}
    numbers: dict[str, int] = {}
    for number, line in lines:
        keyword, *values = line.split() or [""]
        if not keyword or keyword.startswith("#"):
            continue
        wanted = 2 if keyword.startswith("EQ_") else 1
        if keyword not in (*_LISTS, *_NUMBERS, *_IGNORED):
            known = ", ".join([*_LISTS, *_NUMBERS, *_IGNORED])
            raise UserError(f"{where}, line {number}: there is no parameter {keyword}. EVALB knows {known}.")
        if len(values) != wanted:
            raise UserError(
                f"{where}, line {number}: {keyword} takes {wanted} value{'s' * (wanted > 1)}: {line.strip()}"
            )
        if keyword in _LISTS:
            found[_LISTS[keyword]].append(values[0] if wanted == 1 else (values[0], values[1]))
        elif keyword in _NUMBERS:
            if not values[0].isdecimal():
                raise UserError(f"{where}, line {number}: {keyword} is a whole number, and not {values[0]}.")
            numbers[_NUMBERS[keyword]] = int(values[0])
    lists = {name: tuple(values) for name, values in found.items()}
    return Rules(
        labeled=bool(numbers.get("labeled", 1)),
        cutoff_length=numbers.get("cutoff_length", 40),
        **lists,  # type: ignore[arg-type]
    )


assert {field.name for field in fields(Rules)} == {*_LISTS.values(), *_NUMBERS.values()}
