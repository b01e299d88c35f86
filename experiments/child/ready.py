"""All that children of own functions and of commands have in common, made before they are forked. Imports no torch.

The fork server imports this module (experiments/jobs/engines/local.py): the child's program with its tasks, the schemas
of its records, and what each child would otherwise ask git and the system.
"""

import experiments.child.run  # noqa: F401 - a child runs it again, under the name __main__
from experiments.store import provenance
from experiments.store.results import Facts
from experiments.tasks.load import load_task


def _build(kind: type[Facts]) -> None:
    for one in kind.__subclasses__():
        one.model_rebuild()
        _build(one)


_build(Facts)
load_task("command")
provenance.tool()
provenance.host()
