"""Users of one store: what each has used, which quotas they have agreed upon, and whose runs wait for one."""

from collections.abc import Iterable
from dataclasses import dataclass

from experiments.errors import UserError
from experiments.jobs.queue.queue import Queue
from experiments.jobs.queue.shares import DAYS, Shares, Use, check_user, keep_shares, load_shares, login
from experiments.jobs.queue.states import State
from experiments.store.layout import Store


@dataclass(frozen=True)
class UserShare:
    """A user of a store."""

    user: str
    running: int
    waiting: int
    used_h: float  # device-hours of the last DAYS days
    quota_h: float | None
    waits: str  # why the runs wait: the quota is used up; else ""


def user_name(given: str | None) -> str:
    """The user of --user; who is logged in, if that is not given. Raises UserError."""
    return login() if given is None else check_user(given)


def users_of(store: Store) -> tuple[Shares, list[UserShare]]:
    """What is agreed in a store, and its users by name."""
    shares = load_shares(store)
    with Queue(store.queue_db, create=False) as queue:
        used, over = queue.use(), queue.over_quota(shares)
        counts = queue.counts_by_user()
    names = sorted({*used, *shares.quotas, *(user for user, _ in counts)})
    return shares, [
        UserShare(
            user,
            counts.get((user, State.RUNNING), 0),
            counts.get((user, State.WAITING), 0),
            used.get(user, Use()).used_s / 3600,
            shares.quotas.get(user),
            over.get(user, ""),
        )
        for user in names
    ]


def agree(store: Store, quotas: Iterable[str]) -> None:
    """Change quotas (USER=HOURS, USER=none); the coordinator is told. Raises UserError."""
    changed = dict(load_shares(store).quotas)
    for text in quotas:
        user, equals, said = text.partition("=")
        if not equals:
            raise UserError(f"--quota {text}: write USER=HOURS, or USER=none for no quota.")
        if said == "none":
            changed.pop(user, None)
            continue
        try:
            changed[user] = float(said)
        except ValueError:
            raise UserError(f"--quota {text}: {said!r} is no number of device-hours.") from None
    shares = Shares(changed)
    keep_shares(store, shares)
    with Queue(store.queue_db) as queue:
        queue.agree(agreed_in_words(shares))


def agreed_in_words(shares: Shares) -> str:
    quotas = ", ".join(f"{user} {hours:g}" for user, hours in sorted(shares.quotas.items()))
    return f"device-hours of the last {DAYS} days; quotas: {quotas or 'none'}"


def over_quota(store: Store) -> list[str]:
    """Why runs wait for their user's quota, one line per user."""
    with Queue(store.queue_db, create=False) as queue:
        return list(queue.over_quota(load_shares(store)).values())
