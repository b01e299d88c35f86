"""Find settings in configuration files: a YAML file that the command names, and configurations of Hydra.

Values that a setting cannot express stay in the file: null, empty tables, lists of tables, interpolations, `_target_`,
and keys that are not valid names of settings.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ablations.service.from_script.fields import Root, Style, options_of
from ablations.service.from_script.option import (
    SEEDS,
    Option,
    keywords,
    name_of,
    reserved,
    setting_name,
    text_of,
    toml,
)
from ablations.service.from_script.reach import Code
from experiments.errors import UserError, explain_os_errors
from experiments.store.durable import read_regular

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_COMPUTED = re.compile(r"\$\{|\?\?\?")
_QUOTED = re.compile(r"[^'\\]*")  # texts that Hydra reads unchanged between single quotes
HYDRA = Style("hydra", bools=("true", "false"))


def read_yaml(file: Path, omega: bool = False) -> dict[str, Any]:
    """Return the content of a YAML file; {} if the content is not a mapping.

    omega: whether to read numbers as OmegaConf does. In OmegaConf, 1e-4 is a number; in PyYAML, it is a text. Raises
    UserError if the file cannot be read or is not valid YAML.
    """
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """PyYAML's safe loader, to which OmegaConf's form of numbers can be added."""

    if omega:
        number = (
            r"[-+]?(?:\d[\d_]*\.[\d_]*(?:[eE][-+]?\d+)?|\d[\d_]*[eE][-+]?\d+|\.\d[\d_]*(?:[eE][-+]?\d+)?|\.(?:inf|nan))"
        )
        Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(f"^{number}$", re.I), list("-+0123456789."))
    with explain_os_errors(f"read {file}"):
        try:
            content = yaml.load(read_regular(file).decode(), Loader)
        except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
            raise UserError(f"{file} is not valid YAML: {' '.join(str(error).split())}.") from None
    return content if isinstance(content, dict) else {}


def leaves(content: Mapping[Any, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any, str]]:
    """Yield (dotted name, value, reason) for every value of a configuration.

    reason: why the value cannot be a setting; "" if it can be one.
    """
    for key, value in content.items():
        name = f"{prefix}{key}"
        if not isinstance(key, str) or not _NAME.fullmatch(key):
            yield name, value, "its key is not a valid name of a setting"
        elif reserved(key, top=not prefix):
            yield name, value, "a setting cannot have this name"
        elif isinstance(value, dict) and value and depth < 20:
            yield from leaves(value, f"{name}.", depth + 1)
        else:
            yield name, value, unfit(value)


def unfit(value: Any) -> str:
    """Return the reason why a value of a file cannot be a setting; "" if it can be one."""
    if value is None:
        return "a setting cannot be null"
    if isinstance(value, str) and _COMPUTED.search(value):
        return "it is computed from other values"
    if isinstance(value, list) and any(isinstance(item, list | dict) or unfit(item) for item in value):
        return "a list with values that no setting can have"
    return "" if toml(value) else "no setting can have such a value"


def yaml_options(file: Path, named: str) -> list[Option]:
    """Return the keys of a YAML file as options. named: the file as the command names it."""
    found = []
    for name, value, reason in leaves(read_yaml(file)):
        found.append(Option(name, (name,), value, f"in {named}", in_file=True, left_out=reason))
    return found


@dataclass
class _Composed:
    """A configuration of Hydra that is composed of several files."""

    values: dict[str, tuple[Any, str]] = field(default_factory=dict)  # name → (value, why it is left out, or "")
    groups: dict[str, tuple[str, list[str]]] = field(default_factory=dict)  # group → (chosen file, all files)
    others: dict[str, list[Any]] = field(default_factory=dict)  # key of a group → its values in all files of the group


def hydra_options(code: Code, given: Sequence[str]) -> tuple[list[Option], list[str]]:
    """Return the overrides that a script of Hydra accepts, and remarks about configurations that were not read.

    given: the overrides in the command, which choose the files of groups.
    """
    for node, function in code.functions():
        for decorator in function.decorator_list:
            words = keywords(decorator)
            if name_of(decorator) == "main" and "hydra" in code.imports and "config_name" in words:
                return _of_main(code, node.file, words, given)
    return [], []


def _of_main(
    code: Code, script: Path, words: Mapping[str, ast.expr], given: Sequence[str]
) -> tuple[list[Option], list[str]]:
    named, place = text_of(words["config_name"]), text_of(words.get("config_path")) or "."
    for before, word in zip(["", *given], given, strict=False):
        if word.partition("=")[0] in ("--config-path", "-cp", "--config-dir", "-cd"):
            return [], [f"{word} chooses other configurations, so their keys are not read"]
        if word.startswith(("--config-name=", "-cn=")) or before in ("--config-name", "-cn"):
            named = word.rpartition("=")[2]
    if not named:
        return [], ["the name of Hydra's configuration is computed, so its keys are not read"]
    file = script.parent / place / (named if named.endswith(".yaml") else f"{named}.yaml")
    if not file.is_file():
        stored = list(_stored(code, named.removesuffix(".yaml")))
        return stored, [] if stored else [f"there is no {file.name} in {place}, so its keys are not read"]
    chosen = {key: value for key, equals, value in (word.partition("=") for word in given) if equals}
    added = [key[1:] for key in chosen if key.startswith("+") and (file.parent / key.lstrip("+")).is_dir()]
    found = _compose(file, chosen)
    if found is None or added:
        what = f"{added[0]} in the command" if added else f"the defaults list of {file.name}"
        return [], [f"{what} may change every key of the configuration, so its keys are not read"]
    options = [_override(name, value, reason, file.name, found.others.get(name, ()))
               for name, (value, reason) in found.values.items()]  # fmt: skip
    groups = list[Option]()
    for group, (choice, files) in found.groups.items():
        name = setting_name(group.replace("/", "_"))
        if any(option.name.startswith(f"{name}.") or option.name == name for option in options):
            name += "_"
        others = tuple(each for each in files if each != choice)
        groups.append(Option(name, (group,), choice, f"a group, in {file.name}", others, f"{group}={{{name}}}"))
    options = [*groups, *options]
    missing = [option.flag for option in options if option.value == "???"]
    options = [Option(o.name, o.flags, None, o.about, (), o.written, required=True) if o.flag in missing else o
               for o in options]  # fmt: skip
    return options, []


def _override(name: str, value: Any, reason: str, file: str, others: Any) -> Option:
    """Return the option that writes `key=value` on the command line. Texts are quoted for Hydra's grammar."""
    option = Option(name, (name,), value, f"in {file}", tuple(others), f"{name}={{{name}}}", left_out=reason)
    if value == "???":
        return Option(name, (name,), value, option.about, (), option.written)
    if reason or name in SEEDS:
        return Option(name, (name,), value, option.about, (), option.written, left_out="" if name in SEEDS else reason)
    if isinstance(value, str):
        if not _QUOTED.fullmatch(value):
            return option.without("Hydra's command line cannot take its text as it is")
        return Option(name, (name,), value, option.about, tuple(others), rf"{name}=\'{{{name}}}\'")
    if isinstance(value, list) and any(isinstance(item, str) and not _QUOTED.fullmatch(item) for item in value):
        return option.without("Hydra's command line cannot take its texts as they are")
    return option


