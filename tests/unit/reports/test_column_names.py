"""A name that several columns share is refused wherever a column's name is expected."""

from dataclasses import replace

import pytest

from experiments.errors import UserError
from experiments.tasks.columns import Column, named
from reports.audit.explain import explain
from reports.render.numbers import fill, numbers
from reports.render.printed import printed
from reports.spec.choices import Choices
from reports.table import build
from reports.table.claims import UNKNOWN

TWO = (
    Column("acc_test", "test", "perplexity", "acc (test)", "higher", 2),
    Column("acc_dev", "dev", "perplexity", "acc (dev)", "higher", 2),
)
BOTH = "perplexity may be acc_test or acc_dev: write one of them."


@pytest.fixture
def two(bench, monkeypatch):
    """Return a table of two columns with one metric."""
    bench.row("base", results=[(5.0, 25.0)], sets=("test", "dev"))
    bench.row("gelu", {"model.d_k": 8}, results=[(6.0, 25.0)], sets=("test", "dev"))
    bench.row("gel", {"model.d_k": 16}, results=[(7.0, 25.0)], sets=("test", "dev"))
    bench.study["claim"] = [{"check": "gelu is better than base in perplexity"}]
    return build.build_table(bench.spec(TWO), bench.store, "none")


def test_a_key_is_one_column_and_a_metric_of_two_is_refused():
    assert named("acc_dev", TWO) is TWO[1] and named("loss", TWO) is None
    assert named("perplexity", TWO[:1]) is TWO[0]
    assert named("", TWO) is None  # columns without a name in published results have "" there
    with pytest.raises(UserError, match=BOTH):
        named("perplexity", TWO)


def test_explain_columns_digits_and_claims_refuse_it(two):
    for ask in (
        lambda: explain(two, "gelu.perplexity"),
        lambda: printed(replace(two, chosen=Choices(columns=("perplexity",))), "markdown"),
        lambda: printed(replace(two, chosen=Choices(digits={"perplexity": 3})), "markdown"),
    ):
        with pytest.raises(UserError, match=BOTH):
            ask()
    (claim,) = two.claims
    assert claim.here.state == UNKNOWN and claim.here.words == BOTH.rstrip(".")


def test_fill_offers_numbers_of_the_same_row_first(two):
    with pytest.raises(UserError, match=r"no number 'gelu.acc.change'. Nearest numbers: gelu\.acc_\w+\.change"):
        fill("{{gelu.acc.change}}", numbers(two))
