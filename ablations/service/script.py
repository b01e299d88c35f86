"""Write the study of a script that exists: its options become settings, what it prints becomes metrics.

The script is read, not run: options of argparse, click, typer, Hydra and dataclasses, in it and in the files beside it
that it uses. Only where none are found, and it imports a parser of options, is it started, with --help.
"""

import ast
import json
import math
import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.config import flatten
from experiments.errors import UserError, explain_os_errors
from experiments.store.imports import local_files
from experiments.tasks.own.command import GIVEN, SAID, Scripts
from experiments.tasks.own.patterns import ESCAPES
from model.settings import StrictModel

HELP_S = 60.0
IN_FILE = "in a file"  # an option that is a key of a file and no word of the command
SEEDS = ("seed", "random_seed", "random_state", "manual_seed", "rng_seed")
# Of a script that imports one of these --help prints the options; one without any would begin to train.
PARSERS = {"argparse", "optparse", "absl", "fire", "docopt", "click", "typer", "configargparse", "tap", "plac"}
DATACLASSES = ("HfArgumentParser", "tyro", "simple_parsing", "draccus", "pyrallis", "jsonargparse")
_METRIC = re.compile(
    r"(acc|accuracy|f1|bleu|auc|score|loss|ppl|perplexity|err|error|rmse|mse|mae|r2|wer|cer|iou|map|recall|precision)"
    r"(?![a-z])", re.IGNORECASE,
)  # fmt: skip
_LABEL = re.compile(r"((?:[A-Za-z][\w@/.-]*[ \t]+)?[A-Za-z][\w@/.-]*)([ \t]*[:=]?)[ \t]*\0(\x01*)")  # before a value
_NUMBER = r"([-+\d.e]+)"
_PRINTS = ("print", "info", "write", "echo", "warning", "debug")
_SETS = {"test": "test", "train": "train", **dict.fromkeys(("val", "valid", "validation", "dev", "eval"), "dev")}
_LOSS = re.compile("loss", re.IGNORECASE)
_LOWER = re.compile(r"loss|ppl|perplexity|err|mse|mae|wer|cer", re.IGNORECASE)
_SET = re.compile(r"(test|val|valid|validation|dev|eval|train)[ _/-]+(?=.)", re.IGNORECASE)
_WRITTEN = re.compile(r"\.?/?(out|output|outputs|results?|logs?|runs?|checkpoints?|ckpts?|saved?|models?|wandb|tmp)\b")
_NO_FACTOR = re.compile(r"path|dir|file|log|print|verb|worker|port|save|epoch|step|iter|batch|interval|debug|resume")
_FACTOR = re.compile(r"drop|lr|rate|hidden|width|dim|layer|depth|momentum|decay|channel|head")


@dataclass(frozen=True)
class Option:
    """An option of a script. value: its default, None where TOML has none; choices: other values that it may have."""

    name: str
    flag: str
    value: Any = None
    about: str = ""
    choices: Sequence[Any] = ()
    written: str = ""  # in the command; flag and value if unset
    required: bool = False


@dataclass(frozen=True)
class Printed:
    """A number that a script prints. pattern: what finds it, "" for a line of JSON. digits: its decimals."""

    set: str
    name: str
    pattern: str
    digits: int = 0


def study_of(name: str, given: str, folder: Path) -> str:
    """The text of a study for a script or a command. Raises UserError if it names no script, or cannot be read."""
    words = [*(["python"] if given.endswith(".py") and len(shlex.split(given)) == 1 else []), *shlex.split(given)]
    scripts = Scripts(shlex.join(words), folder)
    if not scripts.script:
        raise UserError(f"--from {given!r} names no script in {folder}. Write --from train.py, or a whole command: "
                        '--from "python -m package".')  # fmt: skip
    found = local_files(scripts.files, [folder])
    files = [Path(scripts.script), *(file for file in found if str(file) != scripts.script)]
    with explain_os_errors(f"read {scripts.script}"):
        try:
            trees = [ast.parse(file.read_bytes()) for file in files if file.suffix == ".py"]
        except (SyntaxError, ValueError) as error:
            raise UserError(f"{scripts.script} is no Python that can be read: {error}.") from None
    nodes = [node for tree in trees for node in ast.walk(tree)]
    options, rest = _options(nodes, words, folder, Path(scripts.script).parent)
    before = zip(["", *words], words, strict=False)
    start = max((n for n, (b, word) in enumerate(before) if word.endswith(".py") or b in ("-m", "--module")), default=0)
    fixed, values = {word.partition("=")[0] for word in words}, [w for w in words[start + 1 :] if not w.startswith("-")]
    options = [option for option in {option.name: option for option in options}.values() if option.flag not in fixed]
    for option in [option for option in options if option.required and not option.flag.startswith("-")][: len(values)]:
        options.remove(option)
    if lacking := [option.flag for option in options if option.required]:
        raise UserError(f"{scripts.script} requires {', '.join(lacking)}. Give the value in the command: "
                        f'--from "{shlex.join(words)} {lacking[0]} …".')  # fmt: skip
    links = _links(nodes, [*files, *(folder / word for word in words)], folder)
    return _written(name, rest, options, nodes, links)


