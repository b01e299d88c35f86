"""`python -m ablations`: the command, for environments whose scripts are not on the path."""

from ablations.cli.main import main

main()
