"""Read a bundle of unknown origin: within limits, checked against its manifest and itself, without running its code."""

import gzip
import json
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

from ablations.planning.plan_file import plan_from_json
from ablations.planning.planned import Plan
from experiments.errors import UserError
from experiments.store.checksummed import without_checksum
from experiments.store.layout import Store
from experiments.tasks.columns import Column
from reports.trust.bundle_agreement import Checked, check
from reports.trust.bundle_archive import HEAD, NAME, STATEMENT, Archive, Crate, ForeignZipError, Packed
from reports.trust.bundle_crate import check_described, facts_of
from reports.trust.bundle_head import VERSION, check_head, columns_of, keep_spent
from reports.trust.statement import Statement, read_statement

_ZIP = b"PK"  # a zip begins so, a gzip never


@dataclass(frozen=True)
class Bundle:
    """A bundle that was read and checked; its files lie in `store`."""

    plan: Plan
    columns: tuple[Column, ...]
    asked: tuple[str, ...]  # the words that select the table
    store: Store
    checked: Checked
    statement: Statement | None = None  # a crate's


def read_bundle(path: Path, folder: Path) -> Bundle:
    """Unpack into `folder`, which must be empty, and check. Raises UserError for damage and for other files."""
    try:
        with path.open("rb") as file:
            return _read(_opened(file), folder)
    except OSError as error:
        if isinstance(error, gzip.BadGzipFile):
            raise _refused(path, str(error)) from None
        raise UserError(f"{path} cannot be read as a bundle: {error.strerror}.") from None
    except ForeignZipError as error:
        raise UserError(f"{path} {error}.") from None
    except UserError as error:
        raise UserError(f"{path}: {error} Ask its maker for the bundle again.") from None
    except ValidationError as error:  # of a pydantic type: the first error is enough
        first = error.errors(include_url=False, include_input=False)[0]
        raise _refused(path, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError) as error:
        raise _refused(path, str(error)) from None
    except (LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, MemoryError) as error:
        raise _refused(path, f"{type(error).__name__}: {error}") from None  # something in it has another type


def _refused(path: Path, reason: str) -> UserError:
    first = " ".join(reason.split())[:300]
    return UserError(f"{path} is not a bundle of `ablations bundle`, or it is damaged ({first}).")


def _opened(file: IO[bytes]) -> Archive:
    """The file as what its first bytes say that it is."""
    begin = file.read(len(_ZIP))
    file.seek(0)
    return Crate(file) if begin == _ZIP else Packed(file)


def _read(packed: Archive, folder: Path) -> Bundle:
    head = without_checksum(packed.head)
    if head.get("bundle") != VERSION:
        raise UserError(f"it is a bundle of version {head.get('bundle')}; this program reads {VERSION}.")
    check_head(head)
    plan = plan_from_json(head["plan"])
    _only_the_plans(head["files"], plan)
    packed.unpack(head["files"], folder)
    keep_spent(head, folder)
    columns = columns_of(head["columns"], plan.study)
    store = Store.open(folder, create=False)
    checked = check(plan, columns, store, head["names_can_be_checked"])
    bundle = Bundle(plan, columns, tuple(head["asked"]), store, checked)
    if not isinstance(packed, Crate):
        return bundle
    check_described(packed.metadata, {HEAD: facts_of(packed.head_text), **head["files"]})
    if STATEMENT not in head["files"]:
        raise ValueError(f"it has no {STATEMENT}")
    return replace(bundle, statement=read_statement(json.loads((folder / STATEMENT).read_bytes()), plan))


def _only_the_plans(manifest: Mapping[str, Any], plan: Plan) -> None:
    """Raises ValueError for files of runs that the plan does not name, because they would be imported unchecked."""
    evaluations: dict[str, set[str]] = {}
    for run in plan.trainings:  # two rows may share a training
        evaluations.setdefault(run.run_id, set()).update(run.eval_ids)
    attempts: dict[str, str] = {}
    for name in manifest:
        found = NAME.fullmatch(name)
        if found is None:
            raise ValueError(f"{name[:80]!r} has no place in a bundle")
        run_id, attempt, eval_id = found["run_id"], found["attempt"], found["eval_id"]
        known = run_id is None or run_id in evaluations
        if not known or (eval_id and eval_id not in evaluations[run_id]):
            raise ValueError(f"{name} is of no run in its plan")
        if attempt and attempts.setdefault(run_id, attempt) != attempt:
            raise ValueError(f"{name} is of a second attempt")
