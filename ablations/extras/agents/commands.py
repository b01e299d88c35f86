"""The commands of this extra."""

from ablations.cli.verbs import STORE, Verb

COMMANDS = {
    "mcp": Verb("ablations.extras.agents.mcp:mcp", STORE, "mcp --store runs --allow studies"),
    "budget": Verb(
        "ablations.extras.agents.budget:budget", STORE, "budget --hours 8 --runs 40 --until 07:00", gives_reason=True
    ),
    "ledger": Verb("ablations.extras.agents.budget:ledger", STORE, "ledger my_study.toml"),
}
