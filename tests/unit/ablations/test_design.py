"""Rows of designs differ only as declared. Also tests refusals."""

import math

import pytest
from typer.testing import CliRunner

from ablations.cli.main import app
from ablations.study.study import load_study
from ablations.study.study_file import MANY_ROWS
from experiments.errors import UserError

BASE = '[[variation]]\nkey = "base"\n'
RATES = "training.label_smoothing = [0.0, 0.2], model.dropout = [0.0, 0.2, 0.3]"


def keys(study):
    return [row.key for row in study.variations]


def test_one_factor_at_a_time(own_study, rows_of):
    study = own_study(BASE + f'[[variation]]\nkey = "D"\nvary = {{{RATES}}}\n')
    names = ["D-label_smoothing0.0", "D-label_smoothing0.2", "D-dropout0.0", "D-dropout0.2", "D-dropout0.3"]
    assert keys(study) == ["base", *names]
    assert all(len(row.overrides) == 1 for key, row in rows_of(study).items() if key != "base")
    assert {row.group for row in study.variations[1:]} == {"D"}


def test_a_full_grid_has_every_combination_once(own_study, rows_of):
    study = own_study(
        BASE + f'[[variation]]\nkey = "g"\ngroup = "G"\nseeds = 3\nset = {{model.d_ff = 64}}\ngrid = {{{RATES}}}\n'
    )
    rows = rows_of(study)
    assert len(rows) == 1 + 2 * 3
    combinations = {tuple(sorted(row.overrides.items())) for key, row in rows.items() if key != "base"}
    assert len(combinations) == 6 and all(dict(c)["model.d_ff"] == 64 for c in combinations)
    assert rows["g-label_smoothing0.2-dropout0.3"].seeds == (1, 2, 3) and rows["base"].seeds == (1,)


def test_settings_that_change_together_are_one_factor(own_study, rows_of):
    sizes = ((1, 512), (16, 32))
    heads = ", ".join(f"{{model.num_heads = {h}, model.d_k = {d}, model.d_v = {d}}}" for h, d in sizes)
    rows = rows_of(own_study(BASE + f'[[variation]]\nkey = "A"\nvary = {{heads = [{heads}]}}\n'))
    assert list(rows) == ["base", "A-heads1", "A-heads16"]
    assert rows["A-heads16"].overrides == {"model.num_heads": 16, "model.d_k": 32, "model.d_v": 32}


def test_leaving_one_component_out(own_study, rows_of):
    study = own_study(
        BASE + '[[variation]]\nkey = "without"\n'
        'remove = {dropout = {model.dropout = 0.0}, positions = {model.positions = "none"}}\n'
    )
    rows = rows_of(study)
    assert list(rows) == ["base", "without-dropout", "without-positions"]
    assert rows["without-positions"].overrides == {"model.positions": "none"}
    assert [row.label for row in study.variations] == ["", "without dropout", "without positions"]


def test_switches_are_turned_off(own_study, rows_of):
    study = own_study(BASE + '[[variation]]\nkey = "no"\nremove = ["model.shared_vocabulary"]\n')
    assert rows_of(study)["no-shared_vocabulary"].overrides == {"model.shared_vocabulary": False}


def test_values_that_include_bases_give_base_once(own_study, rows_of, plan_of):
    study = own_study(BASE + '[[variation]]\nkey = "P"\nvary = {model.dropout = [0.0, 0.1, 0.2]}\n')
    assert list(rows_of(study)) == ["base", "P-dropout0.0", "P-dropout0.2"]
    assert "P-dropout0.1 equals base and is printed once." in plan_of(study).notes


def test_a_grid_without_a_base_row_keeps_it(own_study, rows_of):
    study = own_study('[[variation]]\nkey = "P"\ngrid = {model.dropout = [0.1, 0.2]}\n')
    assert list(rows_of(study)) == ["P-dropout0.1", "P-dropout0.2"]


@pytest.mark.parametrize(
    ("design", "words"),
    [
        ("vary = {model.dropout = 0.1}", ["model.dropout = 0.1", "a list of values"]),
        ("vary = [0.1]", ["a table of factors"]),
        ("vary = {}", ["no values"]),
        ("grid = {model.dropout = []}", ["no values"]),
        ("remove = {}", ["no values"]),
        ("remove = 3", ["a list of settings to turn off"]),
        ("vary = {model.dropout = [0.1]}\ngrid = {model.dropout = [0.1]}", ["vary and grid", "one design"]),
        ('vary = {model.dropout = [0.1]}\nlabel = "x"', ["label belongs to a single row"]),
        ("vary = {model.dropout = [0.3, 0.3]}", ["x-dropout0.3", "twice"]),
    ],
)
def test_mistakes(own_study, mistake, design, words):
    message = mistake(own_study, f'{BASE}[[variation]]\nkey = "x"\n{design}\n')
    assert all(word in message for word in words), message


def test_an_unknown_setting_in_a_design(own_study, rows_of, mistake):
    study = own_study(BASE + '[[variation]]\nkey = "x"\nvary = {model.droput = [0.1]}\n')
    assert "model.dropout" in mistake(rows_of, study)


def test_over_ten_thousand_rows_are_asked_for_before_they_are_written_out(tmp_path, mistake):
    path = tmp_path / "large.toml"
    values = list(range(1, 1001))
    path.write_text(
        f'name = "l"\ntitle = "L"\n[[variation]]\nkey = "g"\ngrid = {{a = {values}, b = {values}, c = {values}}}\n'
    )
    message = mistake(load_study, str(path))
    assert "1,000,000,000 rows" in message and "--yes" in message and '"g"' in message


def test_ten_thousand_and_one_rows_on_demand(tmp_path, mistake):
    path = tmp_path / "large.toml"
    side = math.isqrt(MANY_ROWS) + 1
    values = [round(0.001 * n, 3) for n in range(side)]
    grid = f"grid = {{model.dropout = {values}, training.label_smoothing = {values}}}"
    path.write_text(f'name = "l"\ntitle = "L"\n[[variation]]\nkey = "g"\n{grid}\n')
    assert "10,201 rows" in mistake(load_study, str(path))
    assert len(load_study(str(path), many=True).variations) == side * side


@pytest.mark.parametrize("verb", ["plan", "queue", "run", "tune"])
@pytest.mark.process
def test_no_verb_begins_so_much_unasked(verb, tmp_path):
    path = tmp_path / "large.toml"
    grid = f"grid = {{a = {list(range(101))}, b = {list(range(101))}}}"
    path.write_text(f'name = "l"\ntitle = "L"\n[[variation]]\nkey = "g"\n{grid}\n')
    done = CliRunner().invoke(app, [verb, str(path), "--store", str(tmp_path / "store")])
    assert isinstance(done.exception, UserError) and "add --yes" in str(done.exception)
    assert not (tmp_path / "store").exists()
