"""Exchange values between a trainer's process and the process that started it.

Both processes use this module. It converts a trainer's results and settings to JSON and back, and sends lines of JSON
(`Channel`). It also describes the type of the settings for a process that cannot import this type.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import enum
import importlib
import json
import os
import select
import sys
import threading
import types
import typing
from pathlib import PurePath
from typing import Any, Callable, Dict, Mapping, Sequence

from .errors import UserError

SHOWN = 100  # maximum number of characters of a name or value in a message


def plain(value: Any, text: Callable[[str], str] = str) -> Any:
    """Convert a value to JSON types.

    Scalars of numpy and torch, tuples, sets, paths, dates and members of enumerations are converted. `text` is applied
    to every text.
    """
    if isinstance(value, Mapping):
        return {text(str(key)): plain(item, text) for key, item in value.items()}
    if isinstance(value, enum.Enum):
        return plain(value.value, text)
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item, text) for item in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    return plain(value.item(), text) if hasattr(value, "item") else text(str(value))


def text(value: str) -> str:
    """Return a text that can be encoded as UTF-8. Lone surrogates, as in some file names, become escape sequences."""
    return value.encode(errors="backslashreplace").decode()


def by_set(returned: Any) -> dict[str, dict[str, float]]:
    """Return a trainer's result as {set: {metric: number}}. The key "" contains the numbers without a set."""
    if not isinstance(returned, Mapping):
        raise UserError(
            f"The trainer returned {_kind(returned)}: expected a mapping of metrics to numbers, such as "
            '{"accuracy": 93.2}, or one of those per set: {"dev": {…}, "test": {…}}.'
        )
    metrics: dict[str, dict[str, float]] = {}
    for name, value in returned.items():
        if isinstance(value, Mapping):
            numbers = {text(str(k)): _returned(f"{name}.{k}", v) for k, v in value.items()}
            metrics.setdefault(text(str(name)), {}).update(numbers)
        else:
            metrics.setdefault("", {})[text(str(name))] = _returned(str(name), value)
    return metrics


def _returned(name: str, value: Any) -> float:
    with contextlib.suppress(Exception):  # `__float__` of a user's class may raise any error
        if not isinstance(value, (str, bytes, bool)):
            return float(value)
    raise UserError(f"The trainer returned {name[:SHOWN]} = {shown(value)}, {_kind(value)}: expected a number.")


def shown(value: Any) -> str:
    """Return a value as text for a message, with at most SHOWN characters."""
    try:
        words = repr(value)
    except Exception:  # for example, an integer of more than 4,300 digits
        return "…"
    return f"{words[:SHOWN]} …" if len(words) > SHOWN else words


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


SIMPLE = {bool: "bool", int: "int", float: "float", str: "str", type(None): "null", Any: "any", object: "any",
          datetime.datetime: "datetime", datetime.date: "date", datetime.time: "time"}  # fmt: skip
MANY = {list: "list", tuple: "list", set: "set", frozenset: "set"}
LIMITS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern")


def described(settings_type: Any, where: str = "", default: Any = None) -> dict[str, Any]:
    """Return the names, types, defaults and limits of settings as JSON.

    default: an object whose values are used as the defaults, instead of the defaults of the type.

    Raises UserError for a type that a study file cannot express.
    """
    name = getattr(settings_type, "__name__", str(settings_type))
    where = where or name
    if not is_group(settings_type):
        raise UserError(f"{where}: settings are a dataclass or a pydantic model.")
    fields = []
    for field, (annotation, own_default, about) in _fields(settings_type, where).items():
        value = own_default if default is None else getattr(default, field)
        kind, limits = _described(annotation, f"{where}.{field}", value)
        shown = None if "group" in kind else plain(value)
        fields.append({"name": field, "kind": kind, "limits": limits, "default": shown, "about": about})
    return {"name": name, "fields": fields}


def is_group(annotation: Any) -> bool:
    """Return whether a type is a dataclass or a pydantic model."""
    known = dataclasses.is_dataclass(annotation) or hasattr(annotation, "model_fields")
    return isinstance(annotation, type) and known


def _fields(settings_type: Any, where: str) -> dict[str, tuple[Any, Any, str | None]]:
    """Return the type, the default and the description of every setting."""
    fields: dict[str, tuple[Any, Any, str | None]] = {}
    if not dataclasses.is_dataclass(settings_type):
        for name, field in settings_type.model_fields.items():
            if field.is_required():
                _refuse_required(where, name)
            annotation = _Limited(field.annotation, field.metadata)
            fields[name] = (annotation, field.get_default(call_default_factory=True), field.description)
        return fields
    module = sys.modules.get(settings_type.__module__)
    extras: dict[str, Any] = {"include_extras": True} if sys.version_info >= (3, 9) else {}
    hints = typing.get_type_hints(settings_type, vars(module) if module else None, **extras)
    for one in dataclasses.fields(settings_type):
        make: Any = one.default_factory
        if one.default is dataclasses.MISSING and make is dataclasses.MISSING:
            _refuse_required(where, one.name)
        default = one.default if one.default is not dataclasses.MISSING else make()
        fields[one.name] = (hints[one.name], default, None)
    return fields


def _refuse_required(where: str, name: str) -> None:
    raise UserError(
        f"{where}.{name} has no default. Every setting needs one: a row is the defaults plus what the study's [base] "
        "and the row change."
    )


@dataclasses.dataclass
class _Limited:
    """A type with the constraints that pydantic stores for a field."""

    annotation: Any
    metadata: Sequence[Any]


