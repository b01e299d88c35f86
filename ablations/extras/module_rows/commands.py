"""The command of this extra."""

from ablations.cli.verbs import DESCRIBE, Verb

COMMANDS = {
    "modules": Verb(
        "ablations.extras.module_rows.command:modules", DESCRIBE, "modules table3 'encoder.layers.*.self_attention'"
    ),
}
