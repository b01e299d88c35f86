"""The files of a user's code: their digests as a run used them, and those that have changed since.

A digest is that of git's blob with the file's content, so that a file in a working copy and in a tree of git compare.
A large file has the SHA-256 of its content. Paths start at the top of the repository of the study's folder, or at that
folder if it lies in no repository.
"""

import contextlib
import fnmatch
import hashlib
import os
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from experiments.data.corpora.files import Fingerprints
from experiments.errors import UserError
from experiments.identity import digest
from experiments.store.durable import regular_files
from experiments.store.spec import FILE
from experiments.store.trees import archive, blob_digest, planned

EDITED = "edited during the run"  # in place of a digest: equal to no file
LARGE = 8 << 20  # bytes: from here on content is hashed once and remembered
MOST_FILES = 1000  # of a linked folder that are recorded one by one
_SHA256 = "sha256:"
_CODE = (".py", ".pyc", ".pyi")  # of linked folders: the watcher says which of them a run imported

_seen: dict[Path, tuple[tuple[int, ...], str]] = {}  # of this process: path → (stamp, digest)


def file_digest(path: Path, store: Path | None) -> str:
    """The digest of a file; "" for one that does not exist or cannot be read.

    store: where digests of large files are remembered.
    """
    try:
        state = path.stat()
        if not os.path.isfile(path):  # noqa: PTH113
            return ""
        stamp = (state.st_mtime_ns, state.st_ctime_ns, state.st_size, state.st_ino)
        if path in _seen and _seen[path][0] == stamp:
            return _seen[path][1]
        if state.st_size >= LARGE:
            with Fingerprints(store, raw=True) as known:
                found = _SHA256 + known.facts(path).sha256
        else:
            found = blob_digest(path.read_bytes())
    except (OSError, UserError):
        return ""
    _seen[path] = stamp, found
    return found


def linked_files(home: Path, links: Sequence[str]) -> dict[str, list[Path]]:
    """The data that is linked into a run's folder, by entry: all files but Python's."""
    found = {}
    for name in links:
        path = home / name
        files = list(regular_files(path)) if path.is_dir() else [path]
        found[name] = [one for one in files if one.suffix not in _CODE and ".git" not in one.parts]
    return found


def is_linked_data(name: str, links: Iterable[str]) -> bool:
    """Return whether a recorded name is of linked data. links: their names from the top."""
    inside = any(f"{name.rstrip('/')}/".startswith(f"{link}/") for link in links)
    return inside and not name.endswith(_CODE)


def matching(home: Path, globs: Sequence[str], top: Path) -> list[Path]:
    """The files that the patterns of a study match. Raises UserError for a pattern that leads out of the repository."""
    found: dict[Path, None] = {}
    for pattern in globs:
        check_glob(home, pattern, top)
        for path in sorted(home.glob(os.path.normpath(pattern))):
            real = Path(os.path.realpath(path))
            if real.is_file() and real.is_relative_to(top) and ".git" not in real.relative_to(top).parts:
                found[real] = None
    return list(found)


def check_glob(home: Path, pattern: str, top: Path) -> None:
    """Raises UserError for a pattern that no file of the repository, or of the study's folder, can match."""
    path = Path(os.path.normpath(home / pattern))
    if not pattern or Path(pattern).is_absolute() or not path.is_relative_to(top):
        raise UserError(f'code: "{pattern}" is no pattern of files in {top}: write it from the study\'s folder.')


def matches(name: str, pattern: str) -> bool:
    """Return whether a path matches a pattern of Path.glob: `*` stays in a folder, `**` is any number of folders."""
    return _matches(name.split("/"), os.path.normpath(pattern).split("/"))


