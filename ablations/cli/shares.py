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
        typer.Option(metavar="USER=HOURS", help="Most device-hours of a user; none for no quota; repeatable."),
    ] = None,
    weight: Annotated[
        list[str] | None,
        typer.Option(metavar="USER=WEIGHT", help="With 2, a user may use twice as much as one with 1; repeatable."),
    ] = None,
    half_life: Annotated[
        float | None, typer.Option(metavar="HOURS", help="After so long, what was used counts half; 168 if never set.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Show what each user of a store has used, and set quotas and weights.

    The user who has used least for the weight goes first.

    An agreement between colleagues, no barrier: whoever can write in the store can change it.
    """
    opened = place.open()
    if quota or weight or half_life is not None:
        agree(opened, quota or (), half_life, weight or ())
    agreed, users = users_of(opened)
    if as_json:
        print_json({"half_life_hours": agreed.half_life_h, "users": [asdict(user) for user in users]})
        return
    typer.echo("; ".join(agreed_in_words(agreed)))
    for user in users:
        typer.echo(_line(user))


def _line(user: UserShare) -> str:
    of = f" of {user.quota_h:g}" if user.quota_h is not None else ""
    line = f"  {user.user or '(unknown)'}: {user.used_h:.3g}{of} device-hours used, {user.running} running, "
    return f"{line}{user.waiting} waiting{f'; {user.waits}' if user.waits else ''}"
