"""`ablations adopt`: take finished runs over, although a default or the command of their study has changed."""

import shlex
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer

from ablations.cli import options
from ablations.cli.terminal import print_json, say
from ablations.service.orphans import Orphan, orphans
from ablations.service.selected import Selectors, choose
from ablations.study.messages import number, show
from experiments.errors import UserError, explain_os_errors
from experiments.store.adopted import adopt as keep


def adopt(
    study: options.LastStudy = None,
    *,
    selectors: Selectors,
    why: Annotated[str, typer.Option(metavar="TEXT", help="Why it changes no result; printed under the table.")],
    yes: options.Sure = False,
    as_json: options.Json = False,
) -> None:
    """Take over finished runs of an own task whose default or command has changed since. Asks first.

    Your word is recorded with each run: who, when and why. Nothing is copied or trained, and the table names it.
    """
    if not why.strip() or not why.isprintable():
        raise UserError("--why: write one line that says why the change has no influence on the results.")
    study, selectors = selectors.with_last(study, say)
    chosen = choose(study, selectors, there=True, used=True)
    plan = chosen.plan
    found = orphans(chosen, plan, plan.runs)
    before = [run for run in plan.runs if run.adopted]
    if not found and not before:
        raise UserError(
            f"Nothing to take over in {chosen.store.root}: no finished run of {plan.study.name} differs from a missing "
            "one in a default or the command alone."
        )
    if not found:
        if as_json:
            print_json([{"run": run.name, "run_id": run.run_id, "taken_over": True} for run in before])
        else:
            typer.echo(
                f"nothing is left to take over: {number(len(before), 'run')} of the table were taken over before"
            )
        return
    if as_json and not yes:
        print_json(_records(found, taken_over=False))
        return
    if not as_json and not _agreed(found, yes):
        typer.echo("nothing was changed")
        return
    with explain_os_errors(f"write to the store {chosen.store.root}"):
        for orphan in found:
            keep(chosen.store, orphan.run_id, orphan.was, orphan.now, why.strip())
    if as_json:
        print_json(_records(found, taken_over=True))
    else:
        _say_taken(found, study)


def _agreed(found: Sequence[Orphan], yes: bool) -> bool:
    """List the runs and ask, unless the user has said yes already."""
    for orphan in found:
        typer.echo(f"  {orphan.planned.name}: {orphan.run_id}, trained with {_differences(orphan)}")
    question = f"Take over {number(len(found), 'run')} as if trained with the present settings?"
    return yes or typer.confirm(question)


def _say_taken(found: Sequence[Orphan], study: str) -> None:
    typer.echo(f"{number(len(found), 'run')} taken over; `ablations report {shlex.quote(study)}` names them")
    if queued := dict.fromkeys(orphan.planned.row for orphan in found if orphan.planned.state == "waiting"):
        typer.echo(f"still queued for training: {', '.join(queued)}; `ablations cancel` takes them out", err=True)


def _records(found: Iterable[Orphan], *, taken_over: bool) -> list[dict[str, Any]]:
    return [{"run": orphan.planned.name, "run_id": orphan.run_id, "taken_over": taken_over} for orphan in found]


def _differences(orphan: Orphan) -> str:
    def of(settings: object, name: str) -> str:
        return show(settings[name]) if isinstance(settings, dict) and name in settings else "nothing"

    names = dict.fromkeys([*orphan.was, *orphan.now])
    return "; ".join(f"{name} = {of(orphan.was, name)}, now {of(orphan.now, name)}" for name in names)
