"""Read a bundle of unknown origin: within limits, checked against its manifest and itself, without running its code."""

import gzip
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Annotated, Any, Literal, Required

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from ablations.extras.bundles.agreement import Checked, check
from ablations.extras.bundles.archive import NAME, Packed
from ablations.extras.bundles.plan_file import plan_from_json
from ablations.planning.plan import Plan
from ablations.study.study import Study
from experiments.errors import UserError
from experiments.store.checksummed import without_checksum, write_json
from experiments.store.layout import Store
from experiments.store.results import LARGEST, Amount, Count, Word, Words
from experiments.tasks.columns import Column
from experiments.tasks.load import is_built_in, load_task
from reports.results.accounting import FILE, Spending

# --- The head of a bundle (bundle.json): its version, its plan and its columns, and the types of what is read of it


VERSION = 3
SPENT = "spent"  # what the maker's store says of all attempts (reports/results/accounting.py)


def column_to_json(column: Column) -> dict[str, Any]:
    """A column without the function of its counts: readers take that of a built-in task, and run no code of others."""
    return {field.name: getattr(column, field.name) for field in fields(column) if field.name != "counts"}


def keep_spent(head: Mapping[str, Any], folder: Path) -> None:
    """Write what the head says of all attempts into the folder of an opened bundle, where reports read it."""
    write_json(folder / FILE, Spending.model_validate(head[SPENT]).model_dump(mode="json"))


def columns_of(described: Sequence[Mapping[str, Any]], study: Study) -> tuple[Column, ...]:
    """The bundle's columns. Of a built-in task they follow from the study: what a head says decides nothing there."""
    if is_built_in(study.task):
        task = load_task(study.task)
        task = task.with_columns([m.column for m in study.metrics]) if study.metrics else task
        return tuple(task.columns)
    return tuple(Column(**each) for each in described)


# --- Types of a head, as far as a report reads it; those of its records are in experiments/store/results.py
# A bundle from elsewhere may contain anything. Fields that are not named here are allowed and not checked.


Identity = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]


class _Record(TypedDict, total=False):
    __pydantic_config__ = ConfigDict(strict=True, extra="allow")  # type: ignore[misc]


class _Column(_Record, total=False):
    key: Required[Word]
    set: Required[Word]
    metric: Required[Word]
    header: Required[Word]
    better: Required[Literal["lower", "higher", ""]]
    digits: Required[Annotated[int, Field(ge=0, le=12)]]
    paper: Required[Word]
    about: Required[Word]
    logarithmic: Required[bool]
    per_piece: Required[bool]


class _Row(_Record, total=False):
    key: Required[Word]
    config: Required[dict[str, Any]]
    seeds: Required[Annotated[list[Count], Field(min_length=1)]]
    overrides: Required[dict[Word, Any]]


class _Evaluation(_Record, total=False):
    eval_id: Required[Identity]
    set: Required[Word]
    settings: Required[dict[Word, Any]]
    inputs: Required[Words]


class _Run(_Record, total=False):
    row: Required[Word]
    seed: Required[Count]
    run_id: Required[Identity]
    num_params: Required[Annotated[int, Field(ge=1, le=LARGEST)] | None]
    cost: Required[Amount]
    state: Required[Literal["finished", "stale"]]
    stale: Required[list[Word]]
    inputs: Required[Words]
    evaluations: Required[list[_Evaluation]]


class _Plan(_Record, total=False):
    settings: Required[dict[str, Any]]
    study: Required[dict[str, Any]]
    profile: Required[Word]
    notes: Required[list[Word]]
    paper_keys: Required[list[Word]]
    rows: Required[Annotated[list[_Row], Field(min_length=1)]]
    runs: Required[Annotated[list[_Run], Field(min_length=1)]]
    members: Required[list[_Run]]  # of ensembles


class _File(_Record, total=False):
    bytes: Required[Count]
    sha256: Required[Word]


