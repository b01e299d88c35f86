"""The texts that calls of print and of loggers print, with marks in place of the values, and samples of these texts."""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ablations.service.from_script.option import literal, name_of
from experiments.tasks.own.patterns import ESCAPES

# Words that a value of unknown type may print. A pattern that one of them changes does not find one metric only.
_SETS = ("test", "val", "train", "valid", "dev", "eval", "validation", "training", "best")
WORDS = (*_SETS, *(word.capitalize() for word in _SETS), *(word.upper() for word in _SETS), "other")
BAR = ("set_description", "set_description_str", "set_postfix", "set_postfix_str")  # methods of a progress bar
_PERCENT = re.compile(r"%(?:\(\w+\))?[-+ 0-9.]*[dfgseixr]")
_FIELD = re.compile(r"\{([^{}:!]*)[^{}]*\}")
_NUMERIC = re.compile(r"(?::[^{}]*[dfFgGeEn%,]|:[^{}a-z]*\.\d+|%[-+ 0-9.]*[dfgeix])\W*$")
_NUMBER_NAMES = re.compile(
    r"(?:n|i|j|e|t|it|ep|idx|id|lr|dt|eta|epochs?|steps?|iter\w*|index|batch\w*|fold|seed|rank|gpu|total|count|size|len"
    r"|time\w*|date\w*|now|elapsed|num\w*|n_\w+|\w*_(?:n|i|idx|id|epochs?|steps?|iter|num|lr|time|loss|acc|accuracy)"
    r"|max_\w+|loss\w*|acc\w*|score|avg|mean|val|value|stamp|timestamp|asctime"
    r"|red|green|blue|yellow|cyan|magenta|bold|okgreen|okblue|okcyan|reset|reset_all|endc|end)",
    re.IGNORECASE,
)
_NUMBER_CALLS = ("len", "int", "float", "round", "sum", "abs", "item", "mean", "time", "perf_counter", "strftime",
                 "now", "ctime", "get_lr", "get_last_lr", "numel")  # fmt: skip


@dataclass(frozen=True)
class Value:
    """An inserted value: its expression, and whether its format or its expression says that it is a number."""

    expression: str
    number: bool = False


@dataclass(frozen=True)
class Template:
    """A printed text, and its values.

    The text has \\0 for each inserted value, followed by \\1 for each decimal of the value.
    """

    text: str
    values: tuple[Value, ...]

    def value_at(self, place: int) -> Value:
        """Return the value at a position of the text."""
        count = self.text[:place].count("\0")
        return self.values[count] if count < len(self.values) else Value("")

    def lines(self) -> Iterator["Template"]:
        """Yield a template for each line of the text."""
        count = 0
        for text in re.split(r"[\n\r]", self.text):
            inside = text.count("\0")
            yield Template(text, self.values[count : count + inside])
            count += inside


def template_of(call: ast.Call) -> Template:
    """Return the template of the text that a call of print or of a logger prints."""
    parts = [_template(argument) for argument in call.args]
    first = parts[0] if parts else Template("", ())
    if len(parts) > 1 and re.search(r"%[-+ 0-9.]*[dfgs]", first.text) and name_of(call) != "print":
        # A logger formats its other arguments into the first one.
        return _percent(first.text, [value for part in parts[1:] for value in part.values])
    return Template(" ".join(part.text for part in parts), tuple(value for part in parts for value in part.values))


def bar_of(call: ast.Call) -> Template:
    """Return the template of the text that a progress bar shows after a call of one of BAR."""
    given = call.args[0] if call.args else None
    pairs = [(str(literal(key)), one) for key, one in zip(given.keys, given.values, strict=True)
             ] if isinstance(given, ast.Dict) else []  # fmt: skip
    pairs += [(word.arg, word.value) for word in call.keywords if word.arg]
    if name_of(call) == "set_postfix":
        text = "".join(f", {key}=\0" for key, _ in pairs)
        return Template(f"\0%|\0{text}]", (Value("", True),) * (len(pairs) + 2))
    text = template_of(call).text
    return Template(f"{text}: \0%", (Value("", True),) * (text.count("\0") + 1))


