"""The process of a sink: python -m experiments.tracking.sinks.serve SINK STORE [STATE_DIR]

The process reads each TrackedRun as one line of JSON from standard input. It writes whatever the run has that is not
yet in the sink, and answers with one line on standard output. The process ends when its input ends. Other output to
standard output, for example by packages, goes to standard error.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from experiments.run_spec import RunSpec
from experiments.store.layout import Store
from experiments.store.tracked_run import TrackedRun
from experiments.tracking.sinks.sink import folder_of
from model.extensions import added, load


class Sink(Protocol):
    """The interface of a sink's class."""

    def sync(self, run: TrackedRun) -> None:
        """Write whatever the run has that is not yet in the sink."""

    def close(self) -> None:
        """Close all files."""


def main(arguments: Sequence[str]) -> None:
    """Answer requests until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    name, root, *state = arguments
    sink: Sink | None = None
    for line in sys.stdin:
        try:
            if sink is None:
                store = Store(Path(root), Path(state[0]) if state else None)
                sink = load(added("sinks")[name])(store, folder_of(store, name))
            sink.sync(run_of(json.loads(line)))
            answer = {}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    if sink is not None:
        sink.close()


def run_of(content: dict[str, Any]) -> TrackedRun:
    """Return a run from its JSON object, in which tuples are lists."""
    members: Callable[[Any], Any] = lambda found: tuple(tuple(member) for member in found)  # noqa: E731
    return TrackedRun(**{**content, "spec": RunSpec.from_json(content["spec"]), "members": members(content["members"])})


if __name__ == "__main__":
    main(sys.argv[1:])