def _opened(annotation: Any) -> tuple[Any, dict[str, Any]]:
    """Return the type and the limits that Annotated[…] or a pydantic field contains."""
    limits: dict[str, Any] = {}
    while isinstance(annotation, _Limited) or hasattr(annotation, "__metadata__"):
        if isinstance(annotation, _Limited):
            annotation, metadata = annotation.annotation, annotation.metadata
        else:
            annotation, metadata = annotation.__origin__, annotation.__metadata__
        for one in [inner for outer in metadata for inner in (outer, *getattr(outer, "metadata", ()))]:
            limits.update({k: plain(getattr(one, k)) for k in LIMITS if getattr(one, k, None) is not None})
    return getattr(annotation, "__supertype__", annotation), limits


def _described(annotation: Any, where: str, default: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    annotation, limits = _opened(annotation)
    return _kind_of(annotation, where, default), limits


def _kind_of(annotation: Any, where: str, default: Any = None) -> dict[str, Any]:
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    with contextlib.suppress(TypeError):  # some annotations are not hashable
        if annotation in SIMPLE:
            return {"simple": SIMPLE[annotation]}
    if is_group(annotation):
        return {"group": described(annotation, where, default)}
    if annotation is dict or origin in (dict, Dict) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        raise UserError(f"{where} is a dict: make it a separate dataclass, so that each entry is a named setting.")
    if origin is typing.Literal:
        return {"literal": [plain(value) for value in inner]}
    if _is_union(origin):
        return {"union": [_described(one, where, default)[0] for one in inner]}
    if origin is tuple and inner[-1:] != (Ellipsis,):
        return {"tuple": [_described(one, where, None)[0] for one in inner if one != ()]}
    if (origin or annotation) in MANY or origin is Sequence or getattr(origin, "__name__", "") == "Sequence":
        many = MANY.get(origin or annotation, "list")
        kind = _described(inner[0], where, None)[0] if inner else {"simple": "any"}
        return {"tuple_of" if (origin or annotation) is tuple else many: kind}
    if isinstance(annotation, type) and issubclass(annotation, PurePath):
        return {"simple": "path"}
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return {"literal": [plain(member) for member in annotation]}
    with contextlib.suppress(Exception):
        _adapter(annotation)
        return {"simple": "any"}
    raise UserError(f"{where}: a setting has a type that no study file can hold: {annotation}")


def _is_union(origin: Any) -> bool:
    return origin is typing.Union or (origin is not None and origin is getattr(types, "UnionType", None))


def _adapter(annotation: Any) -> Any:
    """Return pydantic's adapter for a type. Raises an error of any kind if pydantic is missing or refuses the type."""
    return importlib.import_module("pydantic").TypeAdapter(annotation)


def made(settings_type: Any, values: Mapping[str, Any]) -> Any:
    """Build an object of the user's settings type from JSON values. Raises the errors of the type's checks."""
    fields = _fields(settings_type, settings_type.__name__)
    return settings_type(**{name: _value(fields[name][0], value) for name, value in values.items()})


def _value(annotation: Any, value: Any) -> Any:
    annotation, _ = _opened(annotation)
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    kind = origin or annotation
    if is_group(annotation) and isinstance(value, Mapping):
        return made(annotation, value)
    if _is_union(origin):
        if any(type(value) is one for one in inner):
            return value
        options = (_value(one, value) for one in inner if _takes(one, value))
        return next((option for option in options if type(option) is not type(value)), value)
    if isinstance(value, list):
        if kind is tuple and inner and inner[-1] is not Ellipsis:
            return tuple(_value(one, item) for one, item in zip(inner, value))
        items = [_value(inner[0], item) for item in value] if inner else value
        return kind(items) if kind in MANY else items
    if not isinstance(annotation, type) or value is None or isinstance(value, annotation):
        return value
    if issubclass(annotation, PurePath) or issubclass(annotation, enum.Enum):
        return annotation(value)
    if issubclass(annotation, (datetime.date, datetime.time)):
        return annotation.fromisoformat(value)
    if annotation in SIMPLE:
        return value
    return _adapter(annotation).validate_python(value)


def _takes(annotation: Any, value: Any) -> bool:
    with contextlib.suppress(Exception):
        _value(annotation, value)
        return True
    return False


class Channel:
    """Send lines of JSON to another process and receive lines from it. Each of the two processes has one channel.

    incoming, outgoing: file descriptors.
    """

    def __init__(self, incoming: int, outgoing: int) -> None:
        self._incoming, self._outgoing = incoming, outgoing
        self._buffer, self._stop = bytearray(), False
        self._turn = threading.RLock()

    def say(self, message: Mapping[str, Any]) -> None:
        line = json.dumps(message).encode() + b"\n"
        with self._turn:
            while line:
                line = line[os.write(self._outgoing, line) :]

    def ask(self, message: Mapping[str, Any]) -> Any:
        with self._turn:
            self.say(message)
            return self.next()

    def next(self) -> Any:
        """Return the next message that is not a request to stop, or None if the other process has ended."""
        with self._turn:
            while True:
                searched = 0
                while (end := self._buffer.find(b"\n", searched)) < 0:
                    searched = len(self._buffer)
                    more = os.read(self._incoming, 1 << 16)
                    if not more:
                        return None
                    self._buffer += more
                message = json.loads(self._buffer[:end])
                del self._buffer[: end + 1]
                if "stop" not in message:
                    return message
                self._stop = True

    def readable(self, timeout_s: float) -> bool:
        """Return whether data can be read, now or within `timeout_s`."""
        return bool(self._buffer or select.select([self._incoming], [], [], timeout_s)[0])

    def stop_requested(self, *_: Any) -> bool:
        with self._turn:
            # Outside of `ask`, the other process sends only requests to stop, so readable data is such a request. The
            # request may also have arrived together with the request to train.
            self._stop = self._stop or self.readable(0)
            return self._stop

    def stop(self, *_: Any) -> None:
        """Record a request to stop. This is the handler of a signal."""
        self._stop = True