def _template(node: ast.AST) -> Template:
    if isinstance(node, ast.JoinedStr):
        texts, values = list[str](), list[Value]()
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                written = ast.unparse(part)
                texts.append(_mark(written))
                values.append(Value(ast.unparse(part.value), _is_numeric(written) or _is_number(part.value)))
            else:
                texts.append(str(literal(part)))
        return Template(ESCAPES.sub("", "".join(texts)), tuple(values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and isinstance(node.left, ast.Constant):
        given = node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
        return _percent(ESCAPES.sub("", str(node.left.value)), [_value(each) for each in given])
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _template(node.left), _template(node.right)
        return Template(left.text + right.text, left.values + right.values)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        text = literal(node.func.value)
        if isinstance(text, str):
            return _formatted(ESCAPES.sub("", text), node)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return Template(ESCAPES.sub("", node.value), ())
    if isinstance(node, ast.Call) and name_of(node) in ("str", "round", "float") and node.args:
        return Template("\0", (Value(ast.unparse(node.args[0]), _is_number(node)),))
    return Template("\0", (_value(node),)) if isinstance(node, ast.expr) else Template("", ())


def _value(node: ast.AST) -> Value:
    return Value(ast.unparse(node), _is_number(node))


def _percent(text: str, values: Sequence[Value]) -> Template:
    """Return the template of a text that is formatted with the operator %."""
    formats = [found[0] for found in _PERCENT.finditer(text)]
    given = [*values, *[Value("")] * len(formats)]
    known = tuple(Value(one.expression, one.number or _is_numeric(form))
                  for one, form in zip(given, formats, strict=False))  # fmt: skip
    return Template(_PERCENT.sub(lambda found: _mark(found[0]), text).replace("%%", "%"), known)


def _formatted(text: str, call: ast.Call) -> Template:
    """Return the template of a str.format call. A value is the name of its field, or the next argument."""
    values, given = list[Value](), iter(call.args)

    def value(found: re.Match[str]) -> str:
        name = found[1]
        one = next(given, None) if name == "" else None
        expression = name if name else ast.unparse(one) if one is not None else ""
        number = _is_numeric(found[0]) or (one is not None and _is_number(one))
        if name.isdigit() and int(name) < len(call.args):
            number = number or _is_number(call.args[int(name)])
        values.append(Value(expression, number or bool(_NUMBER_NAMES.fullmatch(expression.rpartition(".")[2]))))
        return _mark(found[0])

    return Template(_FIELD.sub(value, text), tuple(values))


def _mark(written: str) -> str:
    """Return \\0 for a value, followed by \\1 for each decimal of its format."""
    decimals = re.search(r"\.(\d)[fFeEgG%]?\W*$", written)
    return "\0" + "\1" * int(decimals[1] if decimals else 0)


def _is_numeric(written: str) -> bool:
    """Return whether the format of a value, such as {x:.3f} or %d, accepts only numbers."""
    return bool(_NUMERIC.search(written))


def _is_number(node: ast.AST) -> bool:
    """Return whether an expression is a number, a time or a colour. Other expressions may be words."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float)
    if isinstance(node, ast.BinOp):
        numbers = _is_number(node.left) or _is_number(node.right)
        return numbers if isinstance(node.op, ast.Add | ast.Mult | ast.Mod) else True
    if isinstance(node, ast.UnaryOp):
        return _is_number(node.operand)
    if isinstance(node, ast.Call):
        return name_of(node) in _NUMBER_CALLS
    return bool(_NUMBER_NAMES.fullmatch(name_of(node)))


def loop_words(around: Sequence[ast.AST]) -> dict[str, tuple[str, ...]]:
    """Return what the variables of the loops around a call print: their words, or () for numbers."""
    found = dict[str, tuple[str, ...]]()
    for loop in around:
        if not isinstance(loop, ast.For | ast.AsyncFor):
            continue
        called = name_of(loop.iter) if isinstance(loop.iter, ast.Call) else ""
        first = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) and loop.target.elts else loop.target
        if called in ("range", "trange", "enumerate") and isinstance(first, ast.Name):
            found[first.id] = ()
        if not isinstance(loop.iter, ast.List | ast.Tuple):
            continue
        targets = loop.target.elts if isinstance(loop.target, ast.Tuple) else [loop.target]
        for place, target in enumerate(targets):
            several = isinstance(loop.target, ast.Tuple)
            rows = [each.elts if several and isinstance(each, ast.Tuple | ast.List) else [each]
                    for each in loop.iter.elts]  # fmt: skip
            words = [literal(row[place]) for row in rows if place < len(row)]
            if isinstance(target, ast.Name) and words and all(isinstance(word, str) for word in words):
                found[target.id] = tuple(words)
    return found


@dataclass(frozen=True)
class Sample:
    """A line as a run may print it. places: the start of each value in the line."""

    text: str
    places: tuple[int, ...]


def samples(line: Template, words: Mapping[int, Sequence[str]]) -> list[Sample]:
    """Return samples of a line. words: for values that may print words, the words; other values are numbers."""
    count = max([len(each) for each in words.values()], default=0)
    return [_sample(line, {place: each[n % len(each)] for place, each in words.items()}) for n in range(count)] + [
        _sample(line, {})
    ]


def _sample(line: Template, words: Mapping[int, str]) -> Sample:
    text, places = "", list[int]()
    for part in re.split(r"(\0\x01*)", line.text):
        if part[:1] != "\0":
            text += part
            continue
        count = len(places)
        places.append(len(text))
        text += words.get(count, f"{count + 3}.{'5' * (len(part) - 1)}".rstrip("."))
    return Sample(text, tuple(places))