# --- Its options


def _options(nodes: Sequence[ast.AST], words: list[str], folder: Path, home: Path) -> tuple[list[Option], list[str]]:
    """The options, and the words of the command before them. Of a script that reads a file: its keys, and the seed."""
    found, imported = list[Option](), {name for node in nodes for name in _imports(node)}
    config = next((word for word in words if word.endswith((".yaml", ".yml")) and (folder / word).is_file()), "")
    for node in nodes:
        if isinstance(node, ast.Call):
            called = _name(node.func)
            if called in ("add_argument", "option", "argument") and node.args:
                found += _declared(node)
            elif called == "run" and "typer" in imported and node.args and isinstance(node.args[0], ast.Name):
                called = node.args[0].id
                functions = (f for f in nodes if isinstance(f, ast.FunctionDef) and f.name == called)
                found += [option for function in functions for option in _arguments(function)]
        for decorator in getattr(node, "decorator_list", ()):
            called, keywords = _name(decorator), _keywords(decorator)
            if isinstance(node, ast.ClassDef) and called == "dataclass" and imported & set(DATACLASSES):
                found += _fields(node, dashes="tyro" in imported)
            elif isinstance(node, ast.FunctionDef) and called in ("command", "callback") and "typer" in imported:
                found += _arguments(node)
            elif called == "main" and "hydra" in imported and "config_name" in keywords:
                file = home / str(_value(keywords.get("config_path")) or ".") / f"{_value(keywords['config_name'])}"
                values = _yaml(file.with_suffix(".yaml"))
                for key, value, others in values:  # a group beside its own keys has another name
                    group = any(other.startswith(f"{key}.") for other, *_ in values)
                    name = f"{key}_" if group else _free(key)
                    found.append(Option(name, key, value, f"in {file.name}", others, f"{key}={{{name}}}"))
    found = found or (_helped(words, folder) if imported & {*PARSERS, *DATACLASSES} else [])
    if config:
        found = [option for option in found if option.name in (*SEEDS, "device")]
        found = [*(Option(n, n, v, f"in {config}", written=IN_FILE) for n, v, _ in _yaml(folder / config)), *found]
    return found, ["{settings.yaml}" if word == config else word for word in words]


