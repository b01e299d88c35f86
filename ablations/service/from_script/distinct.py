"""Choose patterns and names so that each guessed metric is one printed number, and no other.

Each candidate pattern is searched in samples of all lines that the script prints. A pattern is used only if it finds
the number of its own line and no other number. Of several numbers with the same name, at most one keeps it.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ablations.service.from_script.templates import Sample, Template

_AFTER = re.compile(
    r"\x01*[ \t%)\]]*((?:on|of|for|in|with|without|after|before|at|under)(?: [A-Za-z][\w-]*){1,4})[ .]*$"
)
LINE_START = r"^\s*"
NO_WORD = "(?<![A-Za-z] )"  # a logger prints other text before its line, but no word directly before it
WORD = "WORD"  # stands for a printed word in the pattern of a metric that is a comment


@dataclass(frozen=True)
class Printed:
    """A number that a script prints.

    pattern: the regular expression that finds the number in the output; "" for a line of JSON. digits: number of
    decimals. line: the source line that prints the number. doubt: the reason why the number is not used, and what to
    write in order to use it; "" if it is used. certain: whether the script names the set.
    """

    set: str
    name: str
    pattern: str
    digits: int
    line: str
    doubt: str = ""
    certain: bool = False


@dataclass(frozen=True)
class Line:
    """A line that the script prints.

    words: for values that may be words, the words that the samples contain. set: the set that the text names at its
    begin. function: the set that the name of the function names. source: the call that prints it. start: the pattern of
    what is before the text in the output, "" if it is not known. counts: whether its numbers may be metrics.
    """

    template: Template
    samples: Sequence[Sample]
    words: Mapping[int, Sequence[str]]
    set: str
    function: str
    source: str
    start: str
    counts: bool

    @property
    def key(self) -> tuple[str, str]:
        """Two lines with the same key print the same text, so they print the same metrics."""
        return re.sub(r"[ \t]+", " ", self.template.text.replace("\1", "")).strip(), self.set

    def prints_same(self, other: "Line") -> bool:
        """Return whether another line prints the same numbers. The functions train and test print different numbers."""
        return self.key == other.key and (not (self.function and other.function) or self.function == other.function)


@dataclass(frozen=True)
class Guess:
    """A number in a line that has the name of a metric.

    printed: the metric, with the shortest pattern. full: its name with all words. number: the pattern of the number.
    label, mark, value, step: positions in the text, of the label, of the end of the label, of the number, and of the
    number of the step or -1. inside: whether the label names the set.
    """

    printed: Printed
    line: Line
    full: str
    number: str
    label: int
    mark: int
    value: int
    step: int
    inside: bool

    @property
    def place(self) -> int:
        """The place of the number among the values of the line."""
        return self.line.template.text[: self.value].count("\0")

    @property
    def key(self) -> tuple[tuple[str, str], int]:
        return self.line.key, self.place


def distinct(guesses: Sequence[Guess], lines: Sequence[Line], taken: Collection[str]) -> list[Printed]:
    """Return the metrics of the guesses. Metrics that are not certain have a doubt.

    taken: names of the test set that lines of JSON contain.
    """
    unlike = list({(line.key, line.function): line for line in lines}.values())
    last = {guess.key: guess for guess in guesses}  # of lines with the same text, the last one
    found = [_with_pattern(guess, unlike) for guess in last.values()]
    by_name = defaultdict[tuple[str, str], list[Guess]](list)
    for guess in _renamed(found):
        by_name[guess.printed.set, guess.printed.name.lower()].append(guess)
    names = {name.lower() for name in taken}
    return [each for (set_, name), group in by_name.items()
            for each in _one_of(group, set_ == "test" and name in names)]  # fmt: skip


def _with_pattern(guess: Guess, lines: Sequence[Line]) -> Guess:
    """Return a guess with the first candidate pattern that finds its number only, or with a doubt."""
    variable = _variable(guess)
    if variable:
        doubt = (
            f"The script prints the value of `{variable}` before this number, so its set is not known. Replace {WORD} "
            "by the printed word, write the set and a name"
        )
        pattern = "".join([guess.line.start, *_prefix(guess, WORD), guess.number])
        return replace(guess, printed=replace(guess.printed, pattern=pattern, doubt=doubt))
    for pattern in _candidates(guess):
        if _finds_only(guess, pattern, lines):
            return replace(guess, printed=replace(guess.printed, pattern=pattern))
    doubt = "This pattern would also find another number that the script prints. Correct the pattern"
    return replace(guess, printed=replace(guess.printed, doubt=doubt))


def _variable(guess: Guess) -> str:
    """Return the expression before the label that may name its set; "" if there is none."""
    text, template = guess.line.template.text, guess.line.template
    for place, at in enumerate(found.start() for found in re.finditer("\0", text[: guess.label])):
        if place not in guess.line.words or (guess.inside and re.match(r"\x01* ?[^\w\0 ]", text[at + 1 :])):
            continue
        return " ".join(template.values[place].expression.split())[:40]
    return ""


def _candidates(guess: Guess) -> Iterator[str]:
    """Yield patterns, from the shortest to the most exact."""
    short, line = guess.printed.pattern, guess.line.template.text
    prefix = "".join(_prefix(guess))
    patterns = [short]
    if guess.label and line[:1].isalnum():
        patterns.append(rf"\b{prefix}{guess.number}")
    if guess.line.start == LINE_START:
        patterns.append(f"{LINE_START}{prefix}{guess.number}")
    elif guess.line.start:
        patterns.append(f"{guess.line.start}{short}")
    yield from patterns
    after = line[guess.value + 1 :].lstrip("\1")
    text = after.partition("\0")[0]
    if text.strip() or not after:
        end = rf"\s*{_literal(text.strip())}" if text.strip() else ""
        end += r"\s*$" if text == after else ""
        yield from (pattern + end for pattern in patterns)


def _prefix(guess: Guess, word: str = ".*?") -> Iterator[str]:
    """Yield the pattern of the text up to the number. word: the pattern of a value that may be a word."""
    text = guess.line.template.text[: guess.mark].rstrip()
    at, place = len(text) - len(text.lstrip()), 0
    text = text.lstrip()
    for part in re.split(r"(\0\x01*)", text):
        if part[:1] != "\0":
            yield _literal(part)
        else:
            yield r"(?P<step>\d+)" if at == guess.step else word if place in guess.line.words else ".*?"
            place += 1
        at += len(part)


def _literal(text: str) -> str:
    """Return the pattern of a text, without characters that a string of TOML in single quotes cannot contain."""
    return re.sub(r"[^\x20-\x7e\w]|'", ".", escaped(re.sub(r"\s+", " ", text))).replace(" ", r"\s+")


def escaped(text: str) -> str:
    """Return a pattern of a text, with a backslash before each special character. Spaces stay as they are."""
    return re.sub(r"([.+*?()\[\]{}|^$\\])", r"\\\1", text)


def _finds_only(guess: Guess, pattern: str, lines: Sequence[Line]) -> bool:
    """Return whether a pattern finds the number of the guess in each sample of its line, and no other number."""
    compiled = re.compile(pattern)
    group = 2 if "step" in compiled.groupindex else 1
    for line in lines:
        own = line.prints_same(guess.line)
        for sample in line.samples:
            found = [match.start(group) for match in compiled.finditer(sample.text)]
            if own and found != [sample.places[guess.place]]:
                return False
            if not own and found:
                return False
    return True


def _renamed(guesses: Sequence[Guess]) -> list[Guess]:
    """Return the guesses, with more words in the names that several of them have."""
    for longer in (lambda guess: guess.full, _with_words_after):
        names = defaultdict[tuple[str, str], list[Guess]](list)
        for guess in guesses:
            names[guess.printed.set, guess.printed.name.lower()].append(guess)
        guesses = [
            replace(guess, printed=replace(guess.printed, name=longer(guess))) if len(group) > 1 else guess
            for group in names.values() for guess in group
        ]  # fmt: skip
    return list(guesses)


def _with_words_after(guess: Guess) -> str:
    """Return the name with the words after the number, such as accuracy_on_adversarial_set."""
    after = _AFTER.match(guess.line.template.text, guess.value + 1)
    if after is None:
        return guess.printed.name
    return "_".join([guess.printed.name, *re.findall(r"\w+", after[1])]).lower()


def _one_of(group: Sequence[Guess], taken: bool) -> list[Printed]:
    """Return the metrics of guesses with one name. At most one of them has no doubt.

    A line that names the set is preferred, then a line without a step. taken: a line of JSON has the name.
    """
    name, usable = group[0].printed.name, [guess for guess in group if not guess.printed.doubt]
    kept = [guess for guess in usable if guess.printed.certain] or usable
    kept = [guess for guess in kept if guess.step < 0] or kept
    doubt = f"The script prints several numbers that would have the name {name}. Write another name"
    uses = kept[0] if len(kept) == 1 and not taken else None
    return [guess.printed if guess is uses or guess.printed.doubt else replace(guess.printed, doubt=doubt)
            for guess in group]  # fmt: skip
