"""Tests of the program's own studies: Table 3 as printed, and the controls."""

import subprocess
import sys

import pytest

from ablations.study.study import load_study
from ablations.study.study_file import builtin_studies
from model.cost import num_params

# Vaswani et al. 2017, Table 3, read again from the paper: key, perplexity, BLEU, params (millions, where printed).
PRINTED = """
base 4.92 25.8 65
A-h1 5.29 24.9 -
A-h4 5.00 25.5 -
A-h16 4.91 25.8 -
A-h32 5.01 25.4 -
B-dk16 5.16 25.1 58
B-dk32 5.01 25.4 60
C-N2 6.11 23.7 36
C-N4 5.19 25.3 50
C-N8 4.88 25.5 80
C-dmodel256 5.75 24.5 28
C-dmodel1024 4.66 26.0 168
C-dff1024 5.12 25.4 53
C-dff4096 4.75 26.2 90
D-pdrop0.0 5.77 24.6 -
D-pdrop0.2 4.95 25.5 -
D-els0.0 4.67 25.3 -
D-els0.2 5.47 25.7 -
E-learned 4.92 25.7 -
big 4.33 26.4 213
"""


@pytest.fixture(scope="module")
def table3():
    return load_study("table3")


def test_every_builtin_study_loads_under_its_own_name():
    assert {"table3", "controls"} <= set(builtin_studies())
    assert [load_study(name).name for name in builtin_studies()] == builtin_studies()


def test_rows_and_published_numbers_are_the_papers(table3):
    lines = [line.split() for line in PRINTED.split("\n") if line]
    assert [row.key for row in table3.variations] == [line[0] for line in lines]
    for row, (_, *numbers) in zip(table3.variations, lines, strict=True):
        names = ("perplexity", "bleu", "params")
        assert row.paper == {n: float(v) for n, v in zip(names, numbers, strict=True) if v != "-"}, row.key


def test_paper_profile_keeps_the_tables_invariants(table3, rows_of):
    rows = {key: row.config for key, row in rows_of(table3, profile="paper").items()}
    for key in ("A-h1", "A-h4", "A-h16", "A-h32"):
        model = rows[key].model
        assert model.num_heads == int(key.removeprefix("A-h"))
        assert model.num_heads * model.d_k == model.num_heads * model.d_v == model.d_model == 512, key
    for key in ("B-dk16", "B-dk32"):
        assert rows[key].model.d_k == int(key.removeprefix("B-dk"))
        assert rows[key].model.d_v == 64, "row (B) varies d_k alone"
    for key in ("C-dmodel256", "C-dmodel1024"):
        model = rows[key].model
        assert model.num_heads * model.d_k == model.num_heads * model.d_v == model.d_model, key
        assert model.d_model == int(key.removeprefix("C-dmodel"))
    big = rows["big"]
    assert (big.model.d_model, big.model.d_ff, big.model.num_heads, big.model.d_k) == (1024, 4096, 16, 64)
    assert (big.model.num_layers, big.model.dropout, big.training.train_steps) == (6, 0.3, 300_000)


def test_base_of_the_paper_profile_is_the_configurations_defaults(table3, rows_of):
    config = rows_of(table3, profile="paper", rows="base")["base"].config
    assert config == type(config)()


def test_counted_parameters_round_to_the_printed_column_except_for_big(table3, rows_of):
    """Counts use tensor2tensor's vocabulary of 40,960 rows (wmt_ende_bpe32k). No known vocabulary gives big's 213."""
    rows = rows_of(table3, profile="paper", sets=["data.vocab_size=40960"])
    printed = {key: row.variation.paper["params"] for key, row in rows.items() if "params" in row.variation.paper}
    millions = {key: num_params(rows[key].config.model, rows[key].config.data.vocab_size) / 1e6 for key in printed}
    assert len(printed) == 11
    assert [key for key in printed if round(millions[key]) != printed[key]] == ["big"]
    assert round(millions["big"], 1) == 218.3
    assert "213" in rows["big"].variation.note and "218.3" in rows["big"].variation.note


def test_demo_profile_is_an_eighth_as_wide_with_heads_of_a_quarter_and_half_as_deep(table3, rows_of):
    paper, demo = (rows_of(table3, profile=name) for name in ("paper", "demo"))
    assert len(demo) == 20
    for key, row in demo.items():
        large, small = paper[key].config.model, row.config.model
        assert (8 * small.d_model, 8 * small.d_ff) == (large.d_model, large.d_ff), key
        assert (4 * small.d_k, 4 * small.d_v) == (large.d_k, large.d_v), key
        assert 2 * small.num_layers == large.num_layers, key
        same = ("num_heads", "dropout", "positions", "norm")
        assert [getattr(small, n) for n in same] == [getattr(large, n) for n in same], key
        assert row.config.training.label_smoothing == paper[key].config.training.label_smoothing, key
        assert set(row.overrides) == set(paper[key].overrides) - set(load_study("table3").profiles["demo"].set), key
    assert [demo[k].config.model.num_layers for k in ("C-N2", "C-N4", "base", "C-N8")] == [1, 2, 3, 4]
    assert [demo[k].config.model.d_k for k in ("A-h1", "A-h4", "base", "A-h16", "A-h32")] == [128, 32, 16, 8, 4]


@pytest.mark.parametrize("profile", ["demo", "small", "paper"])
def test_controls_change_what_they_say_in_every_profile(profile, plan_of):
    runs = {run.row: run for run in plan_of(load_study("controls"), profile=profile).runs}
    assert runs["no-positions"].planned_row.overrides == {"model.positions": "none"}
    for side, other in (("encoder", "decoder"), ("decoder", "encoder")):
        model = runs[f"no-{side}-attention"].config.model
        kinds = {one: {part.kind for layer in model.layers(one) for part in layer} for one in (side, other)}
        assert "self_attention" in kinds[other] and "self_attention" not in kinds[side]
        assert "feed_forward" in kinds[side] & kinds[other] and "cross_attention" in kinds["decoder"]
    assert runs["untrained"].planned_row.overrides == {"training.train_steps": 0}
    assert runs["base-again"].planned_row.overrides == {}
    assert (runs["base"].seed, runs["base-again"].seed) == (1, 1001)
    assert runs["base"].run_id != runs["base-again"].run_id


def test_base_of_controls_is_the_same_run_as_base_of_table3(table3, plan_of):
    ids = {plan_of(study, rows="base").runs[0].run_id for study in (table3, load_study("controls"))}
    assert len(ids) == 1


@pytest.mark.process
def test_planning_imports_neither_torch_nor_pandas_nor_mlflow():
    code = (
        "import sys, ablations.planning.plan, ablations.study.study; ablations.study.study.load_study('table3'); "
        "print(sorted({'torch', 'pandas', 'mlflow', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
