"""Numbers and progress in what a script prints, by the patterns of its study. Imports no torch.

A pattern is a regular expression that is searched in every line of standard output and standard error, without colours;
a carriage return ends a line too, so each state of a progress bar is one. Its number is the group `value`, or its first
group. With a group `step` every match is also a point of the training curve. A line that several ranks print counts
like one: the last of them, and the first as the curve's point of its step. What is not a number (nan, inf) is taken
also by a group that is written for digits, so that no earlier number stands for it.
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
LONGEST = 10_000  # characters of a line that are searched
LAST_LINES = "The last lines:"  # of the output, at the end of a message
SHOWN_LINES, SHOWN = 5, 200  # of the output in a message, and characters of each
NOT_A_NUMBER = r"(?i:[-+]?(?:nan|inf(?:inity)?))(?![A-Za-z])"
ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_REST = re.compile(r"(?:,\d{3})*(?:\.\d+)?(?:[eE][-+]?\d+)?")
_BETTER: dict[Take, Callable[[float, float], float]] = {"highest": max, "lowest": min}


def check_pattern(pattern: str, needs: int = 1) -> re.Pattern[str]:
    """The compiled pattern. Raises ValueError if it is no regular expression, or has fewer groups than it needs."""
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(
            f"the pattern {pattern!r} is no regular expression: {error}. Write it in single quotes, and a backslash "
            r"before a bracket or a point of the text: 'acc \(%\): ([\d.]+)'"
        ) from None
    groups = [name for name in compiled.groupindex if name != "step"] if needs == 1 else list(compiled.groupindex)
    if compiled.groups - (needs == 1 and "step" in compiled.groupindex) < needs:
        what = r"its number: 'test_acc ([\d.]+)'" if needs == 1 else r"the step and the total: 'step (\d+)/(\d+)'"
        raise ValueError(f"the pattern {pattern!r} has too few groups: put brackets around {what}")
    if needs == 1 and len(groups) > 1 and "value" not in groups:
        raise ValueError(f"the pattern {pattern!r} has the groups {', '.join(groups)}: name that of the number `value`")
    return compiled


@dataclass
class Reading:
    """A metric that is read from the output: `metric` of `set` by `pattern`, of all its matches the one to `take`."""

    set: str
    metric: str
    pattern: str
    take: Take
    value: float | None = None
    captured: str = ""  # a text that is no number
    _step: int = -1  # the last point of the curve
    # compiled patterns, their group of the number
    _forms: list[tuple[re.Pattern[str], int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        compiled = check_pattern(self.pattern)
        steps = compiled.groupindex.get("step")
        number = compiled.groupindex.get("value") or (2 if steps == 1 else 1)
        other = _with_group(self.pattern, number, NOT_A_NUMBER)
        self._forms = [(compiled, number), (re.compile(other), number)]

    @property
    def point(self) -> str:
        """The metric's name in the training curve."""
        return self.metric if self.set == "test" else f"{self.set}_{self.metric}"

    def read(self, line: str) -> Iterator[tuple[int, float]]:
        """Take what a line has, in its order. Yields new points of the curve: step and value."""
        found = {match.start(number): (match, number) for form, number in self._forms for match in form.finditer(line)}
        for _, (match, number) in sorted(found.items(), key=lambda each: each[0]):
            text = match[number] or ""
            if text[-1:].isdigit():  # a group of digits and points ends before an exponent: 1e-05 is not 1
                text += _REST.match(line, match.end(number))[0]  # type: ignore[index]
            text = text.rstrip(".,;:%)]}").replace(",", "")
            try:
                value = float(text)
            except ValueError:
                self.captured = text
                continue
            self._take(value)
            step = _whole(match["step"]) if "step" in match.re.groupindex else None
            if step is not None and step > self._step:
                self._step = step
                yield step, value

    def _take(self, value: float) -> None:
        better = _BETTER.get(self.take)
        if better is None or self.value is None or not math.isfinite(self.value):
            self.value = value
        elif math.isfinite(value):
            self.value = better(self.value, value)


class Readings:
    """All that a study reads from the output of one run, from threads for its two streams."""

    def __init__(self, patterns: Sequence[Sequence[str]], progress: str, emit: Callable[..., None]) -> None:
        """patterns: set, metric, pattern and `take` of each. progress: the pattern of step and total; "": none."""
        self.each = [Reading(set_, metric, pattern, take) for set_, metric, pattern, take in patterns]  # type: ignore[arg-type]
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
        """Forget the numbers, not the steps of the curve: what follows is behind a gap in the output."""
        for one in self.each:
            one.value, one.captured = None, ""

    def never(self, one: Reading) -> str:
        """Why a pattern has no number, with the last lines of the output."""
        why = (
            f"took {one.captured[:SHOWN]!r}, which is no number" if one.captured else "matched nothing that it printed"
        )
        last = "".join(f"\n    {line[:SHOWN]}" for line in self._last)
        return (
            f"The command succeeded, and the pattern of {one.metric}, '{one.pattern}', {why}. Correct it in the "
            "study's [[metric]]: `ablations run` then reads the number from the kept log, and trains nothing. "
            + (f"{LAST_LINES}{last}" if last else "The command printed nothing at all.")
        )


def report_progress(emit: Callable[..., None], done: Any, total: Any) -> None:
    """Report that a training has completed `done` of `total` steps; nothing if they are none."""
    step, last = _whole(done), _whole(total)
    if step is not None and last is not None and last > 0 and step <= last:
        emit("progress", what="training", done=step, total=last)


def _whole(text: Any) -> int | None:
    """A number of steps; 1,000 is one too."""
    try:
        number = int(str(text).replace(",", "").strip())
    except ValueError:
        return None
    return number if 0 <= number <= LAST_STEP else None


def _with_group(source: str, number: int, content: str) -> str:
    """A valid pattern with other content in its group of that number."""
    opened: list[tuple[int, int]] = []  # number (0: it captures nothing) and begin of the groups that are open
    groups = at = 0
    while at < len(source):
        named = re.compile(r"\(\?P<\w+>").match(source, at)
        if source[at] == "\\":
            at += 1
        elif source[at] == "[":  # a bracket directly behind it is one of its characters
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
