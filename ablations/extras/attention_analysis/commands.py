"""The commands of this extra."""

from ablations.cli.verbs import MODELS, Verb

COMMANDS = {
    "attention": Verb(
        "ablations.extras.attention_analysis.command:attention",
        MODELS,
        "attention table3 'The law is good.' --row base",
    ),
}
