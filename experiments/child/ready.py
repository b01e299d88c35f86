"""Work that the fork server does once for all of its children. Importing this module does the work.

The fork server imports this module if the children run users' functions and commands
(experiments/jobs/engines/fork_server.py). The module imports the child's program and its tasks, builds the schemas of
the records, and reads facts about the program and the host. Without it, each child would do this work and run git.

This module does not import torch.
"""

import experiments.child.run  # noqa: F401 - a child runs this module again under the name __main__
from experiments.store import provenance
from experiments.store.record_base import Facts
from experiments.tasks.load import load_task


def _build(kind: type[Facts]) -> None:
    for one in kind.__subclasses__():
        one.model_rebuild()
        _build(one)


_build(Facts)
load_task("command")
provenance.tool()
provenance.host()
