"""Check the defaults in a generated study with the parser of its script (`ablations new --from … --ask`).

The trainer's interpreter runs the script in a child process with a time limit, up to the point where the script parses
its options. The script's code before that point is executed.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ablations.service.from_script.option import Option
from experiments.command_words import PLACEHOLDER
from experiments.errors import UserError
from experiments.tasks.own.placeholders import expanded

ASK_S = 60.0
_CHILD = Path(__file__).with_name("ask_child.py")
_LAST_LINES = 5


# Libraries whose parsers `ask_child.py` supports. A script that imports none of these libraries would start to train.
PARSERS = {"argparse", "configargparse", "click", "typer", "tyro", "simple_parsing", "jsonargparse", "transformers",
           "trl", "draccus", "pyrallis", "tap", "lightning", "pytorch_lightning"}  # fmt: skip


def ask(words: Sequence[str], start: int, command: str, settings: Sequence[Option], folder: Path) -> dict[str, str]:
    """Return the settings whose default the parser of a script contradicts, with the reason.

    The parser contradicts a default if an option with this default gives other values than a command without the
    option. words: the command as typed. start: the index of the script in `words`. command: the study's command, with
    placeholders. Raises UserError if the parser cannot be asked.
    """
    interpreter = _interpreter(words[:start])
    module = words[start - 1] in ("-m", "--module") if start else False
    given = list(words[start + 1 :])
    asked = {"given": given, "settings": {one.name: _words(command, start, one) for one in settings}}
    with tempfile.TemporaryDirectory(prefix="ablations-ask-") as place:
        answer, questions = Path(place, "answer.json"), Path(place, "words.json")
        questions.write_text(json.dumps(asked), encoding="utf-8")
        line = [
            interpreter,
            str(_CHILD),
            str(answer),
            str(questions),
            *(["-m"] if module else []),
            words[start],
            *given,
        ]
        ended = _run(line, folder)
        if not answer.is_file():
            raise UserError(
                f"--ask: {words[start]} ended before it parsed options with argparse or click, so its parser cannot be "
                f"asked. {ended} Leave out --ask to write the study from the script's text."
            )
        found = json.loads(answer.read_text(encoding="utf-8"))
    if found["plain"] is not None:
        raise UserError(f"--ask: the parser of {words[start]} refuses the command without options: {found['plain']}")
    return {name: why for name, one in found["settings"].items() if (why := _why(one))}


def _interpreter(before: Sequence[str]) -> str:
    """Return the trainer's interpreter: the one in the command, or the one in the folder of a launcher (torchrun).

    If the command has neither, return `python` of the search path.
    """
    for word in reversed(before):
        found = shutil.which(word)
        if found and re.fullmatch(r"(python|pypy)[\d.]*", Path(word).name):
            return found
        beside = Path(found).parent / "python" if found else None
        if beside is not None and beside.is_file() and Path(word).name in ("torchrun", "accelerate", "deepspeed"):
            return str(beside)
    return shutil.which("python") or sys.executable


def _why(one: Mapping[str, Any]) -> str:
    if "refused" in one:
        return f"the parser refuses its value: {one['refused']}"
    changed = one["changed"]
    unlike = [f"{name} is {was!r} without the option, and {now!r} with it" for name, (was, now) in changed.items()]
    return "; ".join(unlike)


def _words(command: str, start: int, option: Option) -> list[str]:
    """Return the arguments of the script in the command, with only one setting filled in."""
    return shlex.split(_without_other_places(command, option))[start + 1 :]


def _without_other_places(command: str, option: Option) -> str:
    """Return the command with the option's value, but without the placeholders and flags of all other settings."""
    kept = list[str]()
    for word in command.split(" "):
        placed = PLACEHOLDER.search(word)
        if placed is None:
            kept.append(word)
        elif placed[3]:  # {settings.yaml:FILE}
            kept.append(word.replace(placed[0], shlex.quote(placed[3])))
        elif placed[1] == option.name:
            kept.append(expanded(word, {option.name: option.value}))
        elif kept and placed.start() == 0 and placed[2] is None and kept[-1].startswith("-"):
            kept.pop()
    return " ".join(kept)


def _run(line: Sequence[str], folder: Path) -> str:
    """Run the child process until it ends or the time limit is reached. Return a sentence about its output."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONSAFEPATH", "PYTHONPATH")}
    try:
        child = subprocess.Popen(
            line, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise UserError(f"--ask: {line[0]} cannot be started: {error.strerror}.") from None
    try:
        printed, _ = child.communicate(timeout=ASK_S)
    except subprocess.TimeoutExpired:
        return f"It had not done so within {ASK_S:g} seconds."
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    last = " / ".join(printed.strip().splitlines()[-_LAST_LINES:])
    return f"Its last lines: {last[:500]}." if last else "It printed nothing."
