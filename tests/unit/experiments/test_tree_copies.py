"""Copies of trees have the content of their name and stay in their folder, and changes are detected."""

import errno
import hashlib
import io
import os
import random
import subprocess
import tarfile

import pytest

from experiments.errors import Damaged, UserError
from experiments.store.checksummed import describe_file, write_json
from experiments.store.tree_copy import altered, leading_out, remove_copy, unpack
from experiments.store.trees import TREES, archive
from experiments.tasks.own.run_code import link_in

BLOB = {"100644": 0o664, "100755": 0o775}


def blob(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).digest()


def tree_name(files):
    """Compute git's digest by a second implementation."""
    entries = []
    for name in {path.partition("/")[0] for path in files}:
        if name in files:
            mode, content = files[name]
            entries.append((name.encode(), f"{mode} {name}".encode() + b"\0" + blob(content)))
        else:
            inside = {path.partition("/")[2]: its for path, its in files.items() if path.startswith(f"{name}/")}
            entries.append((f"{name}/".encode(), f"40000 {name}".encode() + b"\0" + bytes.fromhex(tree_name(inside))))
    body = b"".join(line for _, line in sorted(entries))
    return hashlib.sha1(b"tree %d\0" % len(body) + body).hexdigest()


FILES = {
    "train.py": ("100644", b"import net\n"), "net.py": ("100644", b""), "run.sh": ("100755", b"#!/bin/sh\n"),
    "a/b/c.txt": ("100644", b"deep"), "a-b": ("100644", b"sorts before a/"), "a/link": ("120000", b"../train.py"),
    "lib": ("120000", b"a/b"),
}  # fmt: skip


def packed(store, files, name=None):
    """Put an archive into a store in git's format."""
    name = name or tree_name(files)
    (store / TREES).mkdir(exist_ok=True)
    with tarfile.open(archive(store, name), "w") as made:
        for path, (mode, content) in files.items():
            member = tarfile.TarInfo(path)
            if mode == "120000":
                member.type, member.linkname = tarfile.SYMTYPE, os.fsdecode(content)
                made.addfile(member)
            else:
                member.mode, member.size = BLOB[mode], len(content)
                made.addfile(member, io.BytesIO(content))
    facts = {"archive": describe_file(archive(store, name)), "repository": "r", "commit": "c", "diff": ""}
    write_json(archive(store, name).with_suffix(".json"), facts)
    return name


def content(place):
    return {
        str(path.relative_to(place)): os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in place.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def test_a_copy_has_the_files_of_the_tree_whatever_is_in_its_way(tmp_path):
    name, place = packed(tmp_path, FILES), tmp_path / "work"
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "c.txt").write_text("mine")
    for leftover in range(4):
        if leftover == 1:  # an earlier attempt put other things in the place of files and folders
            (place / "train.py").unlink()
            (place / "train.py").mkdir()
            (place / "train.py/inside").touch()
            (place / "net.py").unlink()
            os.mkfifo(place / "net.py")
        elif leftover == 2:
            (place / "a/b/c.txt").unlink()
            (place / "a/b").rmdir()
            (place / "a/b").symlink_to(outside)
            (place / "kept.txt").write_text("of the trainer")
        elif leftover == 3:
            place.rename(tmp_path / "moved")
            place.symlink_to(outside)
        files = unpack(tmp_path, name, place)
        kept = {"kept.txt": b"of the trainer"} if leftover == 2 else {}
        assert content(place) == {path: its for path, (_, its) in FILES.items()} | kept
        assert (place / "run.sh").stat().st_mode & 0o111 and not (place / "net.py").stat().st_mode & 0o111
        assert altered(place, files) == [] and content(outside) == {"c.txt": b"mine"}
    remove_copy(place, files)
    assert content(place) == {}


@pytest.mark.parametrize(
    "change",
    [
        lambda place: (place / "net.py").write_text("x = 1\n"),
        lambda place: (place / "net.py").unlink(),
        lambda place: (place / "lib").unlink(),
        lambda place: (place / "train.py").rename(place / "net.py"),
    ],
)
def test_a_changed_file_of_a_copy_is_found(tmp_path, change):
    files = unpack(tmp_path, packed(tmp_path, FILES), tmp_path / "work")
    change(tmp_path / "work")
    assert altered(tmp_path / "work", files)


def test_a_folder_that_was_renamed_and_replaced_is_found_and_nothing_else_is_removed(tmp_path):
    """A link to equal content counts as a change, because its target may have differed during the run."""
    place, other = tmp_path / "work", tmp_path / "other"
    files = unpack(tmp_path, packed(tmp_path, FILES), place)
    (place / "a").rename(other)
    (place / "a").symlink_to(other)
    assert altered(place, files) == ["a/b/c.txt", "a/link"]
    before = content(other)
    remove_copy(place, files)
    assert content(other) == before


