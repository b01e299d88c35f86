"""The commits under a table are those that its runs recorded."""

import json

import pytest

from reports.audit.explain import changes_in_short
from reports.audit.verify import verify
from reports.render.formats import render

BASE, OTHER = "1" * 40, "2" * 40


def rows(bench, *, changed=OTHER, dirty=False):
    """Make base and B of one commit, and C of another."""
    bench.row("base", record={"tool": {"version": "9.1", "commit": BASE, "dirty": False}})
    bench.row("B", {"model.d_k": 16}, record={"tool": {"version": "9.1", "commit": BASE, "dirty": False}})
    tool = {"version": "9.1", "commit": changed, "dirty": dirty}
    return bench.row("C", {"model.d_k": 32}, record={"tool": tool})


def code_of(table):
    [note] = [note for note in table.footnotes if note.text.startswith("Code: ")]
    return note


def test_several_commits_are_named_with_their_rows(bench):
    note = code_of(rows(bench, dirty=True).table())
    program = "transformer-ablations 9.1"
    assert note.kind == "sign" and note.text == (
        f"Code: {program}, commit {BASE[:10]} (c0de): base, B; {program}, commit {OTHER[:10]} with uncommitted changes "
        "(kept beside the run) (c0de): C."
    )


def test_one_commit_is_a_note_on_the_setup(bench):
    note = code_of(rows(bench, changed=BASE).table())
    assert note.kind == "setup" and note.text == f"Code: transformer-ablations 9.1, commit {BASE[:10]} (c0de)."


def test_what_the_code_is_now_stands_under_no_table(bench):
    """It is for `plan`; what the rows share is for both."""
    now, shared = "Base's code is now commit 333.", "Each row runs from its own snapshot."
    bench.study |= {"code_note": now, "trees_note": shared}
    bench.notes = (now, shared)
    said = [note.text for note in rows(bench).table().footnotes]
    assert now not in said and shared in said and now in bench.plan().notes


@pytest.mark.parametrize("format_", ["markdown", "latex", "html", "json"])
def test_verify_compares_the_commits_of_a_file_with_those_of_the_runs(bench, format_):
    table = rows(bench).table()
    text = render(table, format_)
    assert verify(text, table, format_).same
    [line] = verify(text.replace(OTHER[:10], "3" * 10), table, format_).changed[:1]
    assert line.startswith("only in the file: ") and f"commit {'3' * 10}" in line
    bench.store.results["C#1"]["tool"]["commit"] = "3" * 40
    found = verify(text, bench.table(), format_)
    assert any(line.startswith("not in the file: ") and f"commit {'3' * 10}" in line for line in found.changed)
    if format_ == "json":
        earlier = [{name: value for name, value in row.items() if name != "notes"} for row in json.loads(text)]
        assert verify(json.dumps(earlier, indent=1, ensure_ascii=False), table, format_).same


def test_an_explanation_names_the_patch_and_not_the_digest_of_its_tree() -> None:
    def of_code(label, changes):
        return changes_in_short(label, changes, changes_code=True)

    assert of_code("patch gelu.diff", {}) == "patch gelu.diff"
    assert of_code("patch gelu.diff, lr = 0.2", {"lr": 0.2}) == "patch gelu.diff, lr = 0.2"
    assert of_code("another unit", {"lr": 0.2}) == "another unit, lr=0.2"
    assert changes_in_short("a label", {"lr": 0.2}, changes_code=False) == "lr=0.2"
