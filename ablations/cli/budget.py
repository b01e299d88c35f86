"""Verbs on what a store may spend, may score and has tried: `ablations budget`, `unseal` and `ledger`."""

import json
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from ablations.cli import options
from ablations.cli.terminal import answer, say
from ablations.service.guard import unseal as open_sealed
from ablations.service.selected import Selectors, StoreOptions, choose
from ablations.study.messages import number
from ablations.study.study import load_study
from experiments.errors import UserError
from experiments.store import ledger as lines
from experiments.store.budget import MOST_HOURS, Account, boot_clock
from experiments.store.durable import read_regular
from experiments.store.layout import Store
from experiments.store.secret import check_secret, is_protected, set_secret

PassphraseFile = Annotated[
    Path | None,
    typer.Option("--passphrase-file", metavar="FILE", help="A file that others cannot read; its first line counts."),
]


def budget(
    *,
    hours: Annotated[float | None, typer.Option(min=0.0, metavar="H", help="Slot hours of all attempts.")] = None,
    runs: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Trainings; a retry is none, `--stale rerun` is one.")
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="HH:MM|DATE", help="Attempts end by then.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove all limits.")] = False,
    passphrase_file: PassphraseFile = None,
    protect: Annotated[bool, typer.Option("--protect", help="Ask for a new passphrase.")] = False,
    store_options: StoreOptions,
    as_json: options.Json = False,
) -> None:
    """Print what a store may still spend, or limit it.

    A limit is lowered by anybody. Raising or removing one needs the store's passphrase, once there is one: the first
    that --passphrase-file or --protect gives (docs/ledger.md).
    """
    if hours is not None and not hours <= MOST_HOURS:
        raise UserError(
            f"--hours {hours}: write a number of at most {MOST_HOURS:,.0f}. --remove takes all limits away."
        )
    limits: dict[str, Any] = {n: value for n, value in (("hours", hours), ("runs", runs)) if value is not None}
    if until is not None:
        end, (boot, now) = _time_of(until), boot_clock()
        limits["until"] = [end, boot, now + end - time.time()]
    opened = store_options.open(create=bool(limits))
    account = Account(opened)
    if (passphrase_file or protect) and not is_protected(opened):
        set_secret(opened, passphrase(opened, passphrase_file, new=True) or "")
    raised = any(name in account.limits and value > account.limits[name] for name, value in limits.items())
    if raised or remove:
        check_secret(opened, passphrase(opened, passphrase_file))
    if limits or remove:
        lines.append(opened, "budget", limits=limits, allowed="none" if remove else "any" if raised else "")
        account.read()
    protected = is_protected(opened)
    guarded = "protected by a passphrase" if protected else "not protected: every user of this store can raise it"
    running = f"; attempts running: {len(account.open)}" if account.open else ""
    words = [f"{account.in_words() or 'no budget is set'}{running}", guarded]
    answer(as_json, {**account.as_json(), "protected": protected}, words)


def passphrase(store: Store, file: Path | None, *, new: bool = False) -> str | None:
    """The passphrase in a file, or typed at a terminal; None if there is neither, or the store needs none."""
    if file is not None:
        try:
            return next(iter(read_regular(file).decode().splitlines()), "")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--passphrase-file {file} cannot be read: {error}.") from None
    if (new or is_protected(store)) and sys.stdin.isatty():
        return str(typer.prompt("Passphrase", hide_input=True, confirmation_prompt=new, err=True))
    return None


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


# --- `ablations unseal`: open the sealed sets of a study, for the rows that are then in its table


def unseal(
    study: options.StudyName,
    *,
    selectors: Selectors,
    passphrase_file: PassphraseFile = None,
    as_json: options.Json = False,
) -> None:
    """Allow the sealed sets of a guarded study to be scored, for the rows that are now in its table.

    It is recorded in the ledger. Rows, seeds and decodings added later are sealed until another call. If the store has
    a passphrase, it is needed (docs/threat-model.md).
    """
    chosen = choose(study, selectors, there=True)
    store, protected = chosen.store, is_protected(chosen.store)
    check_secret(store, passphrase(store, passphrase_file))
    sets, rows = open_sealed(chosen.plan, store)
    facts = {"study": chosen.study.name, "sets": list(sets), "rows": list(rows), "protected": protected}
    words = [f"{', '.join(sets)} of {number(len(rows), 'row')} may be scored now: `ablations run {study}` does it."]
    words += [] if protected else ["not protected: every user of this store can unseal it (no passphrase)"]
    answer(as_json, facts, words)


# --- `ablations ledger`: what was ever requested, started, ended, cancelled or discarded


OWN = ("n", "time", "who", "what", "before")
LONGEST = 100  # characters of a fact on a line of text


def ledger(
    study: Annotated[str | None, typer.Argument(metavar="[STUDY]", help="Only what concerns this study.")] = None,
    *,
    head: Annotated[bool, typer.Option("--head", help="Only N:DIGEST of the last line, to keep elsewhere.")] = False,
    last: Annotated[int | None, typer.Option("-n", min=1, metavar="N", help="Only the last N lines.")] = None,
    store_options: StoreOptions,
    as_json: options.Json = False,
) -> None:
    """Print all that was tried in a store: when, by whom, and why. `verify --head` says whether it was changed."""
    opened = store_options.open()
    if head:
        answer(as_json, {"head": lines.head(opened)}, [lines.head(opened)])
        return
    found = lines.entries(opened)
    for wrong in lines.broken(opened):
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
