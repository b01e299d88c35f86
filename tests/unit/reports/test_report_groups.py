"""In studies with `within_groups`, each group has its own base and is tested separately."""

import pytest
from scipy import stats

from ablations.study.study import Study
from tests.unit.reports.conftest import Bench, lay_out

SHALLOW = {"post": [(5.0, 20.0), (5.2, 20.4), (5.1, 20.9)], "pre": [(5.1, 20.3), (5.0, 20.6), (5.2, 20.2)]}
DEEP = {"post": [(90.0, 0.0), (80.0, 0.1), (85.0, 0.0)], "pre": [(5.0, 21.0), (5.1, 24.0), (4.9, 22.5)]}


def depths(bench: Bench) -> Bench:
    bench.study["within_groups"] = True
    for layers, rows in ((2, SHALLOW), (6, DEEP)):
        for place, results in rows.items():
            changes = {} if (layers, place) == (2, "post") else {"model.num_layers": layers, "model.norm": place}
            bench.row(f"{place}-{layers}", changes, results=results, group=f"{layers}-layers", paper={"bleu": 20.0})
    return bench


def test_changes_are_from_the_groups_first_row_and_rows_stay_lines(bench: Bench) -> None:
    table = depths(bench).table()
    assert [line.name for line in lay_out(table).lines] == ["post-2", "pre-2", "post-6", "pre-6"]
    assert [row.measures["bleu"].change for row in table.rows] == [
        None,
        pytest.approx(-1 / 15),
        None,
        pytest.approx(22.4667, abs=1e-4),
    ]
    assert table.bases == {"2-layers": "post-2", "6-layers": "post-6"}
    assert any("change from post-2 (2-layers), post-6 (6-layers)" in note for note, *_ in table.footnotes)
    # the two rows of two layers cannot be told apart by these seeds, so none of them is bold
    assert {row.key for row in table.rows if row.measures["ppl"].best} == {"pre-6"}


def test_each_group_is_a_family_of_its_own(bench: Bench) -> None:
    """p-values come from a test of the group alone. The spread of one group does not affect another."""
    table = depths(bench).table()
    for layers, rows in ((2, SHALLOW), (6, DEEP)):
        control, values = ([bleu for _, bleu in rows[place]] for place in ("post", "pre"))
        (test,) = (row.measures["bleu"].test for row in table.rows if row.key == f"pre-{layers}")
        oracles = [stats.ttest_ind(values, control, equal_var=equal).pvalue for equal in (True, False)]
        assert test is not None and test.p == pytest.approx(max(oracles))
        assert test.marked == (layers == 6)
    assert sum(note.startswith("*: ") for note, *_ in table.test_notes) == 1
    ours = [note for note, *_ in table.test_notes if "and its group" in note]
    assert len(ours) == 5  # of two columns in two groups, and that the first group has no star
    assert sum(note.startswith("post-2 and its group: no change has p < .05") for note in ours) == 1


def test_a_row_without_a_group_is_refused() -> None:
    rows = [{"key": "a", "group": "g"}, {"key": "b", "set": {"model.d_k": 8}}]
    with pytest.raises(ValueError, match='"b" has no group'):
        Study.model_validate({"name": "x", "title": "X", "within_groups": True, "variation": rows})
