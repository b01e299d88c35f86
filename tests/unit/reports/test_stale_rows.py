"""Results of other code are kept and marked. Rows are compared if the files that both used are equal."""

from dataclasses import replace

import pytest

from experiments.config.run_config import RunConfig
from reports.render.formats import formats, render
from reports.table.build import record
from tests.planned_runs import with_state

OLD, NEW = {"train.py": "1" * 40, "lib.py": "2" * 40}, {"train.py": "3" * 40, "lib.py": "2" * 40}
SEEDS = [(5.0, 25.0), (5.1, 25.1), (5.2, 25.2)]
BETTER = [(4.0, 28.0), (4.1, 28.1), (4.2, 28.2)]


@pytest.fixture
def own(bench, monkeypatch):
    """Make a table whose runs belong to a user's trainer, so that their code consists of files."""
    monkeypatch.setattr(RunConfig, "setting_roles", replace(RunConfig.setting_roles, frozen_defaults=False))
    return bench


def made(bench, **codes):
    """Make rows from their records by key, base first. A row with `stale` has results of other code."""
    for number, (key, facts) in enumerate(codes.items()):
        stale = facts.pop("stale", False)
        changes = {"model.d_k": 2 ** (number + 2)} if number else {}
        results = BETTER if number else SEEDS
        bench.row(key, changes, results=results, record=facts, states=["stale" if stale else "finished"] * 3)
    bench.study["claim"] = [{"check": f"{key} is better than base in bleu"} for key in codes if key != "base"]
    bench.runs = [with_state(run, stale=("training",) * (run.state == "stale")) for run in bench.runs]
    return bench.table()


def compared(table, key):
    measure = next(row for row in table.rows if row.key == key).measures["bleu"]
    return measure.change is not None, measure.test is not None and measure.test.marked


def warned(table):
    return " ".join(table.warnings)


def test_rows_of_one_code_are_compared_whether_it_is_the_present_one_or_not(own):
    table = made(own, base={"code_files": OLD, "stale": True}, other={"code_files": OLD, "stale": True})
    assert compared(table, "other") == (True, True)
    assert "Different code" not in warned(table)
    assert "†): base, other" in warned(table) and "--stale rerun" in warned(table)
    assert [record(row, table)["stale"] for row in table.rows] == [True, True]


def test_rows_whose_common_files_differ_have_no_change_star_verdict_or_bold(own):
    parts = {
        "base": {"code_files": NEW},
        "other": {"code_files": OLD, "stale": True},
        "same": {"code_files": NEW | {"more.py": "4" * 40}},
    }
    table = made(own, **parts)
    assert (compared(table, "other"), compared(table, "same")) == ((False, False), (True, True))
    assert not any(row.measures["bleu"].best for row in table.rows)
    assert "(train.py): base, same; other" in warned(table) and "--stale rerun" in warned(table)
    differing, alike = (claim.here for claim in table.claims)
    assert differing.state == "cannot be checked" and "train.py" in differing.words
    assert alike.state == "holds"


@pytest.mark.parametrize(
    ("home", "files", "compares"),
    [
        ("a", {"a/train.py": "1" * 40}, True),  # the folder was moved from a to b
        ("a", {"a/train.py": "2" * 40}, False),  # a copy of the folder, edited
        (".", {"train.py": "2" * 40}, False),  # a repository began above it
        ("c/d", {"b/train.py": "1" * 40}, True),  # of another study, elsewhere
        ("c/d", {"b/train.py": "2" * 40}, False),
    ],
)
def test_files_are_common_by_their_place_from_the_study_or_from_the_top(own, home, files, compares):
    base = {"code_files": {"b/train.py": "1" * 40}, "code_home": "b"}
    table = made(own, base=base, other={"code_files": files, "code_home": home})
    assert compared(table, "other") == (compares, compares)
    assert ("Different code made these rows (train.py)" in warned(table).replace("b/", "")) != compares


def test_rows_whose_files_are_not_recorded_are_compared_only_with_those_of_the_same_digest(own):
    parts = {
        "base": {"code_digest": "a" * 16, "stale": True},
        "same": {"code_digest": "a" * 16, "stale": True},
        "other": {"code_digest": "b" * 16, "stale": True},
        "new": {"code_files": NEW},
    }
    table = made(own, **parts)
    assert [compared(table, key)[0] for key in ("same", "other", "new")] == [True, False, False]
    assert "not recorded): base, same; other; new" in warned(table)


def test_runs_of_version_0_1_0_are_compared_only_with_those_of_the_same_tree(own):
    """It recorded the tree of all code among the settings, and no files."""

    def of_tree(letter):
        config = {"task": "command", "command": "python train.py", "code_tree": letter * 40, "code_lines": 0}
        return {"config": config, "inputs": {"corpus": "0c0de0c0de0c0de0"}, "code_digest": "d" * 16, "stale": True}

    table = made(own, base=of_tree("a"), same=of_tree("a"), other=of_tree("b"))
    assert [compared(table, key)[0] for key in ("same", "other")] == [True, False]
    assert "not recorded): base, same; other" in warned(table)


@pytest.mark.parametrize(
    ("patched", "expected"),
    [
        ({"code_files": OLD, "base_files": NEW}, True),  # base's own code, and the patch on it
        ({"code_files": NEW, "base_files": OLD}, False),  # the patch on code that base had before
        ({"code_files": OLD, "base_files": {}}, True),  # a commit: its whole tree is what the row changes
        ({"code_files": {"another.py": "1" * 40}}, True),  # nothing in common
        ({"code_files": {}}, True),  # recorded, and none
    ],
)
def test_a_row_that_changes_code_is_compared_by_the_code_beneath_its_change(own, patched, expected):
    table = made(own, base={"code_files": NEW}, patched=patched)
    assert compared(table, "patched") == (expected, expected)


def test_parts_of_built_in_tasks_are_compared_by_their_versions(bench):
    table = made(bench, base={"code_digest": "2"}, other={"code_digest": "1", "stale": True})
    assert compared(table, "other") == (False, False)
    assert "(training code): base; other" in warned(table)


def test_the_mark_is_in_every_format(own):
    table = made(own, base={"code_files": NEW}, other={"code_files": OLD, "stale": True})
    for name in formats():
        text = render(table, name)
        if name in ("csv", "json"):
            assert "stale" in text
        else:
            assert "†" in text or r"\dag" in text, name


def test_the_warning_names_only_rows_that_are_not_compared_and_the_seeds_of_a_row_of_two_codes(own):
    """A row of `commit` is compared whatever its code; of a row that was made again in part, the seeds say which."""
    own.row("base", results=SEEDS, record={"code_files": NEW})
    own.row("mixed", {"model.d_k": 8}, results=BETTER, record={"code_files": OLD})
    own.row("commit", {"model.d_k": 16}, results=BETTER, record={"code_files": OLD, "base_files": {}})
    own.store.results["mixed#3"]["code_files"] = NEW
    table = own.table()
    warning = warned(table)
    assert "(train.py): base, mixed (seed 3); mixed (seeds 1, 2)." in warning
    assert "Seeds of mixed differ in code." in warning
    assert "commit" not in warning
    assert (compared(table, "mixed")[0], compared(table, "commit")[0]) == (False, True)