def _matches(name: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not name
    if pattern[0] == "**":
        return any(_matches(name[begin:], pattern[1:]) for begin in range(len(name)))
    return bool(name) and fnmatch.fnmatchcase(name[0], pattern[0]) and _matches(name[1:], pattern[1:])


class WorkingCopy:
    """The files of the working copy."""

    def __init__(self, top: Path, store: Path | None) -> None:
        self._top, self._store = top, store

    def name(self, path: Path) -> str:
        """The path of a file as it is recorded."""
        return os.path.relpath(os.path.realpath(path), self._top)

    def digest(self, name: str) -> str:
        """The digest of a file or, for a name with a slash at its end, of a folder's data; "" if it is missing."""
        path = self._top / name
        if not name.endswith("/"):
            return file_digest(path, self._store)
        if not path.is_dir():
            return ""
        content = {}
        with Fingerprints(self._store, raw=True) as known:  # many files are hashed once and remembered
            for file in linked_files(path.parent, [path.name])[path.name]:
                with contextlib.suppress(UserError, OSError):
                    content[os.path.relpath(file, path)] = known.facts(file).sha256 if file.stat().st_size else ""
        return digest(content)

    def changed_ns(self, name: str) -> int:
        """When a file was last changed, in nanoseconds."""
        return (self._top / name).stat().st_ctime_ns

    def digests(self, files: Iterable[Path]) -> dict[str, str]:
        """The digests of files that exist, by name."""
        found = {self.name(path): file_digest(path, self._store) for path in files}
        return {name: its for name, its in found.items() if its}

    def linked(self, home: Path, links: Sequence[str]) -> dict[str, str]:
        """The digests of linked data, by name: of a folder with many files one for all of them."""
        found: dict[str, str] = {}
        for name, files in linked_files(home, links).items():
            place = os.path.relpath(home.resolve() / name, self._top)
            if len(files) > MOST_FILES:
                found[f"{place}/"] = self.digest(f"{place}/")
                continue
            for file in files:
                inside = os.path.relpath(file, home / name)
                found[os.path.normpath(f"{place}/{inside}")] = file_digest(file, self._store)
        return found


class PlannedTree:
    """The files of a tree that this process planned (experiments/store/trees.py), and linked data of the working copy.

    links: names of linked entries from the top.
    """

    def __init__(self, tree: str, copy: WorkingCopy, links: Sequence[str]) -> None:
        git, _, _ = planned[tree]
        self._git, self._copy, self._links = git, copy, tuple(links)
        self._objects = {path: name for path, _, name in git.entries(git.nothing, tree)}

    def digest(self, name: str) -> str:
        """The digest of a file; "" if the tree has no such file."""
        if name.rstrip("/") not in self._objects and any(f"{name}/".startswith(f"{link}/") for link in self._links):
            return self._copy.digest(name)
        return self._objects.get(name, "")

    def equals(self, name: str, recorded: str) -> bool:
        """Return whether a file of the tree has a recorded digest, which may be of a large file."""
        if recorded.startswith(_SHA256) and name in self._objects:
            content = self._git.git("cat-file", "blob", self._objects[name])
            return recorded == _SHA256 + hashlib.sha256(content).hexdigest()
        return self.digest(name) == recorded


def as_used(before: Mapping[str, str], copy: WorkingCopy, attempt: Path | None = None) -> dict[str, str]:
    """The digests of files that a run has used, from those as it began: EDITED for a file that has changed meanwhile.

    A digest "" is of a file that was not known to be used as the run began. attempt: the folder of the run's attempt,
    whose spec was written just before.
    """
    spec, found = attempt / FILE if attempt else None, dict[str, str]()
    began = spec.stat().st_ctime_ns if spec and spec.is_file() else None
    for name, digest_then in before.items():
        now = copy.digest(name)
        if digest_then:
            found[name] = digest_then if now == digest_then else EDITED
        elif now:
            found[name] = EDITED if began is not None and copy.changed_ns(name) > began else now
    return found


def changed_files(
    recorded: Mapping[str, str], present: "WorkingCopy | PlannedTree", home_then: str | None, home_now: str
) -> list[str]:
    """The recorded files that are other ones now, or that are gone, by their present names.

    home_then, home_now: the study's folder from the top, as recorded (None: not recorded) and at present.
    """
    names = _present_names(recorded, present, home_then, home_now)
    if isinstance(present, PlannedTree):
        return [names[name] for name, its in recorded.items() if not present.equals(names[name], its)]
    return [names[name] for name, its in recorded.items() if present.digest(names[name]) != its]


def _present_names(
    recorded: Iterable[str], present: "WorkingCopy | PlannedTree", home_then: str | None, home_now: str
) -> dict[str, str]:
    """Map the recorded names of files to their present names.

    Another study of the same repository may have made the result, or the study's folder was moved or copied. So a file
    keeps its place relative to the study's folder if it lies there now, else its place in the repository. The files
    inside the study's folder stay together: they are there if any of them is. A copied folder whose scripts were edited
    never takes the results of the original for its own.
    """
    names = {name: name for name in recorded}
    if home_then in (None, home_now):
        return names
    moved = {name: _from_top(from_home(name, home_then), home_now) for name in names}
    there = {name for name, place in moved.items() if present.digest(place)}
    inside = {name for name in names if not from_home(name, home_then).startswith("../")}
    follow = there | inside if there & inside else there - inside
    return {name: moved[name] if name in follow else name for name in names}


def from_home(name: str, home: str) -> str:
    """A recorded name as a path from the study's folder. home: that folder from the top."""
    top = "/top" * 50  # deeper than any path that leads out of it
    return os.path.relpath(f"{top}/{name}", f"{top}/{home}") + ("/" if name.endswith("/") else "")


def _from_top(path: str, home: str) -> str:
    """The name of a file by its path from the study's folder."""
    return os.path.normpath(os.path.join(home, path)) + ("/" if path.endswith("/") else "")  # noqa: PTH118


def archived_digests(store: Path, tree: str, names: Iterable[str] | None, globs: Sequence[str] = ()) -> dict[str, str]:
    """The digests of files in the store's archive of a tree: of the names, and of those that match patterns."""
    wanted, found = set(names or ()), dict[str, str]()
    with tarfile.open(archive(store, tree)) as packed:
        for member in packed:
            if member.isfile() and (member.name in wanted or any(matches(member.name, one) for one in globs)):
                stream = packed.extractfile(member)
                found[member.name] = blob_digest(stream.read(), len(tree)) if stream else ""
    return found
