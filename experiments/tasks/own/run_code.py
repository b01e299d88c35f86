"""The code of a run: the copy of its tree, the links to other files, and the reports on its imports.

If a study has rows that change code, every row has a tree, including base. `TrainerSpec.tree` is git's digest of all
files of the code (experiments/store/trees.py). The tree identifies the code that trains the run, but it is not part of
run_id. The study's `links` name files that the run needs and that git does not track.
"""

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import experiments
import experiments.client.watch
from experiments.attempt_context import AttemptContext
from experiments.errors import UserError
from experiments.run_spec import TrainerSpec
from experiments.store.durable import clear, make_folder, parts_below
from experiments.store.repository import top_of
from experiments.store.tree_copy import altered, remove_copy, unpack

COPY, WATCHED = "code", "watch"  # folders in an attempt's folder: the copy of the tree, and the watcher's reports
NO_TREE = "0" * 24  # prefix of the tree of a row whose code cannot be made; such a row cannot run
MODULES, ELSEWHERE, PACKAGES = "modules.txt", "imported-elsewhere.txt", "packages.txt"  # the watcher's reports
WATCH = str(Path(experiments.client.watch.__file__).parent)  # the folder of the watcher
HOME = Path(experiments.__file__).parents[1]  # the folder of this program's packages
_ASKED = "ABLATIONS_WATCH"  # environment variable that starts and configures the watcher


def check_links(home: Path, links: Sequence[str]) -> None:
    """Raise UserError if an entry of `links` does not exist in the study's folder `home`."""
    if missing := [name for name in links if not (home / name).exists()]:
        raise UserError(
            f"`links` of the study names {missing[0]}, which does not exist in {home}. Correct or remove it."
        )


def link_in(folder: Path, home: Path, links: Sequence[str]) -> Path:
    """Create links in `folder` to entries of the study's folder `home`. Return `folder`.

    The trainer runs in `folder` and writes other files there. Runs therefore do not overwrite each other's files, and a
    resumed run finds its files. If a file has replaced a link in an earlier attempt, the link replaces this file again.

    Raises UserError if an entry does not exist or is not inside the study's folder.
    """
    check_links(home, links)
    make_folder(folder.parent, folder.name)
    for name in links:
        try:
            *parents, last = parts_below(name.rstrip("/"))
        except ValueError:
            raise UserError(f'links: "{name}" is not in the study\'s folder.') from None
        clear(make_folder(folder, "/".join(parents)) / last).symlink_to((home / name).resolve())
    return folder


def imported(context: AttemptContext) -> dict[str, Any]:
    """Return {"versions": …} for the packages that a run's Python processes imported; {} without a report on them."""
    lines = _report(context.folder / WATCHED / PACKAGES)
    if lines is None:
        return {}
    found: dict[str, list[str]] = {}
    for name, _, version in sorted({line.partition(" ") for line in lines}):
        found.setdefault(name, []).append(version)
    return {"versions": {name: ", ".join(several) for name, several in found.items()}}


def environment() -> dict[str, str]:
    """Return the environment variables of a trainer's process.

    The result contains the variables of this process, but PYTHONPATH does not contain this program, PYTHONSAFEPATH is
    removed, and PYTHONUNBUFFERED is set. Inside the context `watched`, PYTHONPATH begins with the folder of the
    watcher.
    """
    given = {**os.environ, "PYTHONUNBUFFERED": "1"}
    path = [one for one in given.pop("PYTHONPATH", "").split(os.pathsep) if one and Path(one).absolute() != HOME]
    path[:0] = [WATCH] if _ASKED in given else []
    given.pop("PYTHONSAFEPATH", None)
    return given | ({"PYTHONPATH": os.pathsep.join(path)} if path else {})


@contextlib.contextmanager
def watched(attempt: Path, record: Path, ignore: Iterable[Path], refuse: Path | None = None) -> Iterator[None]:
    """Return a context in which the imports of new Python processes are watched.

    The names of imported files below `record` are written to a report in the folder `attempt`. Files below `ignore` are
    not recorded. An import of another file below `refuse` fails.
    """
    reports = attempt / WATCHED
    reports.mkdir(exist_ok=True)
    places = [("record", record), *(("ignore", path) for path in ignore)]
    if refuse is not None:
        places.append(("refuse", refuse))
    before = os.environ.get(_ASKED)
    os.environ[_ASKED] = "\n".join([str(reports.absolute()), *(f"{what} {path.resolve()}" for what, path in places)])
    try:
        yield
    finally:
        del os.environ[_ASKED]
        os.environ.update({_ASKED: before} if before is not None else {})


def code_top(home: Path) -> Path:
    """Return the folder that contains a run's code: the top folder of the repository, or `home` without a repository.

    home: the study's folder.
    """
    home = home.resolve()
    return top_of(home) or home


def imported_files(attempt: Path) -> set[Path] | None:
    """Return the files of the user's code that an attempt's Python processes imported; None without a report.

    The result has the real paths of sources, extension modules and archives below the top folder (`code_top`), or, for
    a run with a tree, below the copy of the tree. There is no report if no Python 3.8 or newer ran, or if Python was
    started with -I, -E or -S or without the run's environment variables.
    """
    lines = _report(attempt / WATCHED / MODULES) or []
    if not any(line.startswith("process ") for line in lines):
        return None
    return {Path(line) for line in lines if line.startswith("/")}


def check_watched(context: AttemptContext) -> None:
    """Raise UserError if a run with a tree has no report about its imports."""
    if imported_files(context.folder) is None:
        raise UserError(
            "The run started Python, and none of its Python processes reported what it imported, so it is not known "
            "whose code trained. Start Python without -I, -E and -S, keep the run's environment (no `env -i`, no "
            "container), and where a script sets PYTHONPATH keep its value: PYTHONPATH=src:$PYTHONPATH."
        )


def _report(file: Path) -> list[str] | None:
    """Return the lines of a report of the watcher; None if the file is missing or is not a regular file."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as stream:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        return os.fsdecode(stream.read()).splitlines()


@contextlib.contextmanager
def own_code(trainer: TrainerSpec, context: AttemptContext, home: Path, place: Path) -> Iterator[Path]:
    """Return a context whose value is the study's folder in a copy of the run's tree.

    At the end, the files of the tree are removed from `place`. Files that the trainer wrote there are kept.

    place: the folder for the copy.

    Raises UserError if the run imported code of the repository from another folder, or changed a file of the copy.
    """
    top = code_top(home)
    files, links = unpack(context.store, trainer.tree, place), trainer.links
    folder = link_in(place / home.resolve().relative_to(top), home, links)
    try:
        with watched(context.folder, place, [context.folder, *(home / name for name in links)], top):
            yield folder
        if changed := altered(place, files):
            names = f"{', '.join(changed[:5])}{' …' if len(changed) > 5 else ''}"
            raise UserError(
                f"The run changed {names} in its copy of the code: it did not end with the row's code. Let it write to "
                "other files, such as one in {folder}, or take these out of git."
            )
    finally:
        if elsewhere := _report(context.folder / WATCHED / ELSEWHERE):
            raise UserError(
                f"The run imported {elsewhere[0]}, which lies in the working copy and not in the run's own tree: other "
                "code than the row's. An editable install (`pip install -e`), PYTHONPATH or sys.path leads there. Put "
                'the tree first, as in command = "PYTHONPATH=src python train.py", or install without -e.'
            ) from None
        remove_copy(place, files)
