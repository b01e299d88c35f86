"""Work that is done once, before the fork server forks the children for users' functions and commands.

The fork server imports this module (experiments/jobs/engines/fork_server.py). The module imports the child's program
and its tasks, builds the schemas of the records, and reads facts about the program and the host. Otherwise, each child
would have to do this work and run git. Imports no torch.
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