def _compose(file: Path, given: Mapping[str, str]) -> _Composed | None:
    """Return a primary configuration with the files of its defaults list; None if other files may change any key.

    given: group → the file that the command chooses. A key that is in several files is not a setting.
    """
    content = read_yaml(file, omega=True)
    found, defaults = _Composed(), content.pop("defaults", [])
    content.pop("hydra", None)
    for entry in defaults if isinstance(defaults, list) else ():
        if isinstance(entry, str) and entry != "_self_":
            other = file.parent / f"{entry.removesuffix('.yaml')}.yaml"
            below = read_yaml(other, omega=True) if other.is_file() else {"defaults": []}
            if "defaults" in below or "@package" in other.read_text(encoding="utf-8", errors="replace"):
                return None
            _take(found, leaves(below))
        for key, usual in entry.items() if isinstance(entry, dict) else ():
            group = str(key).removeprefix("optional ").strip()
            if not re.fullmatch(r"\w+(/\w+)*", group) or str(key) != group or group.startswith("hydra/"):
                continue
            files = {each.stem: each for each in sorted((file.parent / group).glob("*.yaml"))}
            choice = given.get(group, usual)
            if isinstance(choice, str) and choice in files:
                found.groups[group] = (choice, list(files))
                _of_group(found, group, choice, files)
    _take(found, leaves(content))
    return found


def _take(found: _Composed, values: Iterable[tuple[str, Any, str]]) -> None:
    """Add the values of another file of the composition."""
    for name, value, reason in values:
        several = name in found.values or any(
            other.startswith(f"{name}.") or name.startswith(f"{other}.") for other in found.values
        )
        found.values[name] = (value, "several of the files have this key" if several else reason)


def _of_group(found: _Composed, group: str, chosen: str, files: Mapping[str, Path]) -> None:
    """Add the keys that all files of a group have. These keys stay valid if a row chooses another file of the group.

    Add no keys if a file of the group has a package directive or a defaults list.
    """
    heads = [read_regular(each).decode(errors="replace") for each in files.values()]
    contents = {name: read_yaml(each, omega=True) for name, each in files.items()}
    if any("@package" in head for head in heads) or any("defaults" in content for content in contents.values()):
        return
    every = {name: {n: v for n, v, _ in leaves(content)} for name, content in contents.items()}
    prefix = group.replace("/", ".")
    for name, value, reason in leaves(contents[chosen]):
        if all(name in values for values in every.values()):
            _take(found, [(f"{prefix}.{name}", value, reason)])
            found.others[f"{prefix}.{name}"] = [values[name] for values in every.values()]


def _stored(code: Code, named: str) -> Iterator[Option]:
    """Yield the fields of a dataclass that the script stores as a configuration of Hydra with this name."""
    for at, call in code.calls():
        words = keywords(call)
        if name_of(call) == "store" and text_of(words.get("name")) == named and "group" not in words:
            for place, kind in code.definitions(name_of(words.get("node")), at.file)[:1]:
                for option in options_of(Root(HYDRA, kind, place, named), code):
                    if option.name == "defaults":
                        continue
                    made = _override(option.flag.removeprefix("--"), option.value, option.left_out, named, ())
                    if option.required:
                        made = Option(made.name, made.flags, None, made.about, (), made.written, required=True)
                    yield made
