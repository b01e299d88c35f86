"""Tests of what a command line selects: rows, groups, seeds and corpus."""

import pytest

from ablations.study.selectors import Selection, only_row, selection
from ablations.study.study import load_study

BASE = '[[variation]]\nkey = "base"\n'


def keys(rows):
    return list(rows)


def test_rows_by_key_and_group_keep_the_tables_order(rows_of):
    table3 = load_study("table3")
    assert keys(rows_of(table3, rows="B")) == ["B-dk16", "B-dk32"]
    assert keys(rows_of(table3, rows="big, B ,base,B-dk16")) == ["base", "B-dk16", "B-dk32", "big"]
    assert len(rows_of(table3)) == 20


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ("A-h2", "no row or group 'A-h2'. Nearest rows and groups: A-h"),
        ("a", "no row or group 'a'. Nearest rows and groups: A."),
        ("base,bigg", "no row or group 'bigg'. Nearest rows and groups: big."),
        ("qqq", "no row or group 'qqq'. The rows and groups are: base, A-h1,"),
        ("A,,B", "names an empty row"),
        ("", "names an empty row"),
    ],
)
def test_unknown_rows_list_the_nearest(rows_of, mistake, rows, expected):
    assert expected in mistake(rows_of, load_study("table3"), rows=rows)


def test_a_name_of_a_row_and_of_a_group_of_others_is_refused(own_study, rows_of, mistake):
    both = BASE + "".join(
        f'[[variation]]\nkey = "{key}"\ngroup = "{group}"\nset = {{model.d_k = {size}}}\n'
        for key, group, size in (("a", "b", 8), ("b", "c", 16), ("d", "d", 32))
    )
    study = own_study(both)
    assert "has a row and a group 'b' (the group's rows: a). Write row:b or group:b" in mistake(
        rows_of, study, rows="b"
    )
    assert keys(rows_of(study, rows="row:b,base")) == ["base", "b"]
    assert keys(rows_of(study, rows="group:b")) == ["a"]
    assert keys(rows_of(study, rows="d")) == keys(rows_of(study, rows=only_row(study, "d"))) == ["d"]
    assert keys(rows_of(study, rows=only_row(study, "b"))) == ["b"] and only_row(study, "a") == "a"
    assert "has no group 'a'. Nearest rows and groups: a" in mistake(rows_of, study, rows="group:a")


def test_seeds_of_command_line_row_and_study(own_study, rows_of):
    study = own_study("seeds = 2\n" + BASE + "seeds = 4\n[[variation]]\nkey = 'x'\nset = {model.d_k = 8}\n")
    assert {k: r.seeds for k, r in rows_of(study).items()} == {"base": (1, 2, 3, 4), "x": (1, 2)}
    assert {k: r.seeds for k, r in rows_of(study, seeds=3).items()} == {"base": (1, 2, 3), "x": (1, 2, 3)}


def test_more_seeds_than_a_plan_can_hold_are_a_slip(own_study, mistake):
    assert "at most 10000" in mistake(selection, seeds=100_000_000)
    text = 'seeds = 100_000_000\n[[variation]]\nkey = "base"\n'
    assert "seeds = 100000000: it must be at most 10000" in mistake(own_study, text)


def test_corpus_given_twice(mistake):
    assert "name different corpora" in mistake(selection, corpus="builtin", sets=["data.corpus=/x"])
    assert selection(corpus="/x", sets=["data.corpus=/x"]).forced == {"data.corpus": ("/x", "--corpus")}


def test_nothing_given_forces_nothing():
    assert selection() == Selection()
    assert Selection().forced == {}
