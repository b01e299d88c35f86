"""The options with which all commands select from a study: profile, corpus, rows, seeds, overrides."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ablations.study.parts import MOST_SEEDS
from ablations.study.study import Study
from ablations.study.variation import Variation
from experiments.dotted import parse_set
from experiments.errors import UserError
from experiments.messages import suggestion

CORPUS = "data.corpus"  # the setting that --corpus sets
ROW, GROUP = "row", "group"  # prefixes of a name in --rows, as in row:KEY and group:GROUP


@dataclass(frozen=True)
class Selection:
    """A selection from a study. The default is every row in the default profile, with the study's number of seeds."""

    profile: str | None = None
    corpus: str | None = None  # "builtin" or a folder
    rows: tuple[str, ...] = ()  # keys and groups; () for all rows
    seeds: int | None = None  # number of seeds of every row, instead of the study's number
    overrides: Mapping[str, Any] = field(default_factory=dict)  # dotted name → value

    def __post_init__(self) -> None:
        if self.seeds is not None and self.seeds > MOST_SEEDS:
            raise UserError(f"--seeds {self.seeds}: it must be at most {MOST_SEEDS}.")
        if self.seeds is not None and self.seeds < 1:
            raise UserError(f"--seeds {self.seeds}: it must be at least 1, because seeds are numbered 1..N.")
        if self.corpus is not None and self.overrides.get(CORPUS, self.corpus) != self.corpus:
            raise UserError(
                f"--corpus {self.corpus} and --set {CORPUS}={self.overrides[CORPUS]} name different corpora. Keep one."
            )

    @property
    def forced(self) -> dict[str, tuple[Any, str]]:
        """Settings that the command line sets in every row, each with its value and its option."""
        settings = {name: (value, "--set") for name, value in self.overrides.items()}
        if self.corpus is not None:
            settings[CORPUS] = (self.corpus, "--corpus")
        return settings


def selection(
    profile: str | None = None,
    corpus: str | None = None,
    rows: str | None = None,
    seeds: int | None = None,
    sets: Iterable[str] = (),
) -> Selection:
    """Parse the options `--rows KEY,GROUP`, `--set key=value` … into a Selection.

    Raises UserError for an option with an invalid value.
    """
    keys = () if rows is None else tuple(part.strip() for part in rows.split(","))
    if rows is not None and not all(keys):
        raise UserError(f'--rows "{rows}" names an empty row; separate keys or groups with commas: base,A-h1.')
    return Selection(profile, corpus, keys, seeds, parse_set(sets))


def only_row(study: Study, key: str) -> str:
    """Return the name that selects only this row in `--rows`: row:KEY if a group has the same name, else KEY."""
    return f"{ROW}:{key}" if any(row.group == key for row in study.variations) else key


def select_rows(study: Study, names: Iterable[str]) -> list[Variation]:
    """Return the rows whose key or group is in `names`, in the order of the study. Return all rows if `names` is empty.

    Raises UserError for an unknown or ambiguous name.
    """
    wanted = [_named(study, name) for name in names]
    return [row for row in study.variations if not wanted or any(row.key in keys for keys in wanted)]


def _named(study: Study, name: str) -> set[str]:
    """Return the keys of the rows that one name selects. A name is KEY, GROUP, row:KEY or group:GROUP."""
    kind, _, named = name.partition(":") if name.startswith((f"{ROW}:", f"{GROUP}:")) else ("", "", name)
    row = {row.key for row in study.variations if row.key == named and kind != GROUP}
    group = {row.key for row in study.variations if row.group == named and named and kind != ROW}
    if row and group - row:
        raise UserError(
            f"{study.origin}: the study {study.name} has a row and a group {name!r} (the group's rows: "
            f"{', '.join(sorted(group))}). Write {ROW}:{name} or {GROUP}:{name} in --rows."
        )
    if not row | group:
        options = list(dict.fromkeys([row.key for row in study.variations] + [row.group for row in study.variations]))
        raise UserError(
            f"{study.origin}: the study {study.name} has no {kind or 'row or group'} {named!r}. "
            f"{suggestion(named, [option for option in options if option], 'rows and groups')}"
        )
    return row | group


def row_seeds(study: Study, row: Variation, chosen: Selection) -> list[int]:
    """Return the seeds 1..N plus the row's offset. N comes from --seeds, else from the row, else from the study."""
    count = chosen.seeds or row.seeds or study.seeds
    return [row.seed_offset + number for number in range(1, count + 1)]
