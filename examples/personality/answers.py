"""Read or generate answers to everyday questions. Each answer is labelled with the personality type of its writer.

A file has one JSON object per line: {"question": "…", "answer": "…", "label": "E"}. A label is one letter (E, I) or a
whole type (ENFP). If every line has a field "set" (train, dev or test), these fields split the file. Otherwise the
answers are shuffled, always in the same way, and split in the study's proportions.

Generated answers are in Korean and consist of clauses. Most clauses express the label's side of a preference. Some
express the other side or neither, so that no single word decides the label.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from clauses import JOINS, NEUTRAL, QUESTIONS, SIDES, TIMES

PREFERENCES = ("EI", "NS", "FT", "JP")
TYPES = tuple("".join(letters) for letters in product(*PREFERENCES))
STUDY_SIZES = {"train": 1000, "dev": 375, "test": 38}


@dataclass(frozen=True)
class Answer:
    text: str
    label: str  # one letter for each preference that the study predicts: "E", or "ENFP"
    question: str = ""


def generate(name: str, count: int, preferences: tuple[str, ...], doubt: float) -> list[Answer]:
    """Generate the answers of a set. The result is reproducible, because the set's name is part of the random seed.

    doubt: probability that a clause expresses the other side of a preference.
    """
    chance = random.Random(f"answers {name} {' '.join(preferences)}")
    return [_answer(chance, preferences, doubt) for _ in range(count)]


def _answer(chance: random.Random, preferences: tuple[str, ...], doubt: float) -> Answer:
    label = "".join(chance.choice(preference) for preference in preferences)
    letters = list(label) * (2 if len(label) > 1 else chance.randint(2, 4))
    chance.shuffle(letters)
    clauses: list[str] = []
    for letter in letters:
        if chance.random() < 0.2:
            text = chance.choice(NEUTRAL)
        else:
            text = _clause(chance, _other(letter) if chance.random() < doubt else letter)
        clauses.append(f"{chance.choice(JOINS)} {text}" if clauses else text)
    return Answer(" ".join(clauses), label, chance.choice(QUESTIONS["".join(preferences)]))


def _clause(chance: random.Random, letter: str) -> str:
    parts = SIDES[letter]
    return " ".join([chance.choice(TIMES), *(chance.choice(parts[name]) for name in ("how", "what", "verb"))])


def _other(letter: str) -> str:
    (preference,) = (pair for pair in PREFERENCES if letter in pair)
    return preference.replace(letter, "")


def read(path: Path, preferences: tuple[str, ...]) -> dict[str, list[Answer]]:
    """Read the sets of a file. Raises ValueError with the file and, for an invalid line, its number."""
    found = list(_lines(path, preferences))
    sets = {set_ for _, set_ in found}
    if sets == {None}:
        return _split(path, [answer for answer, _ in found])
    missing = [name for name in STUDY_SIZES if name not in sets]
    if None in sets or missing:
        raise ValueError(
            f"{path}: {'some lines have no set' if None in sets else f'no line has the set {missing[0]}'}. Give every "
            'line a "set" (train, dev and test all occur), or none: then the file is split here.'
        )
    return {name: [answer for answer, set_ in found if set_ == name] for name in STUDY_SIZES}


def _lines(path: Path, preferences: tuple[str, ...]) -> Iterator[tuple[Answer, str | None]]:
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from None
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield _parse(line, preferences)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None


def _parse(line: bytes, preferences: tuple[str, ...]) -> tuple[Answer, str | None]:
    form = 'expected {"question": "…", "answer": "…", "label": "E"}'
    try:
        found = json.loads(line)
    except ValueError as error:
        raise ValueError(f"this is not JSON ({error}); {form}.") from None
    if not isinstance(found, dict):
        raise ValueError(f"this is no JSON object; {form}.")
    for name in ("question", "answer", "label"):
        if not isinstance(found.get(name), str):
            raise ValueError(f"{name} is missing or no text; {form}.")
    if not found["answer"].split():
        raise ValueError("the answer is empty.")
    set_ = found.get("set")
    if set_ is not None and set_ not in STUDY_SIZES:
        raise ValueError(f"unknown set {set_!r}: train, dev or test.")
    return Answer(found["answer"], _label(found["label"], preferences), found["question"]), set_


def _label(label: str, preferences: tuple[str, ...]) -> str:
    """Return the letters of `preferences` in a label, which may be a whole type. Raises ValueError."""
    if label in TYPES:
        return "".join(letter for letter in label for preference in preferences if letter in preference)
    if len(preferences) == 1 and label in tuple(preferences[0]):
        return label
    letters = f"{' or '.join(preferences[0])}, or " if len(preferences) == 1 else ""
    raise ValueError(f"unknown label {label!r}: {letters}a whole type such as ENFP.")


def _split(path: Path, answers: list[Answer]) -> dict[str, list[Answer]]:
    random.Random("split").shuffle(answers)
    total, start, sets = sum(STUDY_SIZES.values()), 0, {}
    for name, size in STUDY_SIZES.items():
        end = len(answers) if name == "test" else start + round(len(answers) * size / total)
        sets[name], start = answers[start:end], end
    if not all(sets.values()):
        raise ValueError(f"{path} has {len(answers)} answers: too few for a train, a dev and a test set.")
    return sets
