"""The commands `ablations budget` (limits of a store) and `ablations ledger` (what was tried in a store)."""

import json
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from ablations.cli import options
from ablations.cli.terminal import answer, say
from ablations.service.selected import StoreOptions
from ablations.study.study import load_study
from experiments.errors import UserError
from experiments.store import ledger as lines
from experiments.store.budget import MOST_HOURS, Account, boot_clock


def budget(
    *,
    hours: Annotated[
        float | None,
        typer.Option(
            min=0.0, metavar="H", help="Limit of hours × slots (devices or groups of cores), summed over all attempts."
        ),
    ] = None,
    runs: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Limit of trainings; a retry does not count, retraining a finished run (`--stale rerun`) counts.",
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="HH:MM|DATE", help="Time when all attempts must have ended.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove all limits.")] = False,
    store_options: StoreOptions,
    as_json: options.Json = False,
) -> None:
    """Print the rest of a store's budget, or set its limits (ablations/extras/agents/ledger.md)."""
    if hours is not None and not hours <= MOST_HOURS:
        raise UserError(
            f"--hours {hours}: write a number of at most {MOST_HOURS:,.0f}, or remove all limits with --remove."
        )
    limits: dict[str, Any] = {n: value for n, value in (("hours", hours), ("runs", runs)) if value is not None}
    if until is not None:
        end, (boot, now) = _time_of(until), boot_clock()
        limits["until"] = [end, boot, now + end - time.time()]
    opened = store_options.open(create=bool(limits))
    account = Account(opened)
    raised = any(name in account.limits and value > account.limits[name] for name, value in limits.items())
    if limits or remove:
        lines.append(opened, "budget", limits=limits, allowed="none" if remove else "any" if raised else "")
        account.read()
    running = f"; attempts running: {len(account.open)}" if account.open else ""
    answer(as_json, account.as_json(), [f"{account.in_words() or 'no budget is set'}{running}"])


def _time_of(text: str) -> float:
    now = datetime.now().astimezone()
    try:
        at = datetime.fromisoformat(text if len(text) > 5 else f"{now:%Y-%m-%d}T{text:0>5}").astimezone()
    except ValueError:
        raise UserError(f"--until {text}: write 07:00, 2026-12-24 or 2026-12-24T18:00.") from None
    at += timedelta(days=1 if len(text) <= 5 and at <= now else 0)
    if at <= now:
        raise UserError(f"--until {text} is in the past.")
    return at.timestamp()


OWN = ("n", "time", "who", "what")
LONGEST = 100  # maximum number of characters that are printed of a field's value


def ledger(
    study: Annotated[str | None, typer.Argument(metavar="[STUDY]", help="Only entries of this study.")] = None,
    *,
    last: Annotated[int | None, typer.Option("-n", min=1, metavar="N", help="Only the last N entries.")] = None,
    store_options: StoreOptions,
    as_json: options.Json = False,
) -> None:
    """Print the store's ledger: commands such as `run` and `tune`, attempts, and changes of the budget.

    Each entry is printed with its time, its user and the given reason.
    """
    opened = store_options.open()
    found = lines.entries(opened)
    for wrong in lines.damaged(opened):
        say(wrong)
    if study is not None:
        found = lines.of_study(found, Path(study).stem if not Path(study).exists() else load_study(study).name)
    answer(as_json, found[-(last or 0) :], map(_line, found[-(last or 0) :]))


def _line(entry: lines.Entry) -> str:
    facts = {name: value for name, value in entry.items() if name not in OWN and value not in ("", None)}
    shown = {
        name: text if isinstance(text, str) else json.dumps(text, ensure_ascii=False) for name, text in facts.items()
    }
    cut = (f"{name}={text[:LONGEST]}{'…' if len(text) > LONGEST else ''}" for name, text in shown.items())
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry["time"]))
    return "  ".join([str(entry["n"]), at, entry.get("who", ""), entry["what"], *cut])
