"""Run the command as `python -m ablations`, for environments whose scripts are not on the path."""

from ablations.cli.main import main

main()
