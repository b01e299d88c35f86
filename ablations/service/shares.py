"""Users of one store: what each has used, which quotas they have agreed upon, and whose runs wait for one."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from experiments.errors import UserError
from experiments.jobs.queue.queue import Queue
from experiments.jobs.queue.shares import Shares, Use, check_user, keep_shares, load_shares, login
from experiments.jobs.queue.states import State
from experiments.store.layout import Store


@dataclass(frozen=True)
class UserShare:
    """A user of a store."""

    user: str
    running: int
    waiting: int
    used_h: float  # device-hours, decayed
    quota_h: float | None
    weight: float
    waits: str  # why the runs wait: the quota is used up; else ""


def user_name(given: str | None) -> str:
    """The user of --user; who is logged in, if that is not given. Raises UserError."""
    return login() if given is None else check_user(given)


def users_of(store: Store) -> tuple[Shares, list[UserShare]]:
    """What is agreed in a store, and its users by name."""
    shares = load_shares(store)
    with Queue(store.queue_db, create=False) as queue:
        used, over = queue.use(shares), queue.over_quota(shares)
        counts = queue.counts_by_user()
    names = sorted({*used, *shares.quotas, *shares.weights, *(user for user, _ in counts)})
    return shares, [
        UserShare(
            user,
            counts.get((user, State.RUNNING), 0),
            counts.get((user, State.WAITING), 0),
            used.get(user, Use()).used_s / 3600,
            shares.quotas.get(user),
            shares.weights.get(user, 1.0),
            over.get(user, ""),
        )
        for user in names
    ]


def agree(store: Store, quotas: Iterable[str], half_life_h: float | None, weights: Iterable[str] = ()) -> None:
    """Change quotas (USER=HOURS, USER=none), weights and the half-life; the coordinator is told. Raises UserError."""
    shares = load_shares(store)
    shares = replace(
        shares,
        quotas=_changed(shares.quotas, quotas, "--quota", "HOURS", "for no quota", "device-hours"),
        weights=_changed(shares.weights, weights, "--weight", "WEIGHT", "for 1", ""),
    )
    if half_life_h is not None:
        shares = replace(shares, half_life_h=half_life_h)
    keep_shares(store, shares)
    with Queue(store.queue_db) as queue:
        queue.agree("; ".join(agreed_in_words(shares)))


def _changed(
    numbers: Mapping[str, float], given: Iterable[str], option: str, value: str, none: str, unit: str
) -> dict[str, float]:
    """The numbers by user with those of an option; USER=none removes one."""
    changed = dict(numbers)
    for text in given:
        user, equals, said = text.partition("=")
        if not equals:
            raise UserError(f"{option} {text}: write USER={value}, or USER=none {none}.")
        if said == "none":
            changed.pop(user, None)
            continue
        try:
            changed[user] = float(said)
        except ValueError:
            raise UserError(f"{option} {text}: {said!r} is no number{unit and f' of {unit}'}.") from None
    return changed


def agreed_in_words(shares: Shares) -> list[str]:
    quotas = [f"{user} {hours:g} device-hours" for user, hours in sorted(shares.quotas.items())]
    half = f"what was used counts half after {shares.half_life_h:g} hours"
    weights = [f"{user} {weight:g}" for user, weight in sorted(shares.weights.items())]
    agreed = {"quotas": quotas, "weights, 1 if not named": weights}
    return [half, *(f"{what}: {', '.join(of)}" for what, of in agreed.items() if of)]


def over_quota(store: Store) -> list[str]:
    """Why runs wait for their user's quota, one line per user."""
    with Queue(store.queue_db, create=False) as queue:
        return list(queue.over_quota(load_shares(store)).values())
