"""Tests of the files of a user's code: their digests, which changes count, and a study's declaration."""

import os
import subprocess
from pathlib import Path

import pytest

from experiments.errors import UserError
from experiments.store.imports import imported_names, local_files
from experiments.store.spec import FILE
from experiments.store.tree_copy import blob_digest
from experiments.tasks.own import code_files
from experiments.tasks.own.code_files import (
    EDITED,
    WorkingCopy,
    as_used,
    changed_files,
    file_digest,
    from_home,
    is_linked_data,
    matches,
    matching,
)


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_py", ".py").replace("_yaml", ".yaml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.process
@pytest.mark.parametrize("content", [b"", b"x = 1\n", b"\0\xff\r\n" * 1000])
def test_a_digest_is_gits(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    said = subprocess.run(["git", "hash-object", "--no-filters", "file"], cwd=tmp_path, capture_output=True, text=True)
    assert file_digest(tmp_path / "file", None) == blob_digest(content) == said.stdout.strip()


def test_a_file_that_is_edited_or_gone_has_changed_and_no_other_has(tmp_path: Path) -> None:
    write(tmp_path, a_py="1", b_py="2", sub__c_py="3")
    copy = WorkingCopy(tmp_path, None)
    recorded = copy.digests([tmp_path / "a.py", tmp_path / "b.py", tmp_path / "sub/c.py", tmp_path / "no.py"])
    assert set(recorded) == {"a.py", "b.py", "sub/c.py"} and changed_files(recorded, copy, None, ".") == []
    os.utime(tmp_path / "a.py", (1, 1))
    write(tmp_path, b_py="4", new_py="5")
    (tmp_path / "sub/c.py").unlink()
    assert changed_files(recorded, copy, None, ".") == ["b.py", "sub/c.py"]


def test_a_file_that_is_edited_during_a_run_counts_as_changed(tmp_path: Path) -> None:
    write(tmp_path, same_py="1", edited_py="1", lazy_py="1")
    copy = WorkingCopy(tmp_path, None)
    before = copy.digests([tmp_path / "same.py", tmp_path / "edited.py"])
    attempt = tmp_path / "attempt"
    attempt.mkdir()
    (attempt / FILE).write_text("{}")
    began = (attempt / FILE).stat().st_ctime_ns
    assert as_used({"lazy.py": ""}, copy, attempt) == {"lazy.py": file_digest(tmp_path / "lazy.py", None)}
    write(tmp_path, edited_py="2")
    while (tmp_path / "lazy.py").stat().st_ctime_ns <= began:
        write(tmp_path, lazy_py="2")
    used = as_used({**before, "lazy.py": "", "gone.py": ""}, copy, attempt)
    assert used == {"same.py": before["same.py"], "edited.py": EDITED, "lazy.py": EDITED}
    assert changed_files(used, copy, None, ".") == ["edited.py", "lazy.py"]


def test_linked_data_are_all_files_but_pythons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, data__a_yaml="1", data__deep__b="2", data__load_py="3", one="4")
    copy = WorkingCopy(tmp_path, None)
    found = copy.linked(tmp_path, ["data", "one"])
    assert set(found) == {"data/a.yaml", "data/deep/b", "one"}
    assert all(is_linked_data(name, ["data", "one"]) for name in found) and not is_linked_data("data2/x", ["data"])
    write(tmp_path, data__new="5")
    assert changed_files(found, copy, None, ".") == [], "a file that the run did not have"
    monkeypatch.setattr(code_files, "MOST_FILES", 1)
    found = copy.linked(tmp_path, ["data"])
    assert set(found) == {"data/"} and changed_files(found, copy, None, ".") == []
    write(tmp_path, data__deep__b="6")
    assert changed_files(found, copy, None, ".") == ["data/"]


