"""Parse and write the line of text that describes an architecture, and count its layers. Imports no torch.

    line    = [item {"," item}]
    item    = [count "*"] (sublayer | "(" line ")")        count = an integer, or N
    sublayer = name ["(" [option {"," option}] ")"]        option = name "=" value
    value   = an integer, a number, true, false, or an identifier

At the outermost level, a group in brackets is one layer, and a sub-layer outside brackets is also one layer. Inside a
layer, brackets and counts repeat sub-layers. This module does not check the names of sub-layers and options.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

Value = int | float | bool | str
_TOKEN = re.compile(
    r"\s*(?:(?P<number>-?\d+(?:\.\d+)?(?:[eE]-?\d+)?)|(?P<word>[A-Za-z_]\w*)|(?P<sign>[*(),=])|(?P<end>$))"
)
DEEPEST = 20  # maximum nesting of brackets
LONG = 300  # maximum number of characters of a line that an error message quotes
_WORDS: dict[str, Value] = {"true": True, "false": False}


class GrammarError(ValueError):
    """An error in a line, such as a syntax error. `text` is the line; `column` counts from 1."""

    def __init__(self, text: str, column: int, message: str) -> None:
        super().__init__(f'"{text if len(text) <= LONG else text[:LONG] + "…"}", column {column}: {message}')
        self.text, self.column, self.message = text, column, message


class Named(NamedTuple):
    """One sub-layer as written in the line: its name, its options and its column."""

    name: str
    options: Mapping[str, Value]
    column: int


class Repeated(NamedTuple):
    """An item of a line: a sub-layer or a group that is repeated `times` times. `times` is None for N."""

    times: int | None
    content: "Named | tuple[Repeated, ...]"


class _Token(NamedTuple):
    kind: str  # "number", "word", "sign" or "end"
    text: str
    column: int


def parse(text: str) -> tuple[Repeated, ...]:
    """Return the items of a line, or () for an empty line. Raises GrammarError."""
    reader = _Reader(text)
    items = reader.items() if reader.now.kind != "end" else ()
    reader.expect("end")
    return items


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self._place = text, 0
        self.now = self._next()

    def items(self, depth: int = 0) -> tuple[Repeated, ...]:
        items = [self._item(depth)]
        while self._take(","):
            items.append(self._item(depth))
        return tuple(items)

    def _item(self, depth: int = 0) -> Repeated:
        count: int | None = 1
        if self.now.kind == "number" or self.now.text == "N":
            written = self._advance()
            if written.text != "N" and not written.text.isdigit():
                raise GrammarError(self.text, written.column, f"{written.text} layers: write a whole number or N")
            count = None if written.text == "N" else int(written.text)
            if count == 0 or (count or 0) > 10_000:
                raise GrammarError(self.text, written.column, f"{count} times: write a number from 1 to 10,000")
            self.expect("*")
        if self.now.text == "(":
            bracket = self._advance()
            if depth == DEEPEST:
                raise GrammarError(self.text, bracket.column, f"more than {DEEPEST} brackets in one another")
            group = self.items(depth + 1)
            self.expect(")")
            return Repeated(count, group)
        name = self.expect("word", "the name of a sub-layer")
        return Repeated(count, Named(name.text, self._options() if self._take("(") else {}, name.column))

    def _options(self) -> dict[str, Value]:
        options: dict[str, Value] = {}
        while not self._take(")"):
            if options:
                self.expect(",")
            name = self.expect("word", "the name of an option")
            if name.text in options:
                raise GrammarError(self.text, name.column, f"{name.text} is given twice")
            self.expect("=")
            options[name.text] = self._value()
        return options

    def _value(self) -> Value:
        token = self.now
        if token.kind not in ("number", "word"):
            self.expect("word", "a value")
        self._advance()
        if token.kind == "word":
            return _WORDS.get(token.text, token.text)
        return int(token.text) if re.fullmatch(r"-?\d+", token.text) else float(token.text)

    def expect(self, what: str, name: str = "") -> _Token:
        """Return the current token and read the next one. Raises GrammarError unless its kind or text is `what`."""
        if what not in (self.now.kind, self.now.text):
            there = f'"{self.now.text}"' if self.now.text else "the end"
            wanted = name or {"end": "a comma, or the end"}.get(what, f'"{what}"')
            raise GrammarError(self.text, self.now.column, f"found {there}, expected {wanted}")
        return self._advance()

    def _take(self, sign: str) -> bool:
        if self.now.text != sign:
            return False
        self._advance()
        return True

    def _advance(self) -> _Token:
        token, self.now = self.now, self._next()
        return token

    def _next(self) -> _Token:
        token = _TOKEN.match(self.text, self._place)
        if token is None:
            place = len(self.text) - len(self.text[self._place :].lstrip())
            raise GrammarError(self.text, place + 1, f"{self.text[place]!r} has no meaning here")
        self._place = token.end()
        kind = str(token.lastgroup)
        return _Token(kind, token[kind], token.start(kind) + 1)


def canonical(text: str) -> str:
    """Return the line in canonical spelling, so that extra spaces do not change the run_id. Raises GrammarError."""
    return ", ".join(written(item) for item in parse(text))


def written(item: Repeated) -> str:
    """Return an item as text: "6 * (self_attention, feed_forward(d_ff=8))"."""
    count = "" if item.times == 1 else f"{item.times or 'N'} * "
    if not isinstance(item.content, Named):
        return f"{count}({', '.join(written(inner) for inner in item.content)})"
    options = ", ".join(f"{name}={value_text(value)}" for name, value in item.content.options.items())
    return f"{count}{item.content.name}{f'({options})' if options else ''}"


def value_text(value: Value) -> str:
    """Return a value as written in a line, with true and false in lower case."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def total(items: Iterable[Repeated], n: int) -> int:
    """Return the number of sub-layers, with all repetitions. `n` is the value of N."""
    count = 0
    for times, content in items:
        inside = 1 if isinstance(content, Named) else total(content, n)
        count += inside * (n if times is None else times)
    return count


def layers(items: Iterable[Repeated], n: int) -> Iterator[tuple[Repeated, ...]]:
    """Yield the items of each layer. `n` is the value of N."""
    for times, content in items:
        for _ in range(n if times is None else times):
            yield (Repeated(1, content),) if isinstance(content, Named) else content


def sublayers(items: Iterable[Repeated], n: int) -> Iterator[Named]:
    """Yield every sub-layer, once for each repetition. `n` is the value of N."""
    for times, content in items:
        for _ in range(n if times is None else times):
            if isinstance(content, Named):
                yield content
            else:
                yield from sublayers(content, n)


def has_n(items: Iterable[Repeated]) -> bool:
    """Return whether N occurs in a line."""
    return any(item.times is None or (not isinstance(item.content, Named) and has_n(item.content)) for item in items)