def _imports(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield from (part for one in node.names for part in (one.name, one.name.partition(".")[0]))
        yield (getattr(node, "module", "") or "").partition(".")[0]


def _declared(call: ast.Call) -> Iterator[Option]:
    """An option of argparse or click."""
    flags = [str(flag) for flag in map(_value, call.args) if isinstance(flag, str)]
    keywords = _keywords(call)
    flag = max(flags, key=lambda each: (each.startswith("--"), each.startswith("-")), default="")
    if not flag or _value(keywords.get("action")) in ("version", "help", "count", "append"):
        return
    first, _, second = flag.partition("/")
    name = _free(_value(keywords.get("dest")) or first.lstrip("-").replace("-", "_"))
    value, action = _value(keywords.get("default")), _name(keywords.get("action")) or _value(keywords.get("action"))
    choices = _value(keywords.get("choices")) or ()
    kind = _name(keywords.get("type"))
    one_of = f"one of {', '.join(map(str, choices))}" if choices else ""
    about = ", ".join(filter(None, [kind, one_of, _value(keywords.get("help"))]))
    required = bool(_value(keywords.get("required"))) or (not flag.startswith("-") and "default" not in keywords)
    written = ""
    if action == "store_true" or (_value(keywords.get("is_flag")) is True and not second):
        value, written = bool(value), f"{{{name}:{first}}}"
    elif action == "store_false":
        value, written = True, f"{{{name}:|{first}}}"
    elif action == "BooleanOptionalAction" or second:
        written = f"{{{name}:{first}|{second or '--no-' + first.removeprefix('--')}}}"
        value = bool(value)
    elif not flag.startswith("-"):
        written = f"{{{name}}}"
    if kind == "float" and type(value) is int:
        value = float(value)
    if "nargs" in keywords and _value(keywords["nargs"]) != "?":
        value, required = None, False
    yield Option(name, first, value, about, choices, written, required)


def _arguments(function: ast.FunctionDef) -> Iterator[Option]:
    """The options of a function that typer calls."""
    given = function.args
    defaults = [None] * (len(given.args) - len(given.defaults)) + list(given.defaults)
    arguments = [*given.args, *given.kwonlyargs]
    for argument, default in zip(arguments, [*defaults, *given.kw_defaults], strict=True):
        calls = [node for node in ast.walk(argument.annotation or argument) if isinstance(node, ast.Call)]
        calls += [default] if isinstance(default, ast.Call) else []
        keywords = {name: value for call in calls for name, value in _keywords(call).items()}
        named = [text for call in calls for text in map(_value, call.args) if str(text).startswith("--")]
        first = calls[-1].args[0] if isinstance(default, ast.Call) and default.args else default
        value = _value(first if first is not None else keywords.get("default"))
        if default is None and not any(_name(call.func) == "Option" for call in calls):
            yield Option(_free(argument.arg), argument.arg, written=f"{{{_free(argument.arg)}}}", required=True)
        else:
            flag = named[0].partition("/")[0] if named else "--" + argument.arg.replace("_", "-")
            yield _of_type(argument.arg, flag, value, _value(keywords.get("help")) or "", pairs=True)


def _fields(kind: ast.ClassDef, dashes: bool) -> Iterator[Option]:
    """The options of a dataclass. dashes: as tyro writes them."""
    for node in kind.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name, keywords = node.target.id, _keywords(node.value)
            value = _value(keywords.get("default")) if keywords else _value(node.value)
            about = (_value(keywords.get("metadata")) or {}).get("help", "") if keywords else ""
            yield _of_type(name, f"--{name.replace('_', '-') if dashes else name}", value, about, pairs=dashes)


def _of_type(name: str, flag: str, value: Any, about: str, pairs: bool) -> Option:
    name = _free(name)
    written = f"{{{name}:{flag}|--no-{flag.removeprefix('--')}}}" if pairs and isinstance(value, bool) else ""
    return Option(name, flag, value, about, written=written)


def _helped(words: list[str], folder: Path) -> list[Option]:
    """The options that --help prints."""
    try:
        done = subprocess.run([*words, "--help"], cwd=folder, capture_output=True, text=True, timeout=HELP_S)
    except (OSError, subprocess.TimeoutExpired):
        return []
    found = []
    for flag, about in re.findall(r"^ +(?:-\w(?: \w+)?, +)?(--[\w-]+)((?:.*\n(?! *-))*.*)", done.stdout, re.MULTILINE):
        usual = re.search(r"[(\[]default: ([^)\]]*)[)\]]", about)
        value = _text(usual[1].strip("'\"")) if usual else None
        found.append(Option(_free(flag.lstrip("-").replace("-", "_")), flag, value, " ".join(about.split())))
    return [option for option in found if option.name not in ("help", "version")]


def _yaml(file: Path) -> list[tuple[str, Any, list[str]]]:
    """Its keys with their values. Of a group of Hydra's: the names in its folder, and the keys that all have."""
    import yaml

    with explain_os_errors(f"read {file}"):
        try:
            content = yaml.safe_load(file.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise UserError(f"{file} is no YAML: {' '.join(str(error).split())}.") from None
    settings = content if isinstance(content, dict) else {}
    groups = [group for one in settings.pop("defaults", []) if isinstance(one, dict) for group in one.items()]
    found = list[tuple[str, Any, list[str]]]()
    for group, chosen in ((str(name), value) for name, value in groups if re.fullmatch(r"\w+", str(name))):
        files = {one.stem: _yaml(one) for one in sorted((file.parent / group).glob("*.yaml"))}
        found.append((group, chosen, list(files)))
        shared = set[str].intersection(*({name for name, *_ in keys} for keys in files.values())) if files else ()
        found += [(f"{group}.{n}", v, others) for n, v, others in files.get(str(chosen), []) if n in shared]
    return found + [(n, v, []) for n, v in flatten(settings) if not n.startswith("hydra.")]


def _name(node: ast.AST | None) -> str:
    """The last word of what is called or named: add_argument of parser.add_argument(…)."""
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _keywords(node: ast.AST | None) -> dict[str, ast.expr]:
    return {word.arg: word.value for word in node.keywords if word.arg} if isinstance(node, ast.Call) else {}


def _value(node: ast.AST | None) -> Any:
    """A literal, also as the only argument of a call: Path("data"); None for anything else."""
    if isinstance(node, ast.Call) and len(node.args) == 1:
        node = node.args[0]
    try:
        return ast.literal_eval(node) if isinstance(node, ast.expr) else None
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _text(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"True": True, "False": False, "None": None}.get(text, text)


def _free(name: str) -> str:
    """A name that a setting may have."""
    taken = name not in ("seed", "device") and (name in (*GIVEN, *SAID) or hasattr(StrictModel, name))
    return f"{name}_" if taken else name


# --- What it prints, and the files that it names


def _printed(nodes: Sequence[ast.AST]) -> Iterator[Printed]:
    """The numbers that its calls of print and of a logger print with a name before them."""
    for node in nodes:
        if not isinstance(node, ast.Call) or _name(node) not in _PRINTS:
            continue
        for one in (inner for argument in node.args for inner in ast.walk(argument)):
            if isinstance(one, ast.Call) and _name(one) == "dumps" and one.args and isinstance(one.args[0], ast.Dict):
                keys = [_value(key) for key in one.args[0].keys]
                yield from (
                    Printed("test", str(key), "") for key in keys if "step" not in keys and _METRIC.search(str(key))
                )
        for label, mark, decimals in _LABEL.findall(" ".join(map(_template, node.args))):
            if not _METRIC.search(label):
                continue
            if of := _SET.match(label):
                set_, name, before = _SETS[of[1].lower()], label[of.end() :], label
            else:
                name = before = label.split()[-1]  # a loss without a word before it is that of the training
                set_ = "train" if _LOSS.search(name) else "test"
            yield Printed(set_, name, rf"\b{_escaped(before + mark)}\s*{_NUMBER}", len(decimals))


def _progress(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """The pattern of a step and a total that it prints: epoch 3/10."""
    for node in nodes:
        if isinstance(node, ast.Call) and _name(node) in _PRINTS:
            for word in re.findall(r"([A-Za-z]+)[ :=\[(]*\0 ?/ ?(?:\0|\d)", " ".join(map(_template, node.args))):
                yield rf"\b{word}\W*(\d+) ?/ ?(\d+)"


def _escaped(text: str) -> str:
    return re.sub(r"([.+*?()\[\]|^$])", r"\\\1", text.rstrip())


def _template(node: ast.AST) -> str:
    """A text with \\0 for each value put into it, and a \\1 for each of its decimals."""

    def value(written: str) -> str:
        decimals = re.search(r"\.(\d)[fFeEgG%]?\W*$", written)
        return "\0" + "\1" * int(decimals[1] if decimals else 0)

    if isinstance(node, ast.JoinedStr):
        parts = (str(_value(p)) if isinstance(p, ast.Constant) else value(ast.unparse(p)) for p in node.values)
        return ESCAPES.sub("", "".join(parts))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return re.sub(r"%[-+ 0-9.]*[a-zA-Z]", lambda found: value(found[0]), _template(node.left))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        return re.sub(r"\{[^{}]*\}", lambda found: value(found[0]), _template(node.func.value))
    text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "\0"
    text = ESCAPES.sub("", text)
    return re.sub(r"%[0-9.]*[dfgs]", lambda found: value(found[0]), text)  # a logger puts its other arguments there


def _links(nodes: Sequence[ast.AST], files: Sequence[Path], folder: Path) -> list[str]:
    """The entries of the folder that it needs: its files, and what exists of the paths that its texts name."""
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    named = [text for text in texts if 0 < len(text) < 200 and "\0" not in text and not _WRITTEN.match(text)]
    found, home = dict[str, None](), folder.resolve()
    for path in [*files, *(folder / Path(text).parts[0] for text in named if Path(text).parts and text[0] != "/")]:
        if path.exists() and (there := path.resolve()).is_relative_to(home) and there != home:
            found[there.relative_to(home).parts[0]] = None
    return [name for name in found if not name.startswith(".") and not name.endswith(".toml")]


# --- The study


def _written(
    name: str, words: Sequence[str], options: Sequence[Option], nodes: Sequence[ast.AST], links: Sequence[str]
) -> str:
    seed = any(option.name in SEEDS for option in options)
    command, base = [word if "{" in word else shlex.quote(word) for word in words], list[str]()
    settings = list[Option]()
    for option in options:
        about, place = " ".join(f"   # {option.flag}: {option.about}".split()).rstrip(": "), option.written
        if option.name in SEEDS or (option.name == "device" and place != IN_FILE):
            given = "{seed}" if option.name in SEEDS else "{device}"
            command += [] if place == IN_FILE else [f"{option.flag}{'=' if '=' in place else ' '}{given}"]
        elif written := _toml(option.value):
            settings.append(option)
            command += [] if place == IN_FILE else [place or f"{option.flag} {{{option.name}}}"]
            base.append(f"{option.name} = {written}   {about}")
        else:
            base.append(f"# {option.name}: no default that a setting could have   {about}")
    lines = [f'name = "{name}"', f'title = "What the settings of {name} are worth"']
    lines.append(f"command = {_toml(' '.join(command))}")
    if links:
        lines.append(f"links = {_toml(links)}   # each run works in a folder of its own, where these are linked")
    lines += [f"progress = '{pattern}'" for pattern in [*_progress(nodes)][-1:]]
    repeats = "seeds = 1   # the script has no option for a seed: more would be repeats of one training"
    lines.append("seeds = 2" if seed else repeats)
    return "\n".join([*lines, "", "[base]", *base, *_metrics(list(_printed(nodes))), *_rows(settings), ""])


def _metrics(printed: Sequence[Printed]) -> Iterator[str]:
    """Two columns: numbers of a test set first, losses last; the others are comments."""
    found = list({(one.set, one.name): one for one in reversed(printed)}.values())  # of equals the last printed
    found.sort(key=lambda one: ("test", "dev", "train").index(one.set))
    if not found:
        yield "\n# Nothing that it prints looks like a metric: write what finds its number, and remove the signs."
        found = [Printed("test", "accuracy", r"accuracy: ([-+\d.e]+)")]
    for place, one in enumerate(found):
        begin = "# " if place > 1 or not printed or (place and one.set == "train") else ""
        entry = ["[[metric]]", f"name = {json.dumps(one.name)}", f"set = {json.dumps(one.set)}"]
        entry += ['better = "lower"'] if _LOWER.search(one.name) else []
        entry += [f"digits = {one.digits}"] if one.digits > 2 else []
        found_by = f"pattern = '{one.pattern}'   # the last number that it finds; take = \"best\" for the best"
        entry += [found_by] if one.pattern else []
        yield "\n" + "\n".join(f"{begin}{line}" for line in entry)


def _rows(settings: Sequence[Option]) -> Iterator[str]:
    """Base, and two examples that change one setting each."""
    yield '\n[[variation]]\nkey = "base"'

    def rank(option: Option) -> int:
        return 0 if _FACTOR.search(option.name) else 1 if isinstance(option.value, bool) else 2

    ranked = sorted((option for option in settings if not _NO_FACTOR.search(option.name)), key=rank)
    others = [(option, other) for option in ranked if (other := _other(option)) is not None]
    for option, other in others[:2]:
        key = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{option.name}-{str(other).lower()}").lstrip("-._")
        row = f"key = {json.dumps(key)}\nset = {{{option.name} = {_toml(other)}}}"
        yield f"\n[[variation]]   # an example: change it\n{row}"


def _other(option: Option) -> Any:
    """Another value for an example; None if none is known to be one."""
    value = option.value
    if isinstance(value, bool):
        return not value
    if option.choices:
        return next((choice for choice in option.choices if choice != value), None)
    if isinstance(value, int):
        return value // 2 if value > 1 else value + 1
    return (value / 2 or 0.1) if isinstance(value, float) else None


def _toml(value: Any) -> str:
    """A value in TOML; "" for one that no setting has."""
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else ""
    if isinstance(value, list):
        parts = [_toml(item) for item in value]
        return f"[{', '.join(parts)}]" if all(parts) else ""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, bool | int | str) else ""
