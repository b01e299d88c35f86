"""The code of runs as git trees, and their archives in the store.

A tree is the code of base with its uncommitted changes, the code of a commit, or base's code with a patch. Each tree is
archived once in the store. git computes the trees without touching the user's repository (repository.py). The name of a
tree is git's digest of all its files, byte by byte.
"""

import contextlib
import hashlib
import os
import re
import tarfile
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from experiments.errors import Damaged, UserError, explain_os_errors
from experiments.store.checksummed import check_file, describe_file, read_json, write_json
from experiments.store.durable import clear, locked, make_folder, parts_below, read_regular, write_bytes
from experiments.store.layout import Store, rows_of, spec_of
from experiments.store.provenance import RepositoryState
from experiments.store.repository import LINK, Repository
from experiments.store.spec import FILE as SPEC
from experiments.store.spec import AttemptSpec

TREES = "trees"  # folder in the store with a read-only archive of each tree
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
PACKED_S = 600.0  # limit of the wait for another process that packs or removes a tree
_MOST_LINKS = 40  # Linux follows at most this many links in one path


# --- The parts of a patch: its hunks. A file that is created, removed, renamed or binary is one part.


class PatchPart(NamedTuple):
    """A part of a patch that can be applied alone."""

    file: str
    name: str  # for messages: "hunk 2 (train.py, line 40)"
    text: bytes


_WHOLE = re.compile(rb"^(new file|deleted file|rename|copy|old mode|new mode|GIT binary|Binary files) ?", re.MULTILINE)


def _file_of(head: bytes) -> str:
    """Return the file that a diff changes, from its first line: `a/NAME b/NAME` or `a/OLD b/NEW`, with any prefixes."""
    names = head.splitlines()[0].removeprefix(b"diff --git ")
    half = len(names) // 2
    old, new = names[:half].strip(b'" '), names[half:].strip(b'" ')
    if old.partition(b"/")[2] != new.partition(b"/")[2]:  # the file is renamed
        new = re.sub(rb'^.* "?\w/', b"/", names).rstrip(b'"')
    return os.fsdecode(new.partition(b"/")[2])


def parts_of(patch: bytes) -> list[PatchPart]:
    """Return the parts of the output of `git diff`, in order; [] for a patch in another format.

    No line of a hunk begins like the lines that separate files or hunks.
    """
    found = list[PatchPart]()
    for text in re.split(rb"^(?=diff --git )", patch, flags=re.MULTILINE)[1:]:
        head, *hunks = re.split(rb"^(?=@@ -)", text, flags=re.MULTILINE)
        file = _file_of(head)
        if _WHOLE.search(head) or not hunks:
            found.append(PatchPart(file, f"the change of {file}", text))
            continue
        for hunk in hunks:
            line = hunk[4:].split(b",")[0].split(b" ")[0].decode()
            found.append(PatchPart(file, f"hunk {len(found) + 1} ({file}, line {line})", head + hunk))
    return found


# --- The archive of a tree in the store


# Each tree that this process planned → its repository, the commit where it begins, and the paths that no tree contains.
planned = dict[str, tuple[Repository, str, list[str]]]()


def keep(tree: str, store: Path) -> None:
    """Archive a tree that this process planned in the store, unless the archive exists.

    Raises UserError for a tree that this process did not plan.
    """
    file = archive(store, tree)
    with explain_os_errors(f"write {file}"), _alone(file.parent):
        if file.with_suffix(".json").exists():
            return
        if tree not in planned:
            raise UserError(f"No row of the study has the code {tree}.")
        git, commit, hidden = planned[tree]
        write_bytes(file, git.git("archive", "--format=tar", tree))
        file.chmod(0o444)
        diff = git.text(f"{commit}^{{tree}}", tree, hidden)
        facts = {"archive": describe_file(file), "repository": git.top.name, "commit": commit, "diff": diff}
        write_json(file.with_suffix(".json"), facts)


def _alone(trees: Path) -> AbstractContextManager[None]:
    """Lock a store's trees for packing or removing them.

    The folder `trees` of a temporary store (`run --smoke`) is a link to that of the store.
    """
    trees.mkdir(exist_ok=True)
    return locked(trees.resolve().parent, "code", PACKED_S)


def remove_unused(store: Store) -> None:
    """Remove the trees that no run of the store uses, and incomplete archives that killed processes have left.

    The caller holds the coordinator lock, so no run starts. A process that queues runs first describes them in the
    store and then packs their trees. So either this function finds the description, or the tree is packed again. Raises
    UserError if the disk cannot be written.
    """
    trees = store.root / TREES
    if not trees.is_dir():
        return
    with explain_os_errors(f"remove trees from {trees}"), _alone(trees):
        stores = [store, *(Store(path) for path in store.root.glob(".smoke-*"))]
        used = {tree for one in stores for run_id in one.run_ids() for tree in trees_of(one, run_id)}
        for path in sorted(trees.iterdir()):  # removes the .json file first; without it, the tree counts as missing
            if path.stem not in used:
                path.unlink()


def trees_of(store: Store, run_id: str) -> set[str]:
    """Return the trees that a run was or will be trained with, from the records of the run, its rows and attempts."""
    specs = [spec_of(store, run_id, forgiving=True)]
    for number in store.attempts(run_id):
        with contextlib.suppress(UserError, OSError):
            specs.append(AttemptSpec.read(store.attempt_folder(run_id, number) / SPEC).spec)
    of_rows = (row.trees for row in rows_of(store, run_id))
    return {tree for trees in (*(spec.trainer.trees for spec in specs if spec), *of_rows) for tree in trees}


def is_kept(store: Path, tree: str) -> bool:
    """Return whether the store has the archive of a tree."""
    return archive(store, tree).with_suffix(".json").is_file()


def archive(store: Path, tree: str) -> Path:
    """Return the archive file of a tree. A JSON file beside it has the hash of the archive and the origin of the tree.

    Raises UserError for a name that is not a digest of git, because such a name could lead to any path.
    """
    if not _DIGEST.fullmatch(tree):
        raise UserError(f"{tree[:80]!r} is no tree of git: only a row's `patch` or `commit` gives one.")
    return store / TREES / f"{tree}.tar"


def revision_of(store: Path, tree: str) -> RepositoryState:
    """Return the commit where a tree begins, and the tree's difference from it.

    Raises UserError if the store lacks the tree.
    """
    facts = _facts(store, tree)
    return RepositoryState(facts["repository"], facts["commit"], facts["diff"])


def _facts(store: Path, tree: str) -> dict[str, Any]:
    if facts := read_json(archive(store, tree).with_suffix(".json")):
        return facts
    raise UserError(f"The store lacks the code of this run, {tree}. Add it with `ablations run` and the study.")


# --- The copy of a tree for a run. Files of an earlier attempt that are in its way are removed.


Files = dict[str, tuple[str, str]]  # path → git's mode and digest


def unpack(store: Path, tree: str, place: Path) -> Files:
    """Copy a tree into a folder and return its files. All files stay below the folder, and no link leads out of it.

    Raises UserError if the store lacks the tree, and Damaged if the content of the archive does not match its name.
    """
    file = archive(store, tree)
    check_file(file, _facts(store, tree)["archive"])
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
    outside: paths that will be links to places outside the tree. Other links may lead to and into these paths, but may
        not leave them by "..".
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
                    return False  # the system follows no more links, so this one leads nowhere
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