@pytest.mark.parametrize("start", ["exp1", "exp1/studies"])
def test_files_keep_their_place_from_the_folder_of_the_study(tmp_path: Path, start: str) -> None:
    write(tmp_path, exp1__train_py="1", exp1__studies__task_py="2", exp2__train_py="1", exp2__studies__task_py="2")
    write(tmp_path, exp1__data__x="3")
    copy = WorkingCopy(tmp_path, None)
    files = copy.digests([tmp_path / "exp1/train.py", tmp_path / "exp1/studies/task.py"])
    copied = start.replace("exp1", "exp2")
    assert changed_files(files, copy, start, start) == changed_files(files, copy, start, copied) == []
    write(tmp_path, exp2__train_py="4")  # the copy of an experiment, edited
    assert changed_files(files, copy, start, copied) == ["exp2/train.py"]
    data = {"exp1/data/": copy.digest("exp1/data/")}
    gone = ["exp2/data/"] if start == "exp1" else []  # outside the study's folder it may be the same data
    assert changed_files({**files, **data}, copy, start, copied) == ["exp2/train.py", *gone]
    (tmp_path / "mine").mkdir()
    (tmp_path / "exp1").rename(tmp_path / "mine/exp3")  # moved, also below a repository that began later
    moved = f"mine/{start.replace('exp1', 'exp3')}"
    assert changed_files({**files, **data}, copy, start, moved) == []
    assert changed_files(files, copy, start, start) == ["exp1/train.py", "exp1/studies/task.py"]


def test_a_file_outside_a_moved_folder_stays_where_it_was(tmp_path: Path) -> None:
    write(tmp_path, exp__train_py="1", common__lib_py="2")
    copy = WorkingCopy(tmp_path, None)
    files = copy.digests([tmp_path / "exp/train.py", tmp_path / "common/lib.py"])
    (tmp_path / "old").mkdir()
    (tmp_path / "exp").rename(tmp_path / "old/exp")
    assert changed_files(files, copy, "exp", "old/exp") == []
    write(tmp_path, old__common__lib_py="3")  # what the moved script would import by its relative path
    assert changed_files(files, copy, "exp", "old/exp") == ["old/common/lib.py"]
    (tmp_path / "old/exp/train.py").unlink()
    assert "exp/train.py" in changed_files(files, copy, "exp", "old/exp")


@pytest.mark.parametrize("folder", ["/", "/usr/share"])
def test_a_name_from_the_study_does_not_depend_on_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.chdir(folder)
    assert from_home("../../ext/lib.py", "a") == "../../../ext/lib.py" and from_home("a/b.py", "a") == "b.py"
    assert from_home("a/data/", "a") == "data/" and from_home("b.py", ".") == "b.py"


def test_another_study_of_the_repository_finds_the_files_at_their_place(tmp_path: Path) -> None:
    write(tmp_path, lib__train_py="1", lib__net_py="2")
    copy = WorkingCopy(tmp_path, None)
    files = copy.digests([tmp_path / "lib/train.py", tmp_path / "lib/net.py"])
    assert changed_files(files, copy, "studies", "studies/old/deep") == []
    write(tmp_path, lib__net_py="3")
    assert changed_files(files, copy, "studies", "studies/old/deep") == ["lib/net.py"]


def test_patterns_of_a_study_match_alike_in_a_working_copy_and_in_a_tree(tmp_path: Path) -> None:
    write(tmp_path, p__c__a_yaml="", p__c__d__b_yaml="", p__x_yaml="", top_yaml="")
    names = [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*")) if path.is_file()]
    for pattern in ("*.yaml", "c/*.yaml", "**/*.yaml", "c/**/*.yaml", "../*.yaml", "c/*/b.*", "x.yaml"):
        found = {str(path.relative_to(tmp_path)) for path in matching(tmp_path / "p", [pattern], tmp_path)}
        assert found == {name for name in names if matches(name, f"p/{pattern}")}, pattern
    for wrong in ("../../x", "/etc/*", ""):
        with pytest.raises(UserError, match="no pattern of files"):
            matching(tmp_path / "p", [wrong], tmp_path)


def test_imports_are_followed_through_packages_and_not_into_installed_ones(tmp_path: Path) -> None:
    write(
        tmp_path,
        train_py="import helper, numpy\nfrom pkg import deep\nimport pkg.other as o\n",
        helper_py="def f():\n    from late import x\n", late_py="x = 1", unused_py="", broken_py="(",
        pkg__deep_py="from . import beside\nfrom .beside import y\n", pkg__beside_py="y = 1",
        pkg__other_py="import broken",
    )  # fmt: skip
    (tmp_path / "pkg/__init__.py").touch()
    packages = tmp_path / "site-packages"
    write(packages, numpy_py="")
    found = {str(path.relative_to(tmp_path)) for path in local_files([tmp_path / "train.py"], [packages])}
    package = {f"pkg/{name}.py" for name in ("__init__", "deep", "beside", "other")}
    assert found == {"train.py", "helper.py", "late.py", "broken.py", *package}
    assert imported_names("from ..a import b\nimport c.d") == {"..a.b", "c.d"} and imported_names(b"\xff(") == set()
