"""The code of a run whose study has rows that change code: a copy of its tree, the links, and a watch on its imports.

Every row of such a study has the setting `code_tree`, base too: git's digest of all files of its tree
(experiments/store/trees.py), so a run is named by its code and no edit makes it stale. `links` are then what git does
not track and the run needs; their content is among the inputs of a run.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import experiments.client.watch
from experiments.config import TaskConfig
from experiments.data.corpora.files import Fingerprints
from experiments.errors import UserError, explain_os_errors
from experiments.store.durable import regular_files
from experiments.store.trees import top_of, unpack
from experiments.tasks.base import Context

CODE, LINES, LINKS = "code_tree", "code_lines", "folder_links"
REPORT = "imported-elsewhere.txt"  # in an attempt's folder
WATCH = str(Path(experiments.client.watch.__file__).parent)
# A virtual environment counts by the names of its packages, not by its files.
_ENVIRONMENT, _PACKAGES = "pyvenv.cfg", "lib*/python*/site-packages/*.dist-info"


def link_digests(config: TaskConfig, home: Path | None, store: Path) -> dict[str, str]:
    """The digests of what is linked into the trees of a study's rows; {} for other studies. Raises UserError."""
    links: Sequence[str] = getattr(config, LINKS, ()) if getattr(config, CODE, "") else ()
    with Fingerprints(store, raw=True) as known:
        return {f"link {name}": _digest((home or Path.cwd()) / name, known) for name in links}


def _digest(path: Path, known: Fingerprints) -> str:
    if not path.exists():
        raise UserError(f"`links` of the study names {path}, which does not exist. Correct it, or leave it out.")
    named = {"": path}
    if path.is_dir():
        environment = (path / _ENVIRONMENT).is_file()
        files = (
            [path / _ENVIRONMENT] if environment else [p for p in regular_files(path) if "__pycache__" not in p.parts]
        )
        named = {str(file.relative_to(path)): file for file in files if "__pycache__" not in file.parts}
        packages = sorted(str(one.relative_to(path)) for one in path.glob(_PACKAGES)) if environment else []
    else:
        packages = []
    whole = hashlib.sha256("\n".join(packages).encode())
    for name, file in sorted(named.items()):
        whole.update(f"{name}\0{known.facts(file).sha256}\n".encode(errors="surrogateescape"))
    return whole.hexdigest()[:16]


def link_in(folder: Path, home: Path, links: Sequence[str]) -> Path:
    """Link entries of the study's folder into a run's own. Raises UserError.

    What the trainer writes beside them stays there, so that no two runs meet, and a resumed run finds it.
    """
    if missing := [name for name in links if not (home / name).exists()]:
        raise UserError(
            f"`links` of the study names {missing[0]}, which is not in {home}. Correct it, or leave it out."
        )
    for name in links:
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.is_symlink():  # of the attempt before
            place.unlink()
        if not place.exists():
            place.symlink_to((home / name).resolve())
    return folder


@contextlib.contextmanager
def own_code(config: TaskConfig, context: Context, home: Path, place: Path) -> Iterator[Path]:
    """The study's folder in a copy of the run's tree, which is removed at the end; what the trainer wrote there stays.

    Raises UserError where code of the repository was imported from elsewhere, or a link's content has changed.
    """
    _refuse_changed(config, context, home)
    top = top_of(home.resolve()) or home
    links = getattr(config, LINKS, ())
    files = unpack(context.store, getattr(config, CODE), place)
    folder = link_in(place / home.resolve().relative_to(top), home, links)
    report = context.folder / REPORT
    allowed = [place, *(home / name for name in links)]
    os.environ["ABLATIONS_WATCH"] = "\n".join(map(str, (top, report, *allowed)))
    try:
        yield folder
    finally:
        del os.environ["ABLATIONS_WATCH"]
        if report.exists():
            first = report.read_text(encoding="utf-8", errors="replace").splitlines()[0]
            raise UserError(
                f"The run imported {first}, which lies in the working copy and not in the run's own tree: it would "
                "have tested other code than the row's. Something on its path leads there, such as an editable install "
                "(`pip install -e`), PYTHONPATH or sys.path. Put the tree first, for example "
                'command = "PYTHONPATH=src python train.py", or install without -e.'
            ) from None
        with explain_os_errors(f"remove the copy of the code, {place}"):
            for file in files:
                file.unlink(missing_ok=True)
            folders = {above for file in files for above in file.parents if place in above.parents}
            for empty in sorted(folders, reverse=True):
                with contextlib.suppress(OSError):  # not empty
                    empty.rmdir()
    _refuse_changed(config, context, home)


def _refuse_changed(config: TaskConfig, context: Context, home: Path) -> None:
    now = link_digests(config, home, context.store)
    changed = [name for name, digest in now.items() if context.inputs.get(name) != digest]
    if changed:
        raise UserError(
            f"{', '.join(changed)} of the study changed after the run was planned: its identity has the earlier "
            "content, so no result is kept. `ablations run` plans it with the present content."
        )
