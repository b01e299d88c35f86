"""The commands of this extra."""

from ablations.cli.verbs import PRINT, Verb

COMMANDS = {
    "fill": Verb("ablations.extras.paper.command:fill", PRINT, "fill draft.md table3 --out paper.md"),
    "paper": Verb("ablations.extras.paper.command:paper", PRINT, "paper table2 table3 --out paper"),
}
