"""Ask torch, in a process of its own, whether this machine has an arithmetic. Imports no torch itself."""

import functools
import subprocess
import sys

from experiments.config import InferencePrecision

ANYWHERE = ("auto", "fp32")
PATIENCE_S = 120.0  # torch's import on a busy machine or from a network disk
_ASK = """
import sys
import torch
from experiments.device import resolve_precision
from experiments.errors import UserError
try:
    resolve_precision(sys.argv[1], torch.device(sys.argv[2]))
except UserError as error:
    print(error)
"""


@functools.cache
def precision_refused(precision: InferencePrecision, kind: str) -> str:
    """Why this machine's devices of a kind ("cpu", "cuda") do not compute in `precision`; "" if they do.

    Also "" if it cannot be found out here: a child that lacks it says so before it trains. The answer depends on the
    processor, on oneDNN's variables and on the build of torch, so only a computation shows it (model/fast/int8.py).
    """
    if precision in ANYWHERE:
        return ""
    command = [sys.executable, "-P", "-c", _ASK, precision, kind]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