class _Head(_Record, total=False):
    names_can_be_checked: Required[bool]
    asked: Required[list[Word]]
    spent: Required[dict[str, Any]]
    columns: Required[list[_Column]]
    plan: Required[_Plan]
    files: Required[dict[str, _File]]


_HEAD: TypeAdapter[Any] = TypeAdapter(_Head)


@dataclass(frozen=True)
class Bundle:
    """A bundle that was read and checked; its files lie in `store`."""

    plan: Plan
    columns: tuple[Column, ...]
    asked: tuple[str, ...]  # the words that select the table
    store: Store
    checked: Checked


def read_bundle(path: Path, folder: Path) -> Bundle:
    """Unpack into `folder`, which must be empty, and check. Raises UserError for damage and for other files."""
    if path.exists() and not (path.is_file() or path.is_dir()):  # reading a pipe would block
        raise UserError(f"{path} is not a regular file.")
    try:
        with path.open("rb") as file:
            return read_stream(file, folder)
    except OSError as error:
        raise UserError(f"{path} cannot be read as a bundle: {error.strerror}.") from None
    except NoBundleError as error:
        raise UserError(f"{path} is not a bundle of `ablations bundle`, or it is damaged ({error}).") from None
    except UserError as error:
        raise UserError(f"{path}: {error} Ask its author for the bundle again.") from None


class NoBundleError(UserError):
    """A file that is no bundle, or a damaged one: the reason."""


def read_stream(file: IO[bytes], folder: Path, *, weights: bool = True) -> Bundle:
    """Unpack an open file into `folder`, which must be empty, and check. Raises UserError with the reason.

    weights: False to check the files of the trainers' folders `final` without writing them.
    """
    try:
        return _read(Packed(file), folder, weights)
    except gzip.BadGzipFile as error:
        raise _refused(str(error)) from None
    except ValidationError as error:  # of a pydantic type: the first error is enough
        first = error.errors(include_url=False, include_input=False)[0]
        raise _refused(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except (tarfile.TarError, zlib.error, EOFError, ValueError) as error:
        raise _refused(str(error)) from None
    except (LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, MemoryError) as error:
        raise _refused(f"{type(error).__name__}: {error}") from None  # something in it has another type


def _refused(reason: str) -> NoBundleError:
    return NoBundleError(" ".join(reason.split())[:300])


def _read(packed: Packed, folder: Path, weights: bool) -> Bundle:
    head = without_checksum(packed.head)
    if head.get("bundle") != VERSION:
        raise UserError(f"it is a bundle of version {head.get('bundle')}; this program reads {VERSION}.")
    _HEAD.validate_python(head)
    plan = plan_from_json(head["plan"])
    _only_the_plans(head["files"], plan)
    packed.unpack(head["files"], folder, weights=weights)
    keep_spent(head, folder)
    columns = columns_of(head["columns"], plan.study)
    store = Store.open(folder, create=False)
    checked = check(plan, columns, store, head["names_can_be_checked"])
    return Bundle(plan, columns, tuple(head["asked"]), store, checked)


def _only_the_plans(manifest: Mapping[str, Any], plan: Plan) -> None:
    """Raises ValueError for files of runs that the plan does not name, because they would be imported unchecked."""
    evaluations: dict[str, set[str]] = {}
    for run in plan.trainings:  # two rows may share a training
        evaluations.setdefault(run.run_id, set()).update(run.eval_ids)
    attempts: dict[str, str] = {}
    for name in manifest:
        found = NAME.fullmatch(name)
        if found is None:
            raise ValueError(f"{name[:80]!r} cannot be in a bundle")
        run_id, attempt, eval_id = found["run_id"], found["attempt"], found["eval_id"]
        known = run_id is None or run_id in evaluations
        if not known or (eval_id and eval_id not in evaluations[run_id]):
            raise ValueError(f"{name} is of no run in its plan")
        if attempt and attempts.setdefault(run_id, attempt) != attempt:
            raise ValueError(f"{name} is of a second attempt")
