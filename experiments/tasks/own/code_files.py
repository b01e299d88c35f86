"""Record the digests of the files of a user's code that a run used, and find the files that have changed since.

The digest of a file is the digest of git's blob with the same content. Files of a working copy can therefore be
compared with files of a tree of git. The digest of a large file is the SHA-256 of its content. Paths are relative to
the top folder of the repository that contains the study's folder. If there is no repository, they are relative to the
study's folder.
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
from experiments.store.tree_copy import blob_digest
from experiments.store.trees import archive, planned

EDITED = "edited during the run"  # recorded instead of a digest; no file has this digest
LARGE = 8 << 20  # bytes; the hash of a file of this size or larger is cached in the store
MOST_FILES = 1000  # if a linked folder has more files, one digest is recorded for all of them
_SHA256 = "sha256:"
_CODE = (".py", ".pyc", ".pyi")  # files that do not count as linked data; the watcher records imported modules

_seen: dict[Path, tuple[tuple[int, ...], str]] = {}  # cache of this process: path → (state of the file, digest)


def file_digest(path: Path, store: Path | None) -> str:
    """Return the digest of a file; "" if the file does not exist or cannot be read.

    store: the store that caches the hashes of large files.
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
    """Return the files of each entry that is linked into a run's folder, by entry. Python files are left out."""
    found = {}
    for name in links:
        path = home / name
        files = list(regular_files(path)) if path.is_dir() else [path]
        found[name] = [one for one in files if one.suffix not in _CODE and ".git" not in one.parts]
    return found


def is_linked_data(name: str, links: Iterable[str]) -> bool:
    """Return whether a recorded name belongs to linked data.

    links: paths of the linked entries, relative to the top folder.
    """
    inside = any(f"{name.rstrip('/')}/".startswith(f"{link}/") for link in links)
    return inside and not name.endswith(_CODE)


def matching(home: Path, globs: Sequence[str], top: Path) -> list[Path]:
    """Return the files of the repository that the patterns of a study match.

    Raises UserError if a pattern leads out of the repository.
    """
    found: dict[Path, None] = {}
    for pattern in globs:
        check_glob(home, pattern, top)
        for path in sorted(home.glob(os.path.normpath(pattern))):
            real = Path(os.path.realpath(path))
            if real.is_file() and real.is_relative_to(top) and ".git" not in real.relative_to(top).parts:
                found[real] = None
    return list(found)


def check_glob(home: Path, pattern: str, top: Path) -> None:
    """Raise UserError if a pattern is empty, absolute, or leads out of the folder `top`."""
    path = Path(os.path.normpath(home / pattern))
    if not pattern or Path(pattern).is_absolute() or not path.is_relative_to(top):
        raise UserError(f'code: "{pattern}" is no pattern of files in {top}: write it from the study\'s folder.')


def matches(name: str, pattern: str) -> bool:
    """Return whether a path matches a pattern of Path.glob, in which `**` matches any number of folders."""
    return _matches(name.split("/"), os.path.normpath(pattern).split("/"))


