"""Whether this machine's devices compute in a precision, and how: asked of torch in a process of its own.

Imports no torch itself.
"""

import functools
import json
import subprocess
import sys
from typing import NamedTuple

from experiments.config import InferencePrecision
from experiments.processes.processor import has_bf16

PATIENCE_S = 120.0  # torch's import on a busy machine or from a network disk
_ASK = """
import json
import sys
import torch
from experiments.device import has_bf16_instructions, resolve_precision
from experiments.errors import UserError
precision, device = sys.argv[1], torch.device(sys.argv[2])
if device.type == "cuda" and not torch.cuda.is_available():
    sys.exit(1)
try:
    resolve_precision(precision, device)
    print(json.dumps(["", precision == "bf16" and not has_bf16_instructions(device)]))
except UserError as error:
    print(json.dumps([str(error), False]))
"""


class Ability(NamedTuple):
    """What a kind of devices can do with a precision."""

    refused: str = ""  # why they do not compute in it
    slow: bool = False  # they compute it without instructions for it


def ability(precision: InferencePrecision, kind: str) -> Ability:
    """Of this machine's devices of a kind ("cpu", "cuda"). Raises UserError for a bad switch (processor.py).

    `Ability()` also where it cannot be found out here: a child whose device lacks the precision says so before it
    trains. For int8 the answer depends on the processor, on oneDNN's variables and on the build of torch, so only a
    computation shows it (model/fast/int8.py).
    """
    if precision in ("auto", "fp32"):
        return Ability()
    if precision == "bf16" and kind == "cpu":
        return Ability(slow=not has_bf16())
    return _asked(precision, kind)


@functools.cache
def _asked(precision: str, kind: str) -> Ability:
    command = [sys.executable, "-P", "-c", _ASK, precision, kind]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
        return Ability(*json.loads(done.stdout))
    except (OSError, ValueError, subprocess.SubprocessError):
        return Ability()
