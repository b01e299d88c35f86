"""Find out in a separate process, which imports torch, whether this machine's devices can compute in a precision."""

import functools
import json
import subprocess
import sys
from typing import NamedTuple

from experiments.config.field_types import PrecisionChoice
from experiments.processes.processor import has_bf16

PATIENCE_S = 120.0  # time limit in seconds; importing torch is slow on a busy machine or from a network disk
_ASK = """
import ablations  # puts the folder of model, experiments and reports on the import path
import json
import sys
import torch
from experiments.device import has_bf16_instructions, require_cuda, resolve_precision
from experiments.errors import UserError
precision, device = sys.argv[1], torch.device(sys.argv[2])
try:
    if device.type == "cuda":
        require_cuda()
    resolve_precision(precision, device)
    print(json.dumps(["", precision == "bf16" and not has_bf16_instructions(device)]))
except UserError as error:
    print(json.dumps([str(error), False]))
"""


class Ability(NamedTuple):
    """Whether the devices of a kind can compute in a precision."""

    refused: str = ""  # the reason why the devices cannot compute in the precision; "" if they can or it is unknown
    slow: bool = False  # whether the devices have no instructions for the precision and emulate it


def ability(precision: PrecisionChoice, kind: str) -> Ability:
    """Return the ability of this machine's devices of a kind ("cpu" or "cuda") to compute in a precision.

    If the ability is unknown, the result is `Ability()`. In this case, a child whose device cannot compute in the
    precision reports an error before it trains.

    Raises UserError if the environment variables for tests are inconsistent (processes/processor.py).
    """
    if kind == "cpu":
        return Ability(slow=precision == "bf16" and not has_bf16())
    return _asked(precision, kind)


@functools.cache
def _asked(precision: str, kind: str) -> Ability:
    command = [sys.executable, "-P", "-c", _ASK, precision, kind]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
        return Ability(*json.loads(done.stdout))
    except (OSError, ValueError, subprocess.SubprocessError):
        return Ability()
