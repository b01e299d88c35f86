"""What trained the rows: devices, packages and code, each in a few words."""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from reports.results.facts import look_up, object_in, text_in
from reports.results.results import Outcome
from reports.results.table import Table
from reports.table.cost import device_share, devices

TOOL = "transformer-ablations"


def made_with(table: Table) -> Iterator[str]:
    """The devices, packages and code that trained the rows; each kind once, in the rows' order."""
    trained = [o for row in table.rows for o in row.outcomes if o.record is not None]
    for opening, of in (("Trained on", device), ("Software:", software), ("Code:", code)):
        found = [text for text in dict.fromkeys(of(outcome) for outcome in trained) if text]
        if found:
            yield f"{opening} {'; '.join(found)}."


def device(outcome: Outcome) -> str:
    """ "8 × NVIDIA H100, bf16", "1/3 of NVIDIA A100, fp32", "AMD EPYC (1 thread), fp32"."""
    name, share = text_in(outcome.record, "device"), device_share(outcome)
    count = f"{devices(outcome)} × " if devices(outcome) > 1 else ""
    of = f"{Fraction(share).limit_denominator(1000)} of " if share < 1 else ""
    return _joined(name and f"{count}{of}{name}", text_in(outcome.record, "precision"))


def software(outcome: Outcome) -> str:
    """Versions, of training and of scoring; where a package had several, all of them."""
    records = [outcome.record, *(scored.record for scored in outcome.scored.values())]
    found: dict[str, dict[str, None]] = {}
    for record in records:
        for name, version in object_in(record, "versions").items():
            found.setdefault(name, {})[str(version)] = None
    return ", ".join(f"{name} {' and '.join(found[name])}" for name in sorted(found, key=_python_first))


def _python_first(name: str) -> tuple[bool, str]:
    return name != "python", name


def code(outcome: Outcome) -> str:
    """The revision that trained, with its digest; of a user's own trainer also the program that ran it."""
    digest, tool = text_in(outcome.record, "code_digest"), object_in(outcome.record, "tool")
    ours = outcome.run.config.setting_roles.frozen_defaults  # our own code trained, not the user's
    if ours and not tool:  # older stores
        tool = object_in(outcome.record, "revision")
    program = f"{TOOL} {text_in(tool, 'version')}".rstrip()
    if ours:
        return _joined(program, _commit(tool, kept=True)) + (f" ({digest})" if digest else "")
    if not tool:  # older stores took this program's commit for the trainer's
        return digest
    theirs = object_in(outcome.record, "revision")
    place = _joined(text_in(theirs, "repository"), _commit(theirs, kept=True)) or "in no repository"
    return f"{place} ({digest}), run by {_joined(program, _commit(tool, kept=False))}"


def _joined(*texts: str) -> str:
    return ", ".join(filter(None, texts))


def _commit(revision: Mapping[str, Any], *, kept: bool) -> str:
    commit = text_in(revision, "commit")
    changed = (
        f" with uncommitted changes{' (kept beside the run)' if kept else ''}" if look_up(revision, "dirty") else ""
    )
    return f"commit {commit[:10]}{changed}" if commit else ""
