"""Guess the metrics and the progress that a script prints from its calls of print and of loggers.

Each guessed metric contains the source line that prints it. Lines that are printed only because of an error do not
count. Such lines are in a block that ends with `raise` or an exit with an error code, or in an `except` block.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence

from ablations.service.from_script.distinct import LINE_START, NO_WORD, Guess, Line, Printed, distinct, escaped
from ablations.service.from_script.option import keywords, literal, name_of
from ablations.service.from_script.reach import Code, Node
from ablations.service.from_script.templates import BAR, WORDS, Template, bar_of, loop_words, samples, template_of

_METRIC = re.compile(
    r"(?:(?<![a-z])|(?<=test)|(?<=train)|(?<=val)|(?<=dev)|(?<=eval))(acc|accuracy|f1|bleu|auc|auroc|score|loss|ppl|perplexity|err|error|rmse|mse|mae|r2|wer|cer|iou|miou|map"
    r"|recall|precision|psnr|ssim|fid)(?![a-z])", re.IGNORECASE,
)  # fmt: skip
# The next three patterns match a label before a value, a value with its average such as "0.5 (0.6)", and a count such
# as "7/10 (70%)". In these patterns, \0 stands for a value and \x01 for each of its decimals (see `Template`).
_LABEL = re.compile(r"((?:[A-Za-z][\w@/.-]*[ \t]+)?[A-Za-z][\w@/.-]*)([ \t]*[:=]?)([ \t]*)\0(\x01*)")
_AVERAGE = re.compile(r"\0\x01*([ \t]*\([ \t]*)\0(\x01*)")
_COUNT = re.compile(r"\0\x01*[ \t]*/[ \t]*(?:\0\x01*|\d+)(?:[ \t,:]*\([ \t]*\0(\x01*)[ \t]*%)?")
_BEFORE = re.compile(r"(?:(?<![\w@/.-])[A-Za-z][\w@/.-]*[ \t]+){0,3}$")  # the words before a label
# The label of a value, labels of values that are numbers, and labels of values that name a set.
_OF_VALUE = re.compile(r"([A-Za-z][\w@/.-]*)([ \t]*[:=#]?)[ \t]*[\[(]?[ \t]*$")
_COUNTED = re.compile(
    "epoch|step|iter|iteration|it|round|update|fold|seed|run|trial|rank|gpu|device|lr|time|eta|layers?", re.IGNORECASE
)
# An option of the script is the same in all lines of a run, unless it names the set.
_OPTION = re.compile(
    r"(self\.)?(args|opt|opts|cfg|config|FLAGS|hparams|params)\.(?!\w*(split|phase|mode|subset|stage|eval))[\w.]+"
)
_KIND = re.compile(
    r"\w*(set|split|phase|mode|stage|data|subset|partition|domain|task|class|name|label|group|metric|for|on)",
    re.IGNORECASE,
)
_BEGIN = re.compile(r"\W*(test|val|valid|validation|dev|eval|evaluation|train|training)(?![a-z])", re.IGNORECASE)
_INSIDE = re.compile(
    r"(?<![A-Za-z])(test|val|valid|validation|dev|eval|evaluation|train|training)(?:(?![a-z])|(?=acc|loss|err|f1|ppl))",
    re.IGNORECASE,
)
_STEP = re.compile(r"\b(epoch|step|iter|iteration|it|round|update)\b([ \t]*[:=#]?[ \t]*[\[(]?[ \t]*)\0", re.IGNORECASE)
_MEAN = re.compile(r"avg|average|mean", re.IGNORECASE)
NUMBER = r"([-+\d.e]+)"
_PRINTS = ("print", "info", "echo", "secho")
_STREAMS = ("stdout", "stderr", "tqdm")  # a write to another object is regarded as a write to a file
_LEVELS = ("warning", "warn", "error", "critical", "debug")  # their lines are no metrics, but patterns may find them
_WORD_BEFORE = re.compile(r"\((?:levelname|name|module|funcName|threadName|process\w*)\)[-\d]*s %\(message\)")
_STARTS = ("print", "echo", "secho")  # functions that print a line of its own
_SETS = {"test": "test", "testing": "test", "train": "train", "training": "train",
         **dict.fromkeys(("val", "valid", "validation", "dev", "eval", "evaluation"), "dev")}  # fmt: skip
_LOSS = re.compile("loss", re.IGNORECASE)
_SET = re.compile(r"(test|testing|val|valid|validation|dev|eval|evaluation|train|training)[ _/-]+(?=.)", re.IGNORECASE)
_STOP = {"is", "are", "was", "of", "on", "at", "the", "a", "to", "in", "for", "and", "with", "by", "after", "from",
         "has", "reached", "so", "far", "now", "than", "be", "this", "before", "-"}  # fmt: skip
_NOISE = {"average", "avg", "mean"}  # words that are part of a name only if another name would be the same
_EPOCH = re.compile(r"epoch|step|iter|iteration|round|update|got|get|gets|finished|done|finally|result|results")


def printed(code: Code) -> list[Printed]:
    """Return the metrics that calls of print and of loggers print: numbers after a name, and keys of JSON.

    Each pattern finds the number of its own line only, among all lines that the script prints.
    """
    failing = _failing(code)
    keys, lines, whole = list[Printed](), list[Line](), _whole_lines(code)
    texts = [node.node.value for node in code.nodes if isinstance(node.node, ast.Constant)]
    logged = "" if any(isinstance(text, str) and _WORD_BEFORE.search(text) for text in texts) else NO_WORD
    for at, call in code.calls():
        if id(call) in failing:
            continue
        if name_of(call) in BAR:
            lines += [Line(each, samples(each, {}), {}, "", "", "", "", False) for each in bar_of(call).lines()]
        if not _is_print(call, _LEVELS):
            continue
        template = template_of(call)
        line = f"{at.file.name}:{call.lineno}: {' '.join(ast.unparse(call).split())}"
        line = line if len(line) <= 150 else f"{line[:149]}…"
        counts = _is_print(call) and not _except(at)
        for one in (inner for argument in call.args for inner in ast.walk(argument) if counts):
            if isinstance(one, ast.Call) and name_of(one) == "dumps" and one.args and isinstance(one.args[0], ast.Dict):
                found = [literal(key) for key in one.args[0].keys]
                if "step" not in found:
                    named = [str(key) for key in found if _METRIC.search(_split(key))]
                    keys += [Printed("test", name, "", 0, line, certain=True) for name in named]
        begin, loops = _BEGIN.match(template.text), loop_words(at.around)
        of = _SETS[begin[1].lower()] if begin else ""
        start = ""
        if name_of(call) in _STARTS:
            start = LINE_START if whole else ""
        elif name_of(call) != "write":
            start = logged
        for each in template.lines():
            words = _words_of(each, loops)
            lines.append(Line(each, samples(each, words), words, of, _set_of(at), line, start, counts))
    by_name = list({key.name: key for key in keys}.values())
    guesses = [guess for line in lines if line.counts for guess in _of_line(line)]
    return by_name + distinct(guesses, lines, {key.name for key in keys})


def _set_of(at: Node) -> str:
    """Return the set that the name of a function names, such as train_epoch; "" if it names none or several."""
    name = at.function.name.lower() if at.function else ""
    found = {_SETS[word] for word in re.findall("train|test|val|dev|eval", name)}
    return found.pop() if len(found) == 1 else ""


def _is_print(call: ast.Call, more: Sequence[str] = ()) -> bool:
    of = name_of(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    if name_of(call) in more and (of == "logging" or "log" in of.lower()):
        return True
    return name_of(call) in _PRINTS or (name_of(call) == "write" and (of in _STREAMS or of.endswith("bar")))


def _whole_lines(code: Code) -> bool:
    """Return whether every text that the script prints ends its line, so that the next text starts a line."""
    for _, call in code.calls():
        end = keywords(call).get("end")
        if name_of(call) == "print" and end is not None and not str(literal(end)).endswith(("\n", "\r")):
            return False
        if name_of(call) in ("tqdm", "trange") and name_of(keywords(call).get("file")) == "stdout":
            return False
        of = name_of(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        if name_of(call) == "write" and of == "stdout" and not template_of(call).text.endswith(("\n", "\r")):
            return False
    return True


def _words_of(line: Template, loops: Mapping[str, tuple[str, ...]]) -> dict[int, tuple[str, ...]]:
    """Return the words that the values of a line may print, by the place of the value. Other values are numbers."""
    found = dict[int, tuple[str, ...]]()
    for place, (at, value) in enumerate(zip(re.finditer("\0", line.text), line.values, strict=False)):
        before, after = line.text[: at.start()], line.text[at.end() :].lstrip("\1")
        if value.expression in loops:
            if words := loops[value.expression]:
                found[place] = words
        elif _OPTION.fullmatch(value.expression):
            continue
        elif not (value.number or re.match(r" ?[/%]|\w", after) or re.search(r"/ ?$", before) or _has_label(before)):
            found[place] = WORDS
    return found


def _has_label(before: str) -> bool:
    """Return whether a value with this text before it has a label, as in lr=0.1, so that it names no other number."""
    label = _OF_VALUE.search(before)
    if label is None or _KIND.fullmatch(label[1]):
        return False
    return bool(label[2].strip() or _COUNTED.fullmatch(label[1]) or _METRIC.search(_split(label[1])))


def _of_line(line: Line) -> Iterator[Guess]:
    text = line.template.text
    step = _STEP.search(text)
    for found in _LABEL.finditer(text):
        label, mark, _, decimals = found.groups()
        named = _named(f"{_BEFORE.search(text[: found.start()])[0]}{label}")  # type: ignore[index]
        if named is None:
            continue
        set_, name, full = named
        inside = _SET.match(label) or _INSIDE.search(label)
        if not set_:
            own = _INSIDE.search(label.split()[-1])
            set_ = _SETS[own[1].lower()] if own else line.set
        number, digits = rf"\s*{NUMBER}", len(decimals)
        value_at = end = found.end() - len(decimals) - 1
        average = _AVERAGE.match(text, value_at)
        if average and _MEAN.search(line.template.value_at(average.end() - len(average[2]) - 1).expression):
            number, digits = rf"\s*[-+\d.e]+\s*\(\s*{NUMBER}", len(average[2])
            end = average.end() - len(average[2]) - 1
        if count := _COUNT.match(text, value_at):
            if count[1] is None:
                continue  # a count such as 7/10 is not a metric
            number, digits = rf"\s*\d+\s*/\s*\d+\W*\(\s*{NUMBER}", len(count[1])
            end = text.rindex("\0", 0, count.end())
        stepped = step is not None and step.start() < found.start() and step.end() <= found.start(3)
        begin = _BEGIN.match(text)
        if step and stepped:
            before = rf"\b{step[1]}\W*(?P<step>\d+).*?"
        elif begin and not inside and begin.end(1) <= found.start():  # lines of other sets have the same label
            before = rf"\b{begin[1]}\b.*?"
        else:
            before = ""
        if not text[: found.start()][-1:].isalnum() and text[: found.start()][-1:] not in ("_", "\0", "\1"):
            before += r"\b"
        # A loss without the name of a set is the training loss.
        default = "train" if _LOSS.search(name) else "test"
        yield Guess(
            Printed(set_ or default, name, rf"{before}{escaped((label + mark).rstrip())}{number}", digits, line.source,
                    certain=bool(set_)),
            line=line, full=full, number=number, label=found.start(), mark=found.end(2), value=end,
            step=text.index("\0", step.start()) if step and stepped else -1, inside=bool(inside),
        )  # fmt: skip


def _named(label: str) -> tuple[str, str, str] | None:
    """Return the set, the name and the full name of the metric that a label names; None if it names no metric.

    The set is "" if the label does not name it. The full name also has words such as "average".
    """
    *before, last = label.split()
    if last.lower() in _STOP or not _METRIC.search(_split(last)):
        return None
    of = _SET.match(last)
    set_, last = (_SETS[of[1].lower()], last[of.end() :]) if of else ("", last)
    words, full = list[str](), list[str]()
    for word in reversed(before):
        lower, within = word.lower().strip("-."), _INSIDE.search(word)
        if lower in ("after", "before"):
            set_ = set_ if of else ""  # "after training" does not name the set
        if lower in _STOP or _EPOCH.fullmatch(lower):
            break
        if lower in _SETS:
            set_ = set_ or _SETS[lower]
            continue
        set_ = set_ or (_SETS[within[1].lower()] if within else "")
        plain = re.sub(r"[-./]+", "_", lower).strip("_")
        full.insert(0, plain)
        if lower not in _NOISE:
            words.insert(0, plain)
    return set_, _joined(words, last), _joined(full, last)


def _joined(words: Sequence[str], last: str) -> str:
    return "_".join([*words, last.lower()]) if words else last


def _split(name: object) -> str:
    """Return a name followed by the same name with spaces between its words: "valAcc val Acc" for valAcc."""
    return f"{name} {re.sub(r'(?<=[a-z])(?=[A-Z])', ' ', str(name))}"


def progress(code: Code) -> Iterator[str]:
    """Yield a pattern for each step that the script prints with a total, such as epoch 3/10."""
    for _, call in code.calls():
        if _is_print(call):
            for word in re.findall(r"([A-Za-z]+)[ :=\[(]*\0 ?/ ?(?:\0|\d)", template_of(call).text):
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
