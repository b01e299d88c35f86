"""Read a bundle of unknown origin. Limits are enforced, the contents are checked, and no code of the bundle is run."""

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
from experiments.store.record_base import LARGEST, Amount, Count, Word, Words
from experiments.tasks.columns import Column
from experiments.tasks.load import is_built_in, load_task
from reports.results.accounting import FILE, Spending

VERSION = 3
SPENT = "spent"  # key of the total cost of all attempts (reports/results/accounting.py)


def column_to_json(column: Column) -> dict[str, Any]:
    """Return a column as JSON, without the function that computes its score from counts.

    Readers use the functions of built-in tasks and run no other code.
    """
    return {field.name: getattr(column, field.name) for field in fields(column) if field.name != "counts"}


def keep_spent(head: Mapping[str, Any], folder: Path) -> None:
    """Write the total cost of all attempts to the folder of an opened bundle, where reports read it."""
    write_json(folder / FILE, Spending.model_validate(head[SPENT]).model_dump(mode="json"))


def columns_of(described: Sequence[Mapping[str, Any]], study: Study) -> tuple[Column, ...]:
    """Return the columns of a bundle.

    The columns of a built-in task follow from the study; the description in the head is not used.
    """
    if is_built_in(study.task):
        task = load_task(study.task)
        task = task.with_columns([m.column for m in study.metrics]) if study.metrics else task
        return tuple(task.columns)
    return tuple(Column(**each) for each in described)


# A bundle of unknown origin may contain anything. Other fields are allowed and not checked. The types of records are in
# experiments/store/results.py.


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
    members: Required[list[_Run]]  # members of ensembles, and parent runs


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
    """A bundle that was read and checked. `store` contains its files."""

    plan: Plan
    columns: tuple[Column, ...]
    asked: tuple[str, ...]  # command-line arguments that select the table
    store: Store
    checked: Checked


def read_bundle(path: Path, folder: Path) -> Bundle:
    """Unpack a bundle into `folder`, which must be empty, and check it.

    Raises UserError for a damaged bundle and for a file that is not a bundle.
    """
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
    """Raised for a file that is not a bundle, or is damaged. The message is the reason."""


def read_stream(file: IO[bytes], folder: Path, *, weights: bool = True) -> Bundle:
    """Unpack an open file into `folder`, which must be empty, and check it. Raises UserError with the reason.

    weights: if False, the files of the trainers' folders `final` are checked but not written.
    """
    try:
        return _read(Packed(file), folder, weights)
    except gzip.BadGzipFile as error:
        raise _refused(str(error)) from None
    except ValidationError as error:  # raised by pydantic; the first error is enough
        first = error.errors(include_url=False, include_input=False)[0]
        raise _refused(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except (tarfile.TarError, zlib.error, EOFError, ValueError) as error:
        raise _refused(str(error)) from None
    except (LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, MemoryError) as error:
        raise _refused(f"{type(error).__name__}: {error}") from None  # a value has an unexpected type


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
    """Raise ValueError for files of runs that are not in the plan, because they would be imported unchecked."""
    evaluations: dict[str, set[str]] = {}
    for run in plan.trainings:  # several rows may share a training
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
