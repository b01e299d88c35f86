"""Notes on what trained the rows: devices, packages and code, each in a few words."""

from collections.abc import Iterator
from fractions import Fraction

from experiments.store.results import Revision
from reports.results.results import Outcome
from reports.results.table import Table
from reports.table import cost

TOOL = "transformer-ablations"


def made_with(table: Table) -> Iterator[str]:
    """The devices, packages and code that trained the rows; each kind once, in the rows' order."""
    every = [o for row in table.rows for o in row.outcomes] + list(table.members)
    done = [o for o in every if o.record is not None and not o.run.imported]
    trained = [o for o in done if not o.run.members]  # an ensemble is only decoded
    for opening, of, made in (("Trained on", device, trained), ("Software:", software, done), ("Code:", code, trained)):
        found = [text for text in dict.fromkeys(of(outcome) for outcome in made) if text]
        if found:
            yield f"{opening} {'; '.join(found)}."


def device(outcome: Outcome) -> str:
    """ "8 × NVIDIA H100, bf16", "1/3 of NVIDIA A100, fp32", "AMD EPYC (1 thread), fp32"."""
    name, share = cost.device(outcome), cost.device_share(outcome)
    count = f"{cost.devices(outcome)} × " if cost.devices(outcome) > 1 else ""
    of = f"{Fraction(share).limit_denominator(1000)} of " if share < 1 else ""
    return _joined(name and f"{count}{of}{name}", outcome.record.precision if outcome.record else "")


def software(outcome: Outcome) -> str:
    """Versions, of training and of scoring; where a package had several, all of them."""
    found: dict[str, dict[str, None]] = {}
    for facts in (outcome.record, *(scored.record for scored in outcome.scored.values())):
        for name, version in facts.versions.items() if facts else ():
            found.setdefault(name, {})[version] = None
    return ", ".join(f"{name} {' and '.join(found[name])}" for name in sorted(found, key=_python_first))


def _python_first(name: str) -> tuple[bool, str]:
    return name != "python", name


def code(outcome: Outcome) -> str:
    """The revision that trained, with its digest; of a user's own trainer also the program that ran it."""
    facts = outcome.record
    if facts is None:
        return ""
    ours = outcome.run.config.setting_roles.frozen_defaults  # our own code trained, not the user's
    tool, digest = facts.tool, facts.code_digest or ""
    program = f"{TOOL} {tool.version or ''}".rstrip()
    if ours:
        return _joined(program, _commit(tool, kept=True)) + (f" ({digest})" if digest else "")
    theirs = facts.revision
    place = _joined(theirs.repository, _commit(theirs, kept=True)) or "in no repository"
    return f"{place} ({digest}), run by {_joined(program, _commit(tool, kept=False))}"


def _joined(*texts: str | None) -> str:
    return ", ".join(filter(None, texts))


def _commit(revision: Revision, *, kept: bool) -> str:
    if not revision.commit:
        return ""
    changed = f" with uncommitted changes{' (kept beside the run)' if kept else ''}" if revision.dirty else ""
    return f"commit {revision.commit[:10]}{changed}"
