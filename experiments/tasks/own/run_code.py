"""The code of a run whose study has rows that change code: a copy of its tree, the links, and a watch on its imports.

Every row of such a study has a tree, base too: `TrainerSpec.tree`, git's digest of all its files
(experiments/store/trees.py). It says which code trains the run, and is part of no run_id. `links` are then what git
does not track and the run needs.
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
from experiments.store.trees import altered, remove_copy, unpack

COPY, WATCHED = "code", "watch"  # in a run's folder: the copy of its tree, and what is seen of its imports
NO_TREE = "0" * 24  # begins the tree of a row whose code cannot be made: nothing runs on it
MODULES, ELSEWHERE, PACKAGES = "modules.txt", "imported-elsewhere.txt", "packages.txt"  # there
WATCH = str(Path(experiments.client.watch.__file__).parent)
HOME = Path(experiments.__file__).parents[1]  # the folder of this program's packages
_ASKED = "ABLATIONS_WATCH"  # the variable that starts the watcher and says what it records and refuses


def check_links(home: Path, links: Sequence[str]) -> None:
    """Raises UserError for an entry that the study's folder does not have."""
    if missing := [name for name in links if not (home / name).exists()]:
        raise UserError(
            f"`links` of the study names {missing[0]}, which does not exist in {home}. Correct or remove it."
        )


def link_in(folder: Path, home: Path, links: Sequence[str]) -> Path:
    """Link entries of the study's folder into a run's own. Raises UserError.

    What the trainer writes beside them stays there, so that no two runs meet, and a resumed run finds it. What an
    earlier attempt put in place of a link is removed from the copy of its folder.
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
    """The versions of the packages that a run's Python processes imported, as the watcher reports them; else {}."""
    lines = _report(context.folder / WATCHED / PACKAGES)
    if lines is None:
        return {}
    found: dict[str, list[str]] = {}
    for name, _, version in sorted({line.partition(" ") for line in lines}):
        found.setdefault(name, []).append(version)
    return {"versions": {name: ", ".join(several) for name, several in found.items()}}


# --- The watch on the imports of a run's Python processes (experiments/client/watch)


def environment() -> dict[str, str]:
    """The environment of a trainer: the user's own, without the path to this program, and with the watcher if asked."""
    given = {**os.environ, "PYTHONUNBUFFERED": "1"}
    path = [one for one in given.pop("PYTHONPATH", "").split(os.pathsep) if one and Path(one).absolute() != HOME]
    path[:0] = [WATCH] if _ASKED in given else []
    given.pop("PYTHONSAFEPATH", None)
    return given | ({"PYTHONPATH": os.pathsep.join(path)} if path else {})


@contextlib.contextmanager
def watched(attempt: Path, record: Path, ignore: Iterable[Path], refuse: Path | None = None) -> Iterator[None]:
    """Watch the imports of the processes that start inside: what below `record` is imported is named in the attempt.

    What lies below `ignore` is not recorded. An import from below `refuse` that is below neither of them fails.
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
    """The folder whose imports are a run's code: the top of the repository of the study's folder, or that folder."""
    home = home.resolve()
    return top_of(home) or home


def imported_files(attempt: Path) -> set[Path] | None:
    """The files of the user's code that an attempt's Python processes imported; None if no watcher reported.

    Real paths of sources, extensions and archives below the top of the repository (code_top); of a run whose code is a
    tree, below its copy. No watcher reports where no Python of 3.8 or newer ran, or where it was started with -I, -E,
    -S, or without the variables of the run.
    """
    lines = _report(attempt / WATCHED / MODULES) or []
    if not any(line.startswith("process ") for line in lines):
        return None
    return {Path(line) for line in lines if line.startswith("/")}


def check_watched(context: AttemptContext) -> None:
    """Raises UserError for a run of a row of code whose Python did not report what it imported."""
    if imported_files(context.folder) is None:
        raise UserError(
            "The run started Python, and none of its Python processes reported what it imported, so it is not known "
            "whose code trained. Start Python without -I, -E and -S, keep the run's environment (no `env -i`, no "
            "container), and where a script sets PYTHONPATH keep its value: PYTHONPATH=src:$PYTHONPATH."
        )


def _report(file: Path) -> list[str] | None:
    """The lines of a report of the watcher; None if there is none, or something else in its place."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as stream:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        return os.fsdecode(stream.read()).splitlines()


# --- A run whose code is a tree


@contextlib.contextmanager
def own_code(trainer: TrainerSpec, context: AttemptContext, home: Path, place: Path) -> Iterator[Path]:
    """The study's folder in a copy of the run's tree, which is removed at the end; what the trainer wrote there stays.

    Raises UserError where code of the repository was imported from elsewhere, or a file of the copy was changed.
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
