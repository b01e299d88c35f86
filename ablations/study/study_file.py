"""Read a study file: find the file, parse TOML, apply `extends`, expand designs, and report errors with their place."""

import importlib.resources
import itertools
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from ablations.study.code_rows import with_rows
from experiments.dotted import flatten
from experiments.errors import UserError
from experiments.labels import short_key
from experiments.messages import either, nearest, plain, show, suggestion
from model.extensions import added, extras

Model = TypeVar("Model", bound=BaseModel)

# Keys that define what is run and measured.
_EXPERIMENT = (
    "task",
    "command",
    "progress",
    "links",
    "code",
    "base_commit",
    "python",
    "match",
    "by",
    "metric",
)
# Keys that a study inherits from the study that it extends. They control how rows run, not what the table prints.
_INHERITED = (*_EXPERIMENT, "base", "profile", "default_profile", "seeds", "tune", "protected")
# Fields of Study that the reader fills in.
_OURS = (
    "origin",
    "folder",
    "sections",
    "code_tree",
    "code_note",
    "trees_note",
)
# Fields of Variation that the reader fills in.
_OURS_OF_ROWS = (
    "diff",
    "code_tree",
    "code_base",
    "code_lines",
    "code_change",
    "other_changes",
    "refused",
)
_LONGEST_CHAIN = 8
_STUDIES = Path(str(importlib.resources.files("ablations") / "studies"))
_DEEPEST = 50


def _builtin() -> dict[str, Path]:
    """Return the files of the built-in studies, with their names as keys."""
    folders = (_STUDIES, *(folder / "studies" for folder in extras()))
    return {file.stem: file for file in sorted(file for folder in folders for file in folder.glob("*.toml"))}


def builtin_studies() -> list[str]:
    """Return the names of the built-in studies, from ablations/studies and from the folder `studies` of each extra."""
    return sorted(_builtin())


def read_study(name_or_path: str, model: type[Model], many: bool = False) -> Model:
    """Find, read and validate a study. Raises UserError with the mistake, the file, and what to do.

    many: accept more than `MANY_ROWS` rows.
    """
    table, origin, folder = _read(name_or_path, Path(), _LONGEST_CHAIN)
    table = expand(with_rows(table, origin, folder), origin, many)
    for name in _OURS:
        if name in table:
            raise UserError(f"{origin}: unknown key `{name}`. Remove it.")
    for row in table["variation"] if isinstance(table.get("variation"), list) else ():
        for name in _OURS_OF_ROWS:
            if isinstance(row, Mapping) and name in row:
                raise UserError(f"{origin}: row {show(row.get('key'))}: unknown key `{name}`. Remove it.")
    sections = {name: table.pop(name) for name in added("sections") if name in table}
    try:
        return model.model_validate({**table, "sections": sections, "origin": origin, "folder": folder})
    except ValidationError as error:
        found = "; ".join(dict.fromkeys(_explain(e, table, model) for e in error.errors())).replace("?; ", "? ")
        raise UserError(f"{origin}: {found}" if found.endswith("?") else f"{origin}: {found}.") from None


def _read(name_or_path: str, relative_to: Path, chain: int) -> tuple[dict[str, Any], str, Path | None]:
    """Return the file's table merged with the study that it extends, the file's name for messages, and its folder."""
    text, origin, folder = _find(name_or_path, relative_to)
    table = _parse(text, origin)
    parent = table.pop("extends", None)
    if parent is None:
        return table, origin, folder
    if not isinstance(parent, str):
        raise UserError(f"{origin}: extends = {show(parent)}: expected the name or path of a study, in quotes.")
    if chain == 0:
        raise UserError(
            f"{origin}: `extends` forms a cycle, or a chain of more than {_LONGEST_CHAIN} files. Correct it."
        )
    inherited, _, _ = _read(parent, folder or Path(), chain - 1)
    return _inherit(inherited, table), origin, folder


