"""Record which files of the product handle a value, in Python processes that have this folder on PYTHONPATH.

$TRACED_VALUE is the value as JSON: {"num_heads": 3} is an entry of a mapping or an attribute, and 12.5 is a number. The
output file $TRACED has lines of three kinds: "runs FILE" if a function of the file is called, "holds FILE" if the value
is in a function's arguments, local variables or return value, and "names FILE" if a function's code has the entry's
name.
"""

import json
import os
import sys
from pathlib import Path

if "TRACED" in os.environ:
    _out, _root, _looks, _said = os.environ["TRACED"], os.environ["TRACED_ROOT"] + os.sep, {}, set()
    _places = tuple(_root + package + os.sep for package in ("ablations", "experiments", "model", "reports"))
    _wanted = json.loads(os.environ["TRACED_VALUE"])
    _key, _value = next(iter(_wanted.items())) if isinstance(_wanted, dict) else ("", _wanted)

    def _holds(value, depth=5):
        if not _key and type(value) is type(_value) and value == _value:
            return True
        if depth == 0 or isinstance(value, (int, float, str, bytes, type)):
            return False
        if not isinstance(value, (dict, list, tuple, set, frozenset)):
            value = getattr(value, "__dict__", None) or {}
        if isinstance(value, dict):
            if _key and _value in (value.get(_key), value.get(f"model.{_key}")):
                return True
            value = value.values()
        return any(_holds(one, depth - 1) for one in list(value)[:40])

    def _say(line):
        if line not in _said:
            _said.add(line)
            with Path(_out).open("a", encoding="utf-8") as out:
                out.write(line + "\n")

    def _look(frame, event, given):
        code = frame.f_code
        file = code.co_filename
        if event not in ("call", "return") or not file.startswith(_places):
            return
        file = file[len(_root) :]
        _say(f"runs {file}")
        if _key and (_key in code.co_names or _key in code.co_consts):
            _say(f"names {file}")
        if f"holds {file}" in _said or _looks.setdefault(code, 0) > 60:
            return
        _looks[code] += 1
        try:
            found = _holds(frame.f_locals if event == "call" else given)
        except Exception:  # the attributes of some objects cannot be read at this time
            return
        if found:
            _say(f"holds {file}")

    sys.setprofile(_look)
