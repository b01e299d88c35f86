"""The code of a run whose study has rows that change code: a copy of its tree, the links, and a watch on its imports.

Every row of such a study has the setting `code_tree`, base too: git's digest of all files of its tree
(experiments/store/trees.py), so a run is named by its code and no edit makes it stale. `links` are then what git does
not track and the run needs; their content is among the inputs of a run.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import experiments.client.watch
from experiments.config import TaskConfig
from experiments.data.corpora.files import Fingerprints
from experiments.errors import UserError
from experiments.identity import digest
from experiments.store.durable import regular_files
from experiments.store.trees import top_of, unpack
from experiments.tasks.base import Context

CODE, LINES, LINKS = "code_tree", "code_lines", "folder_links"
PACKAGES = "packages.txt"  # in the attempt's folder, of a run with a tree
WATCH = str(Path(experiments.client.watch.__file__).parent)


def link_digests(config: TaskConfig, home: Path, store: Path) -> dict[str, str]:
    """The digests of what is linked into the trees of a study's rows; {} for other studies. Raises UserError."""
    links: Sequence[str] = getattr(config, LINKS, ()) if getattr(config, CODE, "") else ()
    found = {}
    with Fingerprints(store, raw=True) as known:
        for name in links:
            path = home / name
            files = regular_files(path) if path.is_dir() else [path]
            full = [one for one in files if "__pycache__" not in one.parts and (not one.exists() or one.stat().st_size)]
            content = {os.path.relpath(file, path): known.facts(file).sha256 for file in full}
            found[f"link {name}"] = digest(content)
    return found


def check_links(home: Path, links: Sequence[str]) -> None:
    """Raises UserError for an entry that the study's folder does not have."""
    if missing := [name for name in links if not (home / name).exists()]:
        raise UserError(
            f"`links` of the study names {missing[0]}, which is not in {home}. Correct it, or leave it out."
        )


def link_in(folder: Path, home: Path, links: Sequence[str]) -> Path:
    """Link entries of the study's folder into a run's own. Raises UserError.

    What the trainer writes beside them stays there, so that no two runs meet, and a resumed run finds it.
    """
    check_links(home, links)
    for name in links:
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.is_symlink():  # of the attempt before
            place.unlink()
        if not place.exists():
            place.symlink_to((home / name).resolve())
    return folder


def imported(context: Context) -> dict[str, Any]:
    """The versions of the packages that a run's Python processes imported, as the watch reports them; else {}."""
    try:
        lines = (context.folder / PACKAGES).read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    found: dict[str, list[str]] = {}
    for name, _, version in sorted({line.partition(" ") for line in lines}):
        found.setdefault(name, []).append(version)
    return {"versions": {name: ", ".join(several) for name, several in found.items()}}


@contextlib.contextmanager
def own_code(config: TaskConfig, context: Context, home: Path, place: Path) -> Iterator[Path]:
    """The study's folder in a copy of the run's tree, which is removed at the end; what the trainer wrote there stays.

    Raises UserError where code of the repository was imported from elsewhere.
    """
    top = top_of(home.resolve()) or home
    files, links = unpack(context.store, getattr(config, CODE), place), getattr(config, LINKS, ())
    folder = link_in(place / home.resolve().relative_to(top), home, links)
    report, packages = context.folder / "imported-elsewhere.txt", context.folder / PACKAGES
    told = (report, packages, top, place, *(home / name for name in links))
    os.environ["ABLATIONS_WATCH"] = "\n".join(map(str, told))
    try:
        yield folder
    finally:
        del os.environ["ABLATIONS_WATCH"]
        if report.exists():
            first = report.read_text(encoding="utf-8").splitlines()[0]
            raise UserError(
                f"The run imported {first}, which lies in the working copy and not in the run's own tree: other code "
                "than the row's. An editable install (`pip install -e`), PYTHONPATH or sys.path leads there. Put the "
                'tree first, as in command = "PYTHONPATH=src python train.py", or install without -e.'
            ) from None
        for path in reversed(files):
            with contextlib.suppress(OSError):  # a folder in which the trainer wrote, or a file that it moved
                path.rmdir() if path.is_dir() else path.unlink()