def _inherit(parent: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the child's entries over the parent's entries. Base is merged by setting, and profiles by name."""
    merged = {name: parent[name] for name in _INHERITED if name in parent} | dict(table)
    for name in ("base", "profile"):
        ours, theirs = table.get(name), parent.get(name)
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
            merged[name] = _merge(theirs, ours) if name == "base" else {**theirs, **ours}
    return merged


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[key] = _merge(old, value) if both else value  # type: ignore[arg-type]
    return merged


def _find(name_or_path: str, relative_to: Path) -> tuple[str, str, Path | None]:
    """Return the text of a study, its name for messages, and its folder (None for a built-in study)."""
    if file := _builtin().get(name_or_path):
        return file.read_text(encoding="utf-8"), f"{name_or_path}.toml (built-in)", None
    path = relative_to / name_or_path
    if path.suffix != ".toml":
        raise UserError(_unknown(name_or_path, path))
    if path.exists() and not (path.is_file() or path.is_dir()):  # reading a pipe would block
        raise UserError(f"The study file {path} is not a regular file. {_choose()}")
    try:
        # utf-8-sig: some editors write a byte order mark, which TOML does not allow
        return path.read_bytes().decode("utf-8-sig"), str(path), path.absolute().parent
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError(f"{path}, line {line}: this is not UTF-8 text. Save the file as UTF-8.") from None
    except FileNotFoundError:
        hint = f" The built-in study is called {path.stem}." if path.stem in builtin_studies() else ""
        raise UserError(f"There is no study file {path}.{hint} {_choose()}") from None
    except OSError as error:
        raise UserError(f"The study file {path} cannot be read: {error.strerror}. {_choose()}") from None


def _unknown(name: str, path: Path) -> str:
    if path.name and path.with_name(f"{path.name}.toml").is_file():
        return f"There is no built-in study {name!r}, but a file {path}.toml: write its name with the ending."
    near = suggestion(name, builtin_studies(), "studies") if nearest(name, builtin_studies()) else ""
    return " ".join(filter(None, (f"There is no study {name!r}.", near, _choose())))


def _choose() -> str:
    return f"Name a built-in study ({', '.join(builtin_studies())}) or the path of a .toml file."


def _parse(text: str, origin: str) -> dict[str, Any]:
    too_deep = f"{origin}: tables or lists are nested more than {_DEEPEST} deep. Correct this."
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(_syntax(str(error), text, origin)) from None
    except ValueError:  # Python refuses integers with more than 4,300 digits
        raise UserError(f"{origin}: a number has too many digits. Write one of at most 19 digits.") from None
    except RecursionError:
        raise UserError(too_deep) from None
    if deeper(table, _DEEPEST):
        raise UserError(too_deep)
    if not table:
        raise UserError(f"{origin}: the file is empty. A study has a name, a title and at least one [[variation]].")
    return table


def deeper(table: dict[str, Any], most: int) -> bool:
    """Return whether tables and lists are nested more than `most` deep. The function does not use recursion."""
    level: list[Any] = [table]
    for _ in range(most):
        inner = [v for at in level for v in (at.values() if isinstance(at, dict) else at)]
        level = [v for v in inner if isinstance(v, dict | list)]
    return bool(level)


def _syntax(message: str, text: str, origin: str) -> str:
    """Return the message for a syntax error.

    tomllib ends its own message with "(at line 3, column 5)" or "(at end of document)".
    """
    what, _, place = message.rpartition(" (at ")
    numbers = re.fullmatch(r"line (\d+), column (\d+)\)", place)
    lines = text.rstrip("\n").split("\n")
    line, column = (int(n) for n in numbers.groups()) if numbers else (len(lines), len(lines[-1]) + 1)
    return f"{origin}, line {line}, column {column}: not valid TOML: {what or message}. Correct this line."


def _explain(error: Any, table: Mapping[str, Any], model: type[BaseModel]) -> str:
    """Return the message for one error: its place in the file, the value, and the expected value.

    The place names a row by its key and a profile by its name.
    """
    location: tuple[int | str, ...] = error["loc"]
    if error["type"] == "extra_forbidden":
        place = _place(location[:-1], table)
        known = [*_fields(location[:-1], model), *_of_extras(location)]
        name = str(location[-1])
        if near := nearest(name, known):
            return f"{place}unknown key `{name}`; did you mean {either(f'`{one}`' for one in near)}?"
        return f"{place}unknown key `{name}`; the keys are: {', '.join(known)}"
    place = _place(location[:-1], table)
    if not location:
        return plain(error)
    if location[1:] == () and error["type"] == "tuple_type" and isinstance(error["input"], Mapping):
        return f"[{location[0]}] is a single table; write [[{location[0]}]] above each entry"
    if error["type"] in {"missing", "value_error", "model_type", "dict_type"} or isinstance(location[-1], int):
        return f"{_place(location, table)}{plain(error)}"
    return f"{place}{location[-1]} = {show(error['input'])}: {plain(error)}"


def _place(location: tuple[int | str, ...], table: Mapping[str, Any]) -> str:
    """Return a place in words: ('variation', 3, 'set') becomes 'row "A-h4", set: '."""
    words = [f"number {part + 1}" if isinstance(part, int) else part for part in location]
    if len(location) >= 2 and location[0] == "variation" and isinstance(location[1], int):
        row = table["variation"][location[1]]
        key = row.get("key") if isinstance(row, Mapping) else None
        words[:2] = [f'row "{key}"' if isinstance(key, str) else f"[[variation]] number {location[1] + 1}"]
    elif len(location) >= 2 and location[0] in ("metric", "claim", "cited") and isinstance(location[1], int):
        words[:2] = [f"[[{location[0]}]] number {location[1] + 1}"]
    elif len(location) >= 2 and location[0] == "profile":
        words[:2] = [f'profile "{location[1]}"']
    return f"{', '.join(words)}: " if words else ""


def _fields(location: tuple[int | str, ...], model: type[BaseModel]) -> list[str]:
    """Return the names that are allowed at a place, as they are written in the file."""
    for part in location:
        field = next((f for n, f in model.model_fields.items() if part in (n, f.alias)), None)
        # A row's number or a profile's name has no field.
        model = _model_in(field.annotation) or model if field else model
    return [f.alias or name for name, f in model.model_fields.items() if name not in (*_OURS, *_OURS_OF_ROWS)]


def _of_extras(location: tuple[int | str, ...]) -> tuple[str, ...]:
    """Return further names that are allowed at a place: keys that this module handles, and keys that extras add."""
    if len(location) == 1:
        return ("extends", "ablate", *added("sections"))
    return tuple(added("changes")) if len(location) == 3 and location[0] == "variation" else ()


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the model in an annotation: tuple[Variation, ...] gives Variation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for a in get_args(annotation) if (found := _model_in(a))), None)


# Designs are entries of [[variation]] that stand for many rows:
#     vary = {lr = [0.1, 0.01], dropout = [0.0, 0.5]}     one factor at a time: 4 rows
#     grid = {lr = [0.1, 0.01], dropout = [0.0, 0.5]}     every combination: 4 rows
#     remove = {attention = {use_attention = false}}      the full model without one component: 1 row each
# A factor is a setting with its values, or any name with tables of settings that change together. The key of a row is
# KEY-FACTORVALUE, such as `A-lr0.1`. The entry's other fields (group, set, seeds, note …) apply to each of its rows.


MANY_ROWS = 10_000  # a study with more rows requires --yes
DESIGNS = ("vary", "grid", "remove")
_OF_ONE_ROW = ("label", "paper")


@dataclass(frozen=True)
class Choice:
    """One value of a factor: its name in row keys, and its settings."""

    name: str
    settings: Mapping[str, Any]


def expand(table: dict[str, Any], origin: str, many: bool) -> dict[str, Any]:
    """Return the table of a study file with every design expanded into rows.

    Raises UserError for invalid designs, and for more than MANY_ROWS rows unless `many` is true.
    """
    entries = table.get("variation")
    if not isinstance(entries, list) or not any(_design(entry) for entry in entries):
        return table
    counts = [_count(entry, origin) for entry in entries]
    if sum(counts) > MANY_ROWS and not many:
        largest = max(range(len(entries)), key=counts.__getitem__)
        raise UserError(
            f"{origin}: the study has {sum(counts):,} rows, {counts[largest]:,} of them from "
            f'"{_key(entries[largest])}". '
            f"More than {MANY_ROWS:,} rows are usually a mistake: add --yes to confirm, or give fewer values."
        )
    return {**table, "variation": [row for entry in entries for row in _rows(entry, origin)]}


def _design(entry: Any) -> str:
    return next((name for name in DESIGNS if isinstance(entry, Mapping) and name in entry), "")


def _key(entry: Mapping[str, Any]) -> str:
    return str(entry.get("key", ""))


def _count(entry: Any, origin: str) -> int:
    """Return the number of rows of an entry, computed without expanding the entry."""
    kind = _design(entry)
    if not kind:
        return 1
    _check(entry, kind, origin)
    sizes = [len(choices) for choices in _factors(entry, kind, origin).values()]
    return math.prod(sizes) if kind == "grid" else sum(sizes)


def _check(entry: Mapping[str, Any], kind: str, origin: str) -> None:
    where = f'{origin}, row "{_key(entry)}"'
    several = [name for name in DESIGNS if name in entry]
    if len(several) > 1:
        raise UserError(
            f"{where}: it has {' and '.join(several)}, but an entry can have only one design. Write two [[variation]]."
        )
    for name in _OF_ONE_ROW:
        if name in entry:
            raise UserError(
                f"{where}: {name} belongs to a single row, but `{kind}` makes several. Write these rows by hand."
            )


def _rows(entry: Any, origin: str) -> Iterator[Any]:
    kind = _design(entry)
    if not kind:
        yield entry
        return
    factors = _factors(entry, kind, origin)
    combined: Iterable[tuple[Choice, ...]]
    if kind == "grid":
        combined = itertools.product(*factors.values())
    else:
        combined = ((choice,) for choices in factors.values() for choice in choices)
    rest = {name: value for name, value in entry.items() if name not in DESIGNS}
    common = dict(flatten(entry.get("set") or {}))
    for choices in combined:
        settings = {name: value for choice in choices for name, value in choice.settings.items()}
        key = short_key("-".join([_key(entry), *(choice.name for choice in choices)]))
        label = {"label": f"without {choices[0].name}"} if kind == "remove" else {}
        yield {"group": _key(entry), **rest, **label, "key": key, "set": common | settings, "design": _key(entry)}


def _factors(entry: Mapping[str, Any], kind: str, origin: str) -> dict[str, Sequence[Choice]]:
    where, given = f'{origin}, row "{_key(entry)}", {kind}', entry[kind]
    if kind == "remove":
        found: dict[str, Sequence[Choice]] = {"": _components(given, where)}
    elif isinstance(given, Mapping):
        found = {name: _choices(name, values, where) for name, values in flatten(given)}
    else:
        raise UserError(f"{where}: expected a table of factors, such as {{lr = [0.1, 0.01]}}.")
    if not found or not all(found.values()):
        raise UserError(f"{where}: it has no values, so it makes no rows. Give values.")
    return found


def _choices(factor: str, values: Any, where: str) -> list[Choice]:
    if not isinstance(values, list):
        raise UserError(f"{where}: {factor} = {show(values)}: expected a list of values, such as [0.1, 0.01].")
    name = _word(factor.rpartition(".")[2])
    choices = []
    for value in values:
        settings = dict(flatten(value)) if isinstance(value, Mapping) else {factor: value}
        if not settings:
            raise UserError(f"{where}: {factor}: an empty table changes nothing.")
        choices.append(Choice(f"{name}{_word(next(iter(settings.values())))}", settings))
    return choices


def _components(given: Any, where: str) -> list[Choice]:
    """Return one choice per component to remove.

    given: a list of settings to turn off, or a table of component → settings without that component.
    """
    if isinstance(given, list) and all(isinstance(name, str) for name in given):
        return [Choice(_word(name.rpartition(".")[2]), {name: False}) for name in given]
    if isinstance(given, Mapping):
        return [
            Choice(_word(name), dict(flatten(value)) if isinstance(value, Mapping) else {name: value})
            for name, value in given.items()
        ]
    raise UserError(
        f"{where}: expected a list of settings to turn off, or a table of components: "
        "{attention = {use_attention = false}}."
    )


def _word(value: Any) -> str:
    """Return a value as text for a row key, such as 0.1, yes or a.b. Characters that keys do not allow become "_"."""
    if isinstance(value, bool):
        text = "yes" if value else "no"
    elif isinstance(value, list):
        text = ".".join(_word(item) for item in value)
    else:
        text = str(value)
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text) or "empty"
