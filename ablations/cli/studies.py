"""`ablations studies`: list the built-in studies."""

import typer

from ablations.cli import options
from ablations.cli.terminal import print_json
from ablations.study.study import builtin_studies, load_study


def studies(as_json: options.Json = False) -> None:
    """List the built-in studies, their profiles and rows."""
    found = [load_study(name) for name in builtin_studies()]
    if as_json:
        print_json(
            [
                {
                    "study": study.name, "title": study.title, "task": study.task,
                    "default_profile": study.default_profile,
                    "profiles": {name: profile.description for name, profile in study.profiles.items()},
                    "rows": [row.key for row in study.variations],
                }
                for study in found
            ]
        )  # fmt: skip
        return
    for study in found:
        typer.echo(f"{study.name}: {study.title}")
        for profile_name, profile in study.profiles.items():
            default = " (default)" if profile_name == study.default_profile else ""
            typer.echo(f"  --profile {profile_name}{default}: {profile.description}")
        typer.echo(f"  rows: {' '.join(row.key for row in study.variations)}")