def _matches(name: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not name
    if pattern[0] == "**":
        return any(_matches(name[begin:], pattern[1:]) for begin in range(len(name)))
    return bool(name) and fnmatch.fnmatchcase(name[0], pattern[0]) and _matches(name[1:], pattern[1:])


class WorkingCopy:
    """The files of the working copy below the folder `top`. store: the store that caches the hashes of large files."""

    def __init__(self, top: Path, store: Path | None) -> None:
        self._top, self._store = top, store

    def name(self, path: Path) -> str:
        """Return the name under which a file is recorded: its path relative to the top folder."""
        return os.path.relpath(os.path.realpath(path), self._top)

    def digest(self, name: str) -> str:
        """Return the digest of a file; "" if it is missing. A name that ends in a slash is a folder of linked data."""
        path = self._top / name
        if not name.endswith("/"):
            return file_digest(path, self._store)
        if not path.is_dir():
            return ""
        content = {}
        with Fingerprints(self._store, raw=True) as known:  # caches the hashes, because the folder has many files
            for file in linked_files(path.parent, [path.name])[path.name]:
                with contextlib.suppress(UserError, OSError):
                    content[os.path.relpath(file, path)] = known.facts(file).sha256 if file.stat().st_size else ""
        return digest(content)

    def changed_ns(self, name: str) -> int:
        """Return the time of the last change of a file (ctime), in nanoseconds."""
        return (self._top / name).stat().st_ctime_ns

    def digests(self, files: Iterable[Path]) -> dict[str, str]:
        """Return the digests of the files that exist, by recorded name."""
        found = {self.name(path): file_digest(path, self._store) for path in files}
        return {name: its for name, its in found.items() if its}

    def linked(self, home: Path, links: Sequence[str]) -> dict[str, str]:
        """Return the digests of linked data, by recorded name. A folder with many files has one digest."""
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
    """The files of a tree of git that this process has planned (experiments/store/trees.py), and the linked data.

    copy: the working copy, which contains the linked data.
    links: paths of the linked entries, relative to the top folder.
    """

    def __init__(self, tree: str, copy: WorkingCopy, links: Sequence[str]) -> None:
        git, _, _ = planned[tree]
        self._git, self._copy, self._links = git, copy, tuple(links)
        self._objects = {path: name for path, _, name in git.entries(git.nothing, tree)}

    def digest(self, name: str) -> str:
        """Return the digest of a file; "" if the tree has no such file."""
        if name.rstrip("/") not in self._objects and any(f"{name}/".startswith(f"{link}/") for link in self._links):
            return self._copy.digest(name)
        return self._objects.get(name, "")

    def equals(self, name: str, recorded: str) -> bool:
        """Return whether a file has the recorded digest. The recorded digest may be that of a large file."""
        if recorded.startswith(_SHA256) and name in self._objects:
            content = self._git.git("cat-file", "blob", self._objects[name])
            return recorded == _SHA256 + hashlib.sha256(content).hexdigest()
        return self.digest(name) == recorded


def as_used(before: Mapping[str, str], copy: WorkingCopy, attempt: Path | None = None) -> dict[str, str]:
    """Return the digests of the files that a run has used; EDITED for a file that has changed during the run.

    before: name → digest when the run began. The digest is "" for a file whose use was not known then.
    attempt: the folder of the run's attempt. The run counts as begun when the coordinator wrote the spec in this
        folder.
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
    """Return the present names of the recorded files that have changed or are missing.

    home_then: the recorded path of the study's folder, relative to the top folder; None if it was not recorded.
    home_now: the present path of the study's folder, relative to the top folder.
    """
    names = _present_names(recorded, present, home_then, home_now)
    if isinstance(present, PlannedTree):
        return [names[name] for name, its in recorded.items() if not present.equals(names[name], its)]
    return [names[name] for name, its in recorded.items() if present.digest(names[name]) != its]


def _present_names(
    recorded: Iterable[str], present: "WorkingCopy | PlannedTree", home_then: str | None, home_now: str
) -> dict[str, str]:
    """Map the recorded names of files to their present names.

    The names may differ, because another study of the same repository may have made the result, or because the study's
    folder may have been moved or copied. If a file exists at the same path relative to the present study's folder, its
    present name is this path. Otherwise, its present name is its recorded name.

    The files inside the study's folder are treated in the same way. If one of them exists in the present folder, all of
    them get names in the present folder. Results of a study are therefore not valid for a copy of its folder in which
    scripts were edited.
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
    """Return a recorded name as a path relative to the study's folder.

    home: the path of the study's folder, relative to the top folder.
    """
    top = "/top" * 50  # a stand-in for the top folder, so deep that no path with ".." leaves the root
    return os.path.relpath(f"{top}/{name}", f"{top}/{home}") + ("/" if name.endswith("/") else "")


def _from_top(path: str, home: str) -> str:
    """Return the recorded name of a file from its path relative to the study's folder."""
    return os.path.normpath(os.path.join(home, path)) + ("/" if path.endswith("/") else "")  # noqa: PTH118


def archived_digests(store: Path, tree: str, names: Iterable[str] | None, globs: Sequence[str] = ()) -> dict[str, str]:
    """Return the digests of files in the store's archive of a tree, by name.

    The result contains the files with one of the names and the files that match one of the patterns.
    """
    wanted, found = set(names or ()), dict[str, str]()
    with tarfile.open(archive(store, tree)) as packed:
        for member in packed:
            if member.isfile() and (member.name in wanted or any(matches(member.name, one) for one in globs)):
                stream = packed.extractfile(member)
                found[member.name] = blob_digest(stream.read(), len(tree)) if stream else ""
    return found
