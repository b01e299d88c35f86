"""Copy a tree into a folder for a run, check the copy, and remove the copy."""

import contextlib
import hashlib
import os
import tarfile
from collections.abc import Collection, Mapping
from pathlib import Path

from experiments.errors import Damaged, explain_os_errors
from experiments.store.checksummed import check_file
from experiments.store.durable import clear, make_folder, parts_below, read_regular
from experiments.store.repository import LINK
from experiments.store.trees import archive, archive_record

_MOST_LINKS = 40  # Linux follows at most this many links in one path


Files = dict[str, tuple[str, str]]  # path → git's mode and digest


def unpack(store: Path, tree: str, place: Path) -> Files:
    """Copy a tree into a folder and return its files. All files are below the folder, and no link leads out of it.

    Files of an earlier attempt in the same places are replaced.
    Raises UserError if the store lacks the tree, and Damaged if the content of the archive does not match its name.
    """
    file = archive(store, tree)
    check_file(file, archive_record(store, tree)["archive"])
    make_folder(place.parent, place.name)
    found: Files = {}
    with explain_os_errors(f"copy the code of the run to {place}"), tarfile.open(file) as packed:
        members = packed.getmembers()
        links = {member.name: member.linkname for member in members if member.issym()}
        if out := leading_out(links):
            raise Damaged(f"{file.name} has a link that leads out of the tree: {out}")
        for member in members:
            _check_name(file, member.name)
            folder, _, name = member.name.rpartition("/")
            if member.isdir():
                make_folder(place, member.name)
                continue
            if not (member.issym() or member.isreg()):
                raise Damaged(f"{file.name} has an entry that is neither a file nor a link: {member.name}")
            path = clear(make_folder(place, folder) / name)
            if member.issym():
                path.symlink_to(member.linkname)
                found[member.name] = LINK, blob_digest(os.fsencode(member.linkname), len(tree))
                continue
            stream = packed.extractfile(member)
            content = stream.read() if stream else b""
            path.write_bytes(content)
            path.chmod(0o755 if member.mode & 0o100 else 0o644)
            found[member.name] = ("100755" if member.mode & 0o100 else "100644"), blob_digest(content, len(tree))
    if _tree_digest(found, tree) != tree:
        raise Damaged(f"the content of {file.name} does not match its name")
    return found


def _check_name(file: Path, name: str) -> None:
    try:
        inside = ".git" not in parts_below(name)
    except ValueError:
        inside = False
    if not inside:
        raise Damaged(f"{file.name} has an entry that no tree of git has: {name}")


def altered(place: Path, files: Files) -> list[str]:
    """Return the files of a copy that are missing, have other content, or are reached through a link to a folder."""
    found = []
    for name, (mode, digest) in sorted(files.items()):
        path = place / name
        try:
            if not _is_below(place, path):
                content = None
            elif mode == LINK:
                content = os.fsencode(path.readlink())
            else:
                content = None if path.is_symlink() else read_regular(path)
        except OSError:
            content = None
        if content is None or blob_digest(content, len(digest)) != digest:
            found.append(name)
    return found


def remove_copy(place: Path, files: Files) -> None:
    """Remove the files of a copy, and the folders that are empty afterwards. Other files there stay."""
    for name in files:
        if _is_below(place, place / name):
            with contextlib.suppress(OSError):  # the trainer moved the file, or made a folder in its place
                (place / name).unlink()
    folders = {parent for name in files for parent in Path(name).parents if parent.name}
    for folder in sorted(folders, key=lambda one: len(one.parts), reverse=True):
        if _is_below(place, place / folder):
            with contextlib.suppress(OSError):  # the folder contains files that the trainer wrote
                (place / folder).rmdir()


def leading_out(links: Mapping[str, str], outside: Collection[str] = ()) -> str | None:
    """Return the first link of a tree that leads out of it, directly or through other links; None if there is none.

    links: path → target.
    outside: paths that will be links to places outside of the tree. Other links may lead to these paths or to paths
        below them, but must not continue with "..".
    """
    return next((path for path in sorted(links) if _leads_out(path, links, outside)), None)


def _leads_out(path: str, links: Mapping[str, str], outside: Collection[str]) -> bool:
    rest, at, followed = path.split("/")[::-1], list[str](), 0
    while rest:
        part = rest.pop()
        if part == "..":
            if not at:
                return True
            at.pop()
        elif part not in ("", "."):
            at.append(part)
            here = "/".join(at)
            if here in outside:
                return ".." in rest
            if here in links:
                followed += 1
                if followed > _MOST_LINKS:
                    return False  # the system does not follow more links, so this link leads nowhere
                if links[here].startswith("/"):
                    return True
                at.pop()
                rest += links[here].split("/")[::-1]
    return False


def _is_below(place: Path, path: Path) -> bool:
    """Return whether no folder on the way from `place` to `path` is a link."""
    parents = path.relative_to(place).parents
    return not any((place / parent).is_symlink() for parent in parents)


def blob_digest(content: bytes, length: int = 40) -> str:
    """Return git's digest of a blob. length: length of the digests in the repository, 40 or 64."""
    return _digest(b"blob", content, length)


def _digest(kind: bytes, content: bytes, length: int) -> str:
    made = hashlib.sha1(usedforsecurity=False) if length == 40 else hashlib.sha256()
    made.update(b"%s %d\0" % (kind, len(content)) + content)
    return made.hexdigest()


def _tree_digest(files: Files, like: str) -> str:
    """Return git's digest of a folder with these files."""
    inside: dict[str, Files] = {}
    entries: dict[bytes, bytes] = {}  # git sorts a folder as if its name ended with a slash
    for path, (mode, digest) in files.items():
        first, _, rest = path.partition("/")
        if rest:
            inside.setdefault(first, {})[rest] = mode, digest
        else:
            entries[os.fsencode(first)] = mode.encode() + b" " + os.fsencode(first) + b"\0" + bytes.fromhex(digest)
    for name, below in inside.items():
        line = b"40000 " + os.fsencode(name) + b"\0" + bytes.fromhex(_tree_digest(below, like))
        entries[os.fsencode(name) + b"/"] = line
    return _digest(b"tree", b"".join(entries[name] for name in sorted(entries)), len(like))
