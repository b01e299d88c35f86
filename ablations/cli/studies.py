"""`ablations studies`: list the built-in studies."""

import typer

from ablations.study.study import builtin_studies, load_study


def studies() -> None:
    """List the built-in studies, their profiles and rows."""
    for name in builtin_studies():
        study = load_study(name)
        typer.echo(f"{name}: {study.title}")
        for profile_name, profile in study.profiles.items():
            default = " (default)" if profile_name == study.default_profile else ""
            typer.echo(f"  --profile {profile_name}{default}: {profile.description}")
        typer.echo(f"  rows: {' '.join(row.key for row in study.variations)}")
