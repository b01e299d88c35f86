"""The command of this extra."""

from ablations.cli.verbs import PRINT, Verb

COMMANDS = {
    "bundle": Verb("ablations.extras.bundles.command:bundle", PRINT, "bundle table3 --out table3.tar.gz"),
}