@pytest.mark.parametrize(
    "entry",
    ["../x.py", "/tmp/x.py", "a/../../x.py", ".git/hooks/pre-commit", "a/.git/config", ".."],
)
def test_an_archive_writes_nothing_outside_of_its_place(tmp_path, entry):
    name = packed(tmp_path, {entry: ("100644", b"x")}, "a" * 40)
    with pytest.raises(Damaged, match="has an entry"):
        unpack(tmp_path, name, tmp_path / "runs/work" if (tmp_path / "runs").mkdir() is None else tmp_path)
    assert list((tmp_path / "runs").rglob("*")) == [tmp_path / "runs/work"]


def test_an_archive_of_another_tree_is_refused(tmp_path):
    name = packed(tmp_path, FILES, tree_name(FILES | {"net.py": ("100644", b"other")}))
    with pytest.raises(Damaged, match="does not match its name"):
        unpack(tmp_path, name, tmp_path / "work")


@pytest.mark.parametrize("name", ["../../x", "", "main", "A" * 40, "a" * 39, "a" * 40 + "/..", "a" * 40 + "\n"])
def test_only_digests_name_trees(tmp_path, name):
    with pytest.raises(UserError, match="is no tree of git"):
        archive(tmp_path, name)


def test_links_that_lead_out_by_way_of_others(tmp_path):
    assert leading_out({"a": "/etc"}) == "a"
    assert leading_out({"a/b": "../../x"}) == "a/b"
    assert leading_out({"a/b": "../x", "c": "a/b/../y"}) is None
    assert leading_out({"up": "a/b/c", "a/b/c/d": "../..", "x": "up/d/../../.."}) == "x"
    assert leading_out({"deep": "a/b/c", "out": "deep/../../../../x"}) == "out"  # c's parents, not deep's
    assert leading_out({"loop": "loop", "a": "loop/x"}) is None
    assert leading_out({"cfg": "data/cfg.toml"}, ["data"]) is None
    assert leading_out({"cfg": "data/../secret"}, ["data"]) == "cfg"


@pytest.mark.parametrize("seed", range(5))
def test_links_are_followed_as_the_system_follows_them(tmp_path, seed):
    draw = random.Random(seed)
    root = tmp_path / "a/b/c/root"
    folders = ["", "d/", "d/e/", "f/"]
    for folder in folders:
        (root / folder).mkdir(parents=True, exist_ok=True)
    inside = 0
    for _ in range(400):
        links = {}
        for number in range(4):
            parts = [
                draw.choice(["..", "d", "e", "f", *(f"l{n}" for n in range(4))]) for _ in range(draw.randint(1, 4))
            ]
            links[f"{draw.choice(folders)}l{number}"] = "/".join(parts)
        for path, target in links.items():
            (root / path).symlink_to(target)
        if leading_out(links) is None:
            ends = [os.path.realpath(root / path) for path in links if not is_loop(root / path)]
            assert all(f"{end}/".startswith(f"{root}/") for end in ends)
            inside += 1
        for path in links:
            (root / path).unlink()
    assert inside > 10


def is_loop(path):
    try:
        path.stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


@pytest.mark.process
def test_the_digest_of_a_tree_is_gits(tmp_path):
    repository = tmp_path / "r"
    for path, (mode, its) in FILES.items():
        (repository / path).parent.mkdir(parents=True, exist_ok=True)
        if mode == "120000":
            (repository / path).symlink_to(os.fsdecode(its))
        else:
            (repository / path).write_bytes(its)
            (repository / path).chmod(0o755 if mode == "100755" else 0o644)
    for words in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *words], cwd=repository, check=True)
    done = subprocess.run(["git", "write-tree"], cwd=repository, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == tree_name(FILES)


def test_links_of_a_study_are_laid_anew(tmp_path):
    home, work = tmp_path / "home", tmp_path / "work"
    (home / "data").mkdir(parents=True)
    (work / "data").mkdir(parents=True)  # an earlier attempt put a folder in its place
    link_in(work, home, ["data"])
    assert (work / "data").readlink() == home / "data"
    outside = tmp_path / "outside"
    outside.mkdir()
    (home / "a/b").mkdir(parents=True)
    (work / "a").symlink_to(outside)
    link_in(work, home, ["a/b"])
    assert list(outside.iterdir()) == [] and (work / "a/b").readlink() == home / "a/b"
    with pytest.raises(UserError, match="is not in the study's folder"):
        link_in(work, home, ["../home"])
