"""Guess the metrics and the progress that a script prints from its calls of print and of loggers.

Each guessed metric contains the source line that prints it. Lines that are printed only because of an error do not
count. Such lines are in a block that ends with `raise` or an exit with an error code, or in an `except` block.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ablations.service.from_script.option import literal, name_of
from ablations.service.from_script.reach import Code, Node
from experiments.tasks.own.patterns import ESCAPES

_METRIC = re.compile(
    r"(?:(?<![a-z])|(?<=test)|(?<=train)|(?<=val)|(?<=dev)|(?<=eval))(acc|accuracy|f1|bleu|auc|auroc|score|loss|ppl|perplexity|err|error|rmse|mse|mae|r2|wer|cer|iou|miou|map"
    r"|recall|precision|psnr|ssim|fid)(?![a-z])", re.IGNORECASE,
)  # fmt: skip
# The next three patterns match a label before a value, a value with its average such as "0.5 (0.6)", and a count such
# as "7/10 (70%)". In these patterns, \0 stands for a value and \x01 for each of its decimals (see `_Template`).
_LABEL = re.compile(r"((?:[A-Za-z][\w@/.-]*[ \t]+)?[A-Za-z][\w@/.-]*)([ \t]*[:=]?)([ \t]*)\0(\x01*)")
_AVERAGE = re.compile(r"\0\x01*([ \t]*\([ \t]*)\0(\x01*)")
_COUNT = re.compile(r"\0\x01*[ \t]*/[ \t]*(?:\0\x01*|\d+)(?:[ \t,:]*\([ \t]*\0(\x01*)[ \t]*%)?")
_BEGIN = re.compile(r"\W*(test|val|valid|validation|dev|eval|evaluation|train|training)(?![a-z])", re.IGNORECASE)
_INSIDE = re.compile(r"(?<![A-Za-z])(test|val|valid|validation|dev|eval|train)(?![a-z])", re.IGNORECASE)
_STEP = re.compile(r"\b(epoch|step|iter|iteration|it|round|update)\b([ \t]*[:=#]?[ \t]*[\[(]?[ \t]*)\0", re.IGNORECASE)
_MEAN = re.compile(r"avg|average|mean", re.IGNORECASE)
NUMBER = r"([-+\d.e]+)"
_PRINTS = ("print", "info", "echo", "secho")
_STREAMS = ("stdout", "stderr", "tqdm")  # a write to another object is regarded as a write to a file
_SETS = {"test": "test", "train": "train", "training": "train",
         **dict.fromkeys(("val", "valid", "validation", "dev", "eval", "evaluation"), "dev")}  # fmt: skip
_LOSS = re.compile("loss", re.IGNORECASE)
_SET = re.compile(r"(test|val|valid|validation|dev|eval|train)[ _/-]+(?=.)", re.IGNORECASE)
_STOP = {"is", "are", "was", "of", "on", "at", "the", "a", "to", "in", "for", "and", "with", "by", "after", "from",
         "has", "reached", "so", "far", "now", "than", "be", "this"}  # fmt: skip


@dataclass(frozen=True)
class Printed:
    """A number that a script prints.

    pattern: the regular expression that finds the number in the output; "" for a line of JSON. digits: number of
    decimals. line: the source line that prints the number.
    """

    set: str
    name: str
    pattern: str
    digits: int
    line: str


@dataclass(frozen=True)
class _Template:
    """A printed text, and the expressions of its values.

    The text has \\0 for each inserted value, followed by \\1 for each decimal of the value.
    """

    text: str
    values: tuple[str, ...]


def printed(code: Code) -> Iterator[Printed]:
    """Yield the metrics that calls of print and of loggers print: numbers after a name, and keys of JSON."""
    failing = _failing(code)
    for at, call in code.calls():
        if not _is_print(call) or id(call) in failing or _except(at):
            continue
        line = f"{at.file.name}:{call.lineno}: {' '.join(ast.unparse(call).split())}"
        line = line if len(line) <= 150 else f"{line[:149]}…"
        for one in (inner for argument in call.args for inner in ast.walk(argument)):
            if isinstance(one, ast.Call) and name_of(one) == "dumps" and one.args and isinstance(one.args[0], ast.Dict):
                keys = [literal(key) for key in one.args[0].keys]
                if "step" not in keys:
                    yield from (Printed("test", str(key), "", 0, line) for key in keys if _METRIC.search(_split(key)))
        yield from _of_template(_template_of(call), line)


def _is_print(call: ast.Call) -> bool:
    of = name_of(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    return name_of(call) in _PRINTS or (name_of(call) == "write" and (of in _STREAMS or of.endswith("bar")))


def _of_template(template: _Template, line: str) -> Iterator[Printed]:
    text = template.text
    step = _STEP.search(text)
    for found in _LABEL.finditer(text):
        label, mark, _, decimals = found.groups()
        named = _named(label)
        if named is None:
            continue
        set_, name = named
        inside, begin = _SET.match(label) or _INSIDE.search(label), _BEGIN.match(text)
        if not _SET.match(label) and (of := inside or begin):
            set_ = _SETS[of[1].lower()]
        number, digits = rf"\s*{NUMBER}", len(decimals)
        value_at = found.end() - len(decimals) - 1
        average = _AVERAGE.match(text, value_at)
        if average and _MEAN.search(_value_at(template, average.end() - len(average[2]) - 1)):
            number, digits = rf"\s*[-+\d.e]+\s*\(\s*{NUMBER}", len(average[2])
        if count := _COUNT.match(text, value_at):
            if count[1] is None:
                continue  # a count such as 7/10 is not a metric
            number, digits = rf"\s*\d+\s*/\s*\d+\W*\(\s*{NUMBER}", len(count[1])
        if step and step.start() < found.start() and step.end() <= found.start(3):
            before = rf"\b{step[1]}\W*(?P<step>\d+).*?"
        elif begin and not inside and begin.end(1) <= found.start():  # lines of other sets have the same label
            before = rf"\b{begin[1]}\b.*?"
        else:
            before = ""
        if not text[: found.start()][-1:].isalnum() and text[: found.start()][-1:] not in ("_", "\0", "\1"):
            before += r"\b"
        yield Printed(set_, name, rf"{before}{_escaped(label + mark)}{number}", digits, line)


def _named(label: str) -> tuple[str, str] | None:
    """Return the set and the metric that a label of one or two words names; None if it names no metric."""
    last = label.split()[-1]
    if last.lower() in _STOP or not _METRIC.search(_split(last)):
        return None
    if of := _SET.match(label):
        return _SETS[of[1].lower()], label[of.end() :]
    # A loss without the name of a set is the training loss.
    return ("train" if _LOSS.search(last) else "test"), last


def _split(name: object) -> str:
    """Return a name followed by the same name with spaces between its words: "valAcc val Acc" for valAcc."""
    return f"{name} {re.sub(r'(?<=[a-z])(?=[A-Z])', ' ', str(name))}"


def progress(code: Code) -> Iterator[str]:
    """Yield a pattern for each step that the script prints with a total, such as epoch 3/10."""
    for _, call in code.calls():
        if _is_print(call):
            for word in re.findall(r"([A-Za-z]+)[ :=\[(]*\0 ?/ ?(?:\0|\d)", _template_of(call).text):
                yield rf"\b{word}\W*(\d+) ?/ ?(\d+)"


def _except(at: Node) -> bool:
    return any(isinstance(each, ast.ExceptHandler) for each in at.around)


def _failing(code: Code) -> set[int]:
    """Return the ids of the calls in blocks that end in an error: raise, sys.exit(1)."""
    found = set[int]()
    for node in code.nodes:
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node.node, name, None)
            if isinstance(block, list) and isinstance(node.node, ast.stmt | ast.ExceptHandler):
                ends = [n for n, statement in enumerate(block) if _ends_in_error(statement)]
                for statement in block[: ends[0]] if ends else ():
                    found |= {id(inner) for inner in ast.walk(statement) if isinstance(inner, ast.Call)}
    return found


def _ends_in_error(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Raise):
        return True
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call) or name_of(call) not in ("exit", "quit", "_exit", "abort"):
        return False
    return bool(call.args) and literal(call.args[0]) not in (0, None)


def _escaped(text: str) -> str:
    return re.sub(r"([.+*?()\[\]|^$])", r"\\\1", text.rstrip())


def _value_at(template: _Template, place: int) -> str:
    """Return the expression of the value at a position of the text."""
    count = template.text[:place].count("\0")
    return template.values[count] if count < len(template.values) else ""


def _template_of(call: ast.Call) -> _Template:
    """Return the template of the text that a call of print or of a logger prints."""
    parts = [_template(argument) for argument in call.args]
    first = parts[0] if parts else _Template("", ())
    if len(parts) > 1 and re.search(r"%[-+ 0-9.]*[dfgs]", first.text) and name_of(call) != "print":
        # A logger formats its other arguments into the first one.
        values = tuple(value for part in parts[1:] for value in part.values)
        return _Template(_percent(first.text), values)
    return _Template(" ".join(part.text for part in parts), tuple(value for part in parts for value in part.values))


def _template(node: ast.AST) -> _Template:
    if isinstance(node, ast.JoinedStr):
        texts, values = list[str](), list[str]()
        for part in node.values:
            if isinstance(part, ast.Constant):
                texts.append(str(part.value))
            else:
                written = ast.unparse(part)
                texts.append(_mark(written))
                values.append(written)
        return _Template(ESCAPES.sub("", "".join(texts)), tuple(values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and isinstance(node.left, ast.Constant):
        given = node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
        return _Template(_percent(ESCAPES.sub("", str(node.left.value))), tuple(ast.unparse(each) for each in given))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _template(node.left), _template(node.right)
        return _Template(left.text + right.text, left.values + right.values)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        text = literal(node.func.value)
        if isinstance(text, str):
            return _formatted(ESCAPES.sub("", text), node)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _Template(ESCAPES.sub("", node.value), ())
    if isinstance(node, ast.Call) and name_of(node) in ("str", "round", "float") and node.args:
        return _Template("\0", (ast.unparse(node.args[0]),))
    return _Template("\0", (ast.unparse(node),)) if isinstance(node, ast.expr) else _Template("", ())


def _percent(text: str) -> str:
    return re.sub(r"%(?:\(\w+\))?[-+ 0-9.]*[dfgseixr]", lambda found: _mark(found[0]), text).replace("%%", "%")


def _formatted(text: str, call: ast.Call) -> _Template:
    """Return the template of a str.format call. A value is the name of its field, or the next argument."""
    values, given = list[str](), iter(call.args)

    def value(found: re.Match[str]) -> str:
        name = found[1]
        if name == "":
            one = next(given, None)
            values.append(ast.unparse(one) if one is not None else "")
        else:
            values.append(name)
        return _mark(found[0])

    return _Template(re.sub(r"\{([^{}:!]*)[^{}]*\}", value, text), tuple(values))


def _mark(written: str) -> str:
    """Return \\0 for a value, followed by \\1 for each decimal of its format."""
    decimals = re.search(r"\.(\d)[fFeEgG%]?\W*$", written)
    return "\0" + "\1" * int(decimals[1] if decimals else 0)
