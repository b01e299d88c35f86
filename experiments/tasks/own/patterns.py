"""Find numbers and progress in the output of a command by the patterns of its study.

A pattern is a regular expression. The pattern is searched in every line of standard output and standard error, after
colour codes have been removed. A carriage return also ends a line, so each state of a progress bar is a line. The
number is the text of the group `value`, or of the first group that is not `step`. If the pattern has a group `step`,
every match is also a point of the training curve.

If several ranks print the same line, the last line gives the number, and the first line gives the point of the curve.
A group whose pattern matches only digits also finds nan, inf and words such as None, so that a number before them is
not used instead. The minus sign U+2212 is read as "-".

The text of the group is read as a Python number, such as 1234.5 or 1e-05. Two cases are ambiguous: a comma in the
text, and further digits directly after the group. In these cases no number is read, unless the metric declares the
format of its numbers, such as `number = "1.234,5"`. An exponent directly after the group is added to the number,
because it is not ambiguous. No number is read either if the group is a part of 1.5k, 12:30, 3/4 or 1 234.5 and the
pattern ends there. Units (12s, 0.9%, 3ms), brackets, commas and points may follow the group.

This module does not import torch.
"""

import math
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from experiments.events.lines import LAST_STEP

Take = Literal["last", "highest", "lowest"]
LONGEST = 10_000  # number of characters of a line that are searched
LAST_LINES = "The last lines:"  # heading of the last lines of the output in a message
SHOWN_LINES, SHOWN = 5, 200  # number of last lines in a message, and maximum number of characters per line
NOT_A_NUMBER = r"(?i:[-+]?(?:nan|inf(?:inity)?))(?![A-Za-z])"
MISSING = r"(?:None|null|NULL|N/A|n/a|NA|undefined)(?!\w)"  # words printed in place of a number
ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
NUMBERS = ("1234.5", "1,234.5", "1 234.5", "1'234.5", "1234,5", "1.234,5", "1 234,5", "1'234,5")
_EXPONENT = re.compile(r"[eE][-+]?\d+(?![\w.])")
_GOES_ON = re.compile(r"[.,'_\u2019\xa0\u202f]\d[\d.,]*|\d[\d.,]*")  # the rest of a number, after the group
_LARGER = re.compile(
    r"[kKMG](?![A-Za-z])|[:/]\d[\d.:/]*|[dD][-+]?\d+|\s?[×*x]\s?10(?:\^|\*\*)[-+\d]+"
)  # 1.5k, 12:30, 3/4
_THOUSANDS = re.compile(r"(?:[ \u2009]\d{3})+(?!\d)(?:[.,]\d+)?")  # the rest of 1 234.5
_SPACES = str.maketrans({"\u2212": "-", "\xa0": " ", "\u202f": " ", "\u2009": " ", "\u2019": "'"})
_TRAILING = ".,;:%)]}"
_GROUPS = r"[-+]?[1-9]\d{0,2}(\.\d{3})+"  # a number with points that may separate thousands
_CUT = "|"  # marks the end of the group within a longer number
_BETTER: dict[Take, Callable[[float, float], float]] = {"highest": max, "lowest": min}


def check_pattern(pattern: str, needs: int = 1) -> re.Pattern[str]:
    """Compile a pattern. Raises ValueError if it is not a valid regular expression or has the wrong groups.

    needs: number of groups that the pattern must have: 1 for a metric, 2 for progress.
    """
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(
            f"the pattern {pattern!r} is not a valid regular expression: {error}. Write it in single quotes, and a "
            f"backslash "
            r"before a bracket or a point of the text: 'acc \(%\): ([\d.]+)'"
        ) from None
    groups = [name for name in compiled.groupindex if name != "step"] if needs == 1 else list(compiled.groupindex)
    if compiled.groups - (needs == 1 and "step" in compiled.groupindex) < needs:
        what = r"its number: 'test_acc ([\d.]+)'" if needs == 1 else r"the step and the total: 'step (\d+)/(\d+)'"
        raise ValueError(f"the pattern {pattern!r} has too few groups. Put brackets around {what}")
    if needs == 1 and len(groups) > 1 and "value" not in groups:
        raise ValueError(
            f"the pattern {pattern!r} has the groups {', '.join(groups)}. Name the group of the number `value`"
        )
    return compiled


def check_number(number: str) -> str:
    """Return the example of the format of numbers, such as 1.234,5. Raises ValueError if it is not in NUMBERS."""
    if number and number.translate(_SPACES) not in NUMBERS:
        raise ValueError(f"number = {number!r}: expected one of {', '.join(NUMBERS)}, as the trainer prints 1234.5")
    return number.translate(_SPACES)


