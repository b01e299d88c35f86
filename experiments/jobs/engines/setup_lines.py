"""Shell lines of --setup (`module load …`, `conda activate …`), run on a node before its runs."""

import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

PATIENCE_S = 600.0  # a module system on a busy network disk
OUTPUT = 2000  # characters of the output in a message
# the shell's own; and devices and threads, which --devices decides
_KEPT = (
    "_", "SHLVL", "PWD", "OLDPWD", "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS",
)  # fmt: skip
Changes = Mapping[str, str | None]  # variables of the environment; None: removed


class SetupError(Exception):
    """A line that ended with an error; the message is a paragraph with its output."""


def setup_changes(lines: Sequence[str], environment: Mapping[str, str]) -> tuple[Changes, str]:
    """Run the lines in one bash; returns what they changed in the environment, and their output.

    Raises SetupError at the first line that ends with an error.
    """
    if not lines:
        return {}, ""
    with tempfile.TemporaryDirectory() as folder:
        failed, after = Path(folder) / "failed", Path(folder) / "after"
        stop = f'|| {{ __code=$?; echo "%d $__code" > {shlex.quote(str(failed))}; exit 1; }}'
        checked = [f"{line}\n(exit $?) {stop % number}" for number, line in enumerate(lines)]
        script = "\n".join([*checked, f"env -0 > {shlex.quote(str(after))}"])
        try:
            done = subprocess.run(
                ["bash", "-c", script],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=PATIENCE_S,
                check=False,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise SetupError(_paragraph("; ".join(lines), str(error), "")) from error
        output = done.stdout.decode(errors="replace")
        if not after.exists():
            number, code = failed.read_text().split() if failed.exists() else ("", str(done.returncode))
            line = lines[int(number)] if number else "; ".join(lines)
            raise SetupError(_paragraph(line, f"exit code {code}", output))
        pairs = (
            pair.partition("=") for pair in after.read_bytes().decode(errors="surrogateescape").split("\0") if pair
        )
        now = {name: value for name, _, value in pairs}
    changed = {name: value for name, value in now.items() if environment.get(name) != value}
    removed = dict.fromkeys(name for name in environment if name not in now)
    return {name: value for name, value in {**changed, **removed}.items() if name not in _KEPT}, output


def with_changes(environment: Mapping[str, str], changes: Changes) -> dict[str, str]:
    """The environment after the changes."""
    merged = {**environment, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def _paragraph(line: str, how: str, output: str) -> str:
    said = f"Its output:\n{output.strip()[-OUTPUT:]}" if output.strip() else "It printed nothing."
    return f"--setup {shlex.quote(line)} failed on the node {node_name()} ({how}). {said}"


def node_name() -> str:
    """This node's name, as its cluster calls it."""
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename
