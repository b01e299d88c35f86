"""Ask the parser of a script for its defaults, and compare them with what a study writes (`new --from … --ask`).

The script is run by the trainer's interpreter, in a child with a time limit, up to the point where it parses its
options. What it does before that point is done: it is the script's own code.
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
from experiments.tasks.own.shell import expanded

ASK_S = 60.0
_CHILD = Path(__file__).with_name("ask_child.py")
_LAST_LINES = 5


# A script that imports none of these has no parser that could be asked: it would begin to train.
PARSERS = {"argparse", "configargparse", "click", "typer", "tyro", "simple_parsing", "jsonargparse", "transformers",
           "trl", "draccus", "pyrallis", "tap", "lightning", "pytorch_lightning"}  # fmt: skip


def ask(words: Sequence[str], start: int, command: str, settings: Sequence[Option], folder: Path) -> dict[str, str]:
    """Ask the parser of a script. Returns the settings of which it makes something else than no option, with what.

    words: the command as it was given; start: the place of the script in it; command: the study's, with its places.
    Raises UserError where the parser cannot be asked.
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
    """The interpreter of the trainer: the one that the command names, or that beside the program that it names."""
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
    """The command's words behind the script with one setting alone in its place."""
    return shlex.split(_without_other_places(command, option))[start + 1 :]


def _without_other_places(command: str, option: Option) -> str:
    """The command with the option's value, without the places and flags of all other settings."""
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
    """Run the child to its end or the time limit. Returns its last lines as a sentence."""
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
