"""The verbs (subcommands) of `ablations`: those of this program, of extras and of installed packages."""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from model.extensions import ExtensionError, added, load


class Verb(NamedTuple):
    """A verb (subcommand of `ablations`)."""

    place: str  # module:FUNCTION; the function's parameters are the verb's arguments and options
    group: str  # heading in --help
    example: str  # an example of use, without "ablations "
    gives_reason: bool = False  # whether the verb has the option --because and writes its requests to the ledger

    @property
    def function(self) -> Any:
        """The verb's function. Its module is imported when this property is read."""
        return load(self.place)

    @property
    def docstring(self) -> str:
        """The docstring of the verb's function, read without importing its module."""
        module, _, name = self.place.partition(":")
        return _docstrings(module).get(name, "")


@cache
def _docstrings(module: str) -> Mapping[str, str]:
    found = find_spec(module)
    if found is None or found.origin is None:  # the package is missing; a call of the verb reports this
        return {}
    tree = ast.parse(Path(found.origin).read_text(encoding="utf-8"))
    return {node.name: ast.get_docstring(node) or "" for node in tree.body if isinstance(node, ast.FunctionDef)}


DESCRIBE, RUN, PRINT = "Describe a table", "Train its rows", "Print, check and share it"
MODELS, STORE = "Use trained models", "Look into a store, and keep it in order"
CORE = {  # verbs by name, in the order of --help
    "studies": Verb("ablations.cli.describe:studies", DESCRIBE, "studies"),
    "new": Verb("ablations.cli.new_study:new", DESCRIBE, "new my_study"),
    "settings": Verb("ablations.cli.describe:settings", DESCRIBE, "settings translation"),
    "plan": Verb("ablations.cli.show_plan:plan", DESCRIBE, "plan table3 --profile small --corpus my-corpus"),
    "noise": Verb("ablations.cli.show_plan:noise", DESCRIBE, "noise table3 --seeds 5"),
    "run": Verb(
        "ablations.cli.run:run", RUN, "run table3 --rows base,A --seeds 3 --devices cuda:0,1", gives_reason=True
    ),
    "queue": Verb("ablations.cli.run:queue", RUN, "queue table3 --seeds 3 --priority 5", gives_reason=True),
    "work": Verb("ablations.cli.run:work_command", RUN, "work --devices cuda:*x3", gives_reason=True),
    "tune": Verb("ablations.cli.run:tune", RUN, "tune my_study.toml --trials 20", gives_reason=True),
    "evaluate": Verb(
        "ablations.cli.run:evaluate", RUN, "evaluate table3 --set evaluation.beam_size=8", gives_reason=True
    ),
    "cancel": Verb("ablations.cli.status:cancel", RUN, "cancel big A-h16:2", gives_reason=True),
    "retry": Verb("ablations.cli.status:retry", RUN, "retry all", gives_reason=True),
    "report": Verb("ablations.cli.report:report", PRINT, "report table3 --format latex --out table3.tex"),
    "verify": Verb("ablations.cli.inspect:verify", PRINT, "verify table3.csv table3"),
    "explain": Verb("ablations.cli.inspect:explain", PRINT, "explain table3 A-h16.bleu"),
    "compare": Verb("ablations.cli.inspect:compare", PRINT, "compare table3 old-table3.tar.gz"),
    "generate": Verb("ablations.cli.models:generate", MODELS, "generate table3 input.txt --row base > output.txt"),
    "export": Verb("ablations.cli.models:export", MODELS, "export table3 german-english --row base"),
    "tables": Verb("ablations.cli.store:tables", STORE, "tables"),
    "status": Verb("ablations.cli.status:status", STORE, "status"),
    "log": Verb("ablations.cli.status:log", STORE, "log A-h16:2 --follow"),
    "ui": Verb("ablations.cli.ui:ui", STORE, "ui table3"),
    "forget": Verb("ablations.cli.store:forget", STORE, "forget table3 --rows big", gives_reason=True),
}


def verbs() -> dict[str, Verb]:
    """Return all verbs by name.

    An extra or a package adds a mapping of names to verbs through the extension point `commands`. A package that cannot
    be imported adds no verbs, and `refused` returns the reason.
    """
    found = dict(CORE)
    for added_verbs in _added():
        if not isinstance(added_verbs, ExtensionError):
            for name, verb in added_verbs.items():
                found.setdefault(name, verb)
    return found


def refused() -> list[str]:
    """Return a message for each package whose verbs cannot be imported."""
    return [str(found) for found in _added() if isinstance(found, ExtensionError)]


def _added() -> Iterator[Mapping[str, Verb] | ExtensionError]:
    for place in added("commands").values():
        try:
            found = load(place)
        except ExtensionError as error:
            yield error
            continue
        if isinstance(found, Mapping) and all(isinstance(verb, Verb) for verb in found.values()):
            yield found
        else:
            yield ExtensionError(
                f"{place} adds no commands: it is not a mapping of names to Verb. Correct or remove it."
            )
