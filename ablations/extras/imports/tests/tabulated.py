"""`ablations tabulate` as a function, for tests: what it prints, and its rows."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from ablations.cli.main import app


def tabulate(*words: object) -> tuple[str, str]:
    """What is printed, and what is said on standard error. Raises UserError."""
    done = CliRunner().invoke(app, ["tabulate", *map(str, words)])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.stdout, done.stderr


def rows(*words: object) -> list[dict[str, Any]]:
    return json.loads(tabulate(*words, "--json")[0])


def written(folder: Path, lines: Iterable[str] | bytes, name: str = "runs.csv") -> Path:
    file = folder / name
    file.write_bytes(lines if isinstance(lines, bytes) else ("\n".join(lines) + "\n").encode())
    return file
