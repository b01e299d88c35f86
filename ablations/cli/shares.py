"""`ablations shares`: several users of one store, what each has used, and their quotas."""

from dataclasses import asdict
from typing import Annotated

import typer

from ablations.cli import options
from ablations.cli.terminal import print_json
from ablations.service.selected import Place
from ablations.service.shares import UserShare, agree, agreed_in_words, users_of


def shares(
    place: Place,
    quota: Annotated[
        list[str] | None,
        typer.Option(
            metavar="USER=HOURS", help="Most device-hours of a user in 7 days; none for no quota; repeatable."
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Show what each user of a store has used in the last 7 days, and set quotas.

    The user who has used least goes first.

    An agreement between colleagues, no barrier: whoever can write in the store can change it.
    """
    opened = place.open()
    if quota:
        agree(opened, quota)
    agreed, users = users_of(opened)
    if as_json:
        print_json({"users": [asdict(user) for user in users]})
        return
    typer.echo(agreed_in_words(agreed))
    for user in users:
        typer.echo(_line(user))


def _line(user: UserShare) -> str:
    of = f" of {user.quota_h:g}" if user.quota_h is not None else ""
    line = f"  {user.user or '(unknown)'}: {user.used_h:.3g}{of} device-hours used, {user.running} running, "
    return f"{line}{user.waiting} waiting{f'; {user.waits}' if user.waits else ''}"