def as_number(text: str, number: str = "") -> float:
    """Return the number that a text represents. Raises ValueError if the text does not have the format.

    number: an example of the format from NUMBERS; "" means 1234.5.
    """
    thousands, decimal = number[1:-5], number[-2:-1] or "."
    text = text.translate(_SPACES)
    if not thousands and decimal == ".":
        if "_" in text:
            raise ValueError(text)
        return float(text)
    digits = rf"(?:\d{{1,3}}(?:{re.escape(thousands)}\d{{3}})+|\d+)" if thousands else r"\d+"
    if math.isfinite(_float(text)) and not re.fullmatch(
        rf"[-+]?(?:{digits}(?:{re.escape(decimal)}\d*)?|{re.escape(decimal)}\d+)(?:[eE][-+]?\d+)?", text
    ):
        raise ValueError(text)
    return float(text.replace(thousands, "").replace(decimal, ".") if thousands else text.replace(decimal, "."))


def _float(text: str) -> float:
    """Return float(text), or 0 if the text is not a Python number."""
    try:
        return float(text)
    except ValueError:
        return 0.0


@dataclass
class PatternReading:
    """A metric that a pattern reads from the output.

    take: which of the matches to use: the last one, or the one with the highest or lowest number.
    number: an example of the format of numbers.
    value: the number found so far.
    captured: the last matched text that is not a number.
    ambiguous: the last matched number that cannot be read, or that can be read in two ways. If it is set, `value` is
        None.
    """

    set: str
    metric: str
    pattern: str
    take: Take
    number: str = ""
    value: float | None = None
    captured: str = ""
    ambiguous: str = ""
    _step: int = -1  # step of the last point of the training curve
    # (compiled pattern, number of the group with the number)
    _forms: list[tuple[re.Pattern[str], int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        compiled = check_pattern(self.pattern)
        steps = compiled.groupindex.get("step")
        number = compiled.groupindex.get("value") or (2 if steps == 1 else 1)
        other = _with_group(self.pattern, number, f"(?:{NOT_A_NUMBER}|{MISSING})")
        self._forms = [(compiled, number), (re.compile(other), number)]

    @property
    def point(self) -> str:
        """The name of the metric in the training curve."""
        return self.metric if self.set == "test" else f"{self.set}_{self.metric}"

    def read(self, line: str) -> Iterator[tuple[int, float]]:
        """Read the numbers of a line, in their order. Yield the new points of the training curve, (step, value)."""
        if "\u2212" not in self.pattern:
            line = line.replace("\u2212", "-")
        found = {match.start(number): (match, number) for form, number in self._forms for match in form.finditer(line)}
        for _, (match, number) in sorted(found.items(), key=lambda each: each[0]):
            text = match[number] or ""
            whole = self._whole_number(text, line, match, number)
            try:
                value = as_number(whole.strip().rstrip(_TRAILING), self.number)
            except ValueError:
                if re.search(r"\d", whole):
                    self._refuse(whole)
                else:
                    self._not_a_number(text)
                continue
            self._take(value)
            step = _whole(match["step"]) if "step" in match.re.groupindex else None
            if step is not None and step > self._step:
                self._step = step
                yield step, value

    def _whole_number(self, text: str, line: str, match: re.Match[str], number: int) -> str:
        """Return the text of the group. If the pattern ends with the group, add the rest of the number after it.

        An exponent is added directly. Other digits are added after the mark _CUT.
        """
        end = match.end(number)
        if not text[-1:].isdigit() or end != match.end():
            return text
        if exponent := _EXPONENT.match(line, end):
            return text + exponent[0]
        spaced = re.fullmatch(r"[-+]?[1-9]\d{0,2}", text) and (not self.number or " " in self.number)
        goes_on = _GOES_ON.match(line, end) or _LARGER.match(line, end)
        goes_on = goes_on or (_THOUSANDS.match(line, end) if spaced else None)
        if goes_on is None:
            return text
        listed = "." in text and goes_on[0].startswith(",")  # "0.5,0.6" is two numbers, "1.234,5" may be one number
        if listed and not (re.fullmatch(_GROUPS, text) and goes_on[0][1:].rstrip(_TRAILING).isdigit()):
            return text
        return f"{text}{_CUT}{goes_on[0]}"

    def _not_a_number(self, text: str) -> None:
        """Record a text without digits. A word such as None removes the value if the last match counts."""
        self.captured = text
        if self.take == "last" and re.fullmatch(MISSING, text.strip().rstrip(_TRAILING)):
            self.value, self.ambiguous = None, ""

    def _refuse(self, text: str) -> None:
        """Record a number that cannot be read, and remove the value.

        The unreadable number could be the last one or the best one, so no other number is used.
        """
        self.value, self.ambiguous = None, text.strip()

    def _take(self, value: float) -> None:
        better = _BETTER.get(self.take)
        if better is None:
            self.ambiguous = ""
        elif self.ambiguous:
            return
        if better is None or self.value is None or not math.isfinite(self.value):
            self.value = value
        elif math.isfinite(value):
            self.value = better(self.value, value)


class Readings:
    """All metrics and the progress that a study reads from the output of one run.

    Two threads may call `line`, for standard output and standard error.
    """

    def __init__(self, patterns: Sequence[Sequence[str]], progress: str, emit: Callable[..., None]) -> None:
        """Compile the patterns.

        patterns: (set, metric, pattern, take) or (set, metric, pattern, take, number) for each metric.
        progress: the pattern for the step and the total number of steps; "" if there is none.
        emit: function that reports points of the training curve and progress.
        """
        self.each = [PatternReading(*each) for each in patterns]  # type: ignore[arg-type]
        self._progress = check_pattern(progress, 2) if progress else None
        self._emit, self._turn = emit, threading.Lock()
        self._last: deque[str] = deque(maxlen=SHOWN_LINES)

    @property
    def complete(self) -> bool:
        """Whether every pattern has found a number."""
        return all(one.value is not None for one in self.each)

    def line(self, line: str) -> None:
        """Read a line of the output."""
        text = ESCAPES.sub("", line[:LONGEST])
        with self._turn:
            if text.strip():
                self._last.append(text.strip())
            for one in self.each:
                for step, value in one.read(text):
                    self._emit("metrics", step=step, metrics={one.point: value})
            found = self._progress and list(self._progress.finditer(text))
            if found:
                named = found[-1].re.groupindex
                report_progress(self._emit, *(found[-1][named.get(n, i)] for i, n in enumerate(("step", "total"), 1)))

    def forget(self) -> None:
        """Forget the numbers, because the next line follows a gap in the output. Steps of the curves are kept."""
        for one in self.each:
            one.value, one.captured, one.ambiguous = None, "", ""

    def never(self, one: PatternReading) -> str:
        """Return the message for a pattern that found no number: the reason and the last lines of the output."""
        why = "matched nothing in the output"
        if one.ambiguous:
            why = _unread(one)
        elif one.captured:
            why = f"took {one.captured[:SHOWN]!r}, which is no number"
        last = "".join(f"\n    {line[:SHOWN]}" for line in self._last)
        return (
            f"The command succeeded, and the pattern of {one.metric}, '{one.pattern}', {why}. Correct it in the "
            "study's [[metric]]: `ablations run` then reads the number from the kept log, without training. "
            + (f"{LAST_LINES}{last}" if last else "The command printed nothing.")
        )


def _unread(one: PatternReading) -> str:
    """Return the reason why a number is ambiguous, and the setting that declares its format."""
    taken, cut, rest = one.ambiguous[:SHOWN].partition(_CUT)
    how = 'Give an example of how numbers are printed, beside the pattern: number = "1,234.5" or number = "1.234,5"'
    if cut and _THOUSANDS.match(rest):
        return (
            f"took {taken!r} of {taken + rest!r}, which can be one number or two. For one, let its group take all of "
            'it, as in ([-+\\d., ]+), and add number = "1 234.5"; for two, add number = "1234.5"'
        )
    if cut and _LARGER.match(rest):
        goes_on = rest[0] if rest[0].isspace() else re.escape(rest[0])
        return (
            f"took {taken!r} of {taken + rest!r}, a part of a number. Print the number like 1234.5. If this part is "
            f"the number, continue the pattern after its group, as in ([-+\\d.]+){goes_on}"
        )
    if cut:
        return (
            f"took {taken!r} of {taken + rest!r}, a part of a number. Let its group take all of it, as in ([-+\\d.,e]+)"
            f"{'' if one.number else f'. {how}'}"
        )
    if one.number:
        return f"took {taken!r}, which is not written like number = {one.number!r}"
    if re.search(r"\d[,' ]\d", taken.translate(_SPACES)):
        return f"took {taken!r}, which can be read in two ways. {how}"
    return f"took {taken!r}, which is no number"


def report_progress(emit: Callable[..., None], done: Any, total: Any) -> None:
    """Report that a training has completed `done` of `total` steps. Do nothing if these are not valid steps."""
    step, last = _whole(done), _whole(total)
    if step is not None and last is not None and last > 0 and step <= last:
        emit("progress", what="training", done=step, total=last)


def _whole(text: Any) -> int | None:
    """Return a text such as "1000" or "1,000" as a number of steps; None if it is not such a number."""
    written = str(text).strip()
    if "," in written and not re.fullmatch(r"\d{1,3}(,\d{3})+", written):
        return None
    try:
        number = int(written.replace(",", ""))
    except ValueError:
        return None
    return number if 0 <= number <= LAST_STEP else None


def _with_group(source: str, number: int, content: str) -> str:
    """Return a pattern in which `content` replaces the content of a group. number: the number of the group."""
    opened: list[tuple[int, int]] = []  # open groups: (number, or 0 for a group that captures nothing; start)
    groups = at = 0
    while at < len(source):
        named = re.compile(r"\(\?P<\w+>").match(source, at)
        if source[at] == "\\":
            at += 1
        elif source[at] == "[":  # a "]" directly after "[" or "[^" is one of the characters of the set
            at = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*").match(source, at).end()  # type: ignore[union-attr]
        elif source[at] == "(":
            captures = named is not None or not source.startswith("(?", at)
            groups += captures
            opened.append((groups * captures, named.end() if named else at + 1))
        elif source[at] == ")":
            group, begin = opened.pop()
            if group == number:
                return f"{source[:begin]}{content}{source[at:]}"
        at += 1
    return source
