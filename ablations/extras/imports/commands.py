"""The commands of this extra."""

from ablations.cli.verbs import PRINT, Verb

COMMANDS = {
    "tabulate": Verb(
        "ablations.extras.imports.tabulate_command:tabulate", PRINT, "tabulate runs.csv --row optimizer --metric acc"
    ),
    "import": Verb("ablations.extras.imports.import_command:import_", PRINT, "import theirs.toml --from scores.csv"),
}
