"""Guarded studies of a store, as its ledger has them: what is sealed, what was unsealed, what trainers may not see.

A study's [guard] enters the ledger when its first runs are queued ("guard"), so that an edit of the study file cannot
loosen it. `ablations unseal` adds the evaluations that may be made from then on ("unseal"). Of a guarded store the
ledger has the digest of each record that the coordinator takes from an attempt ("result"). Paths are relative to the
store. Imports no torch.
"""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from experiments.errors import UserError
from experiments.processes.wall import Wall
from experiments.records import TRAINING
from experiments.store import ledger
from experiments.store.checksummed import describe_file
from experiments.store.layout import Store
from experiments.store.results import RESULT_FILE

GUARD, UNSEAL, RESULT = "guard", "unseal", "result"
OUR_CODE = Path(__file__).parents[2]
PACKAGES = ("ablations", "experiments", "model", "reports")
Guard = Mapping[str, Any]  # a line of the ledger: study, task, folder, sealed, settings, files, protected, contents


class Asked(NamedTuple):
    """An evaluation, as plans and jobs have it."""

    set: str
    inputs: Mapping[str, str]
    eval_id: str


class Seals:
    """Reads the ledger once."""

    def __init__(self, store: Store) -> None:
        self._store, lines = store, ledger.readable(store, GUARD, UNSEAL, RESULT)
        self.guards: dict[str, Guard] = {line["study"]: line for line in lines if line["what"] == GUARD}  # the last
        self.unsealed = [line for line in lines if line["what"] == UNSEAL]
        self._opened = {eval_id for line in self.unsealed for eval_id in line["evaluations"]}
        self._results = {digest for line in lines if line["what"] == RESULT for digest in line["records"].values()}

    def names(self, studies: Collection[str], task: str, folder: Path | str | None) -> set[str]:
        """The sealed sets of studies; also of any study on the same trainer in the same folder."""
        place = relative(self._store, folder)
        there = [g for g in self.guards.values() if g["study"] in studies or (g["task"], g["folder"]) == (task, place)]
        return {name for guard in there if guard["study"] in studies or place for name in guard["sealed"]}

    def closed(self, names: Collection[str], asked: Asked) -> bool:
        """Whether an evaluation is sealed: by its set's name, or by the set's content, in whatever study."""
        content = asked.inputs.get("set")
        named = asked.set in names or ("test" in names and content is not None and asked.set != "dev")
        known = content is not None and any(content in guard["contents"] for guard in self.guards.values())
        return (named or known) and asked.eval_id not in self._opened

    def record(self, guard: Guard) -> None:
        """Add a study's guard to the ledger if it says more than its last line. Raises UserError (see `check`)."""
        self.check(guard)
        before = self.guards.get(guard["study"], {})
        now = {**guard, "contents": sorted({*guard["contents"], *before.get("contents", ())})}
        if any(before.get(name) != value for name, value in now.items()):
            ledger.append(self._store, GUARD, **now)

    def check(self, guard: Guard) -> None:
        """Raises UserError for a guard that is looser than the ledger's."""
        before = self.guards.get(guard["study"])
        if before is None:
            return
        loose = [name for name in ("sealed", "files", "protected") if not {*before[name]} <= {*guard[name]}]
        wide = [one for one in before["settings"] if not {*"?["} & {*one}]  # in these a pattern can lie
        tight = [one in before["settings"] or any(fnmatchcase(one, each) for each in wide) for one in guard["settings"]]
        if before["settings"] and not (tight and all(tight)):
            loose.append("settings")
        if loose:
            raise UserError(
                f"The [guard] of {guard['study']} is looser in {', '.join(loose)} than line {before['n']} of the "
                "store's ledger has it, and in a store a guard can only become tighter. Restore it; its owner opens "
                "sealed sets with `ablations unseal`."
            )

    def wall(self, writable: Iterable[Path], asked: Iterable[Asked]) -> Wall:
        """The wall around a trainer's processes.

        A trainer of which an unsealed evaluation is asked sees the sealed files: it computes that score.
        """
        home, opened = self._store.root, any(one.eval_id in self._opened for one in asked)
        kept = [home / path for guard in self.guards.values() for path in guard["protected"]]
        hidden = [home / path for guard in self.guards.values() for path in guard["files"] if not opened]
        return Wall.around([home, self._store.state_dir, *(OUR_CODE / n for n in PACKAGES), *kept], writable, hidden)

    def published(self, run_id: str, parts: Sequence[str]) -> None:
        """Add the digests of records that were moved into place: of the training, and of evaluations."""
        if self.guards and parts:
            records = {part: describe_file(self._record(run_id, part))["sha256"] for part in parts}
            ledger.append(self._store, RESULT, run_id=run_id, records=records)

    def unknown(self, run_id: str, parts: Iterable[str]) -> list[str]:
        """The records of a run that no attempt made, or that were changed since the coordinator took them."""
        files = [self._record(run_id, part) for part in parts] if self.guards else []
        unknown = [file for file in files if file.exists() and describe_file(file)["sha256"] not in self._results]
        return [str(file.relative_to(self._store.root)) for file in unknown]

    def _record(self, run_id: str, part: str) -> Path:
        store = self._store
        return (store.run_folder(run_id) if part == TRAINING else store.evaluation_folder(run_id, part)) / RESULT_FILE


def relative(store: Store, path: Path | str | None) -> str:
    """A path as seen from the store, so that both can be moved together; "" for none."""
    return os.path.relpath(Path(path).absolute(), store.root) if path else ""
