"""Published numbers that no run measures are printed in separate columns, in every format."""

import csv
import io
import json

import pytest

from ablations.planning.resolve import resolve
from ablations.study.selectors import selection
from ablations.study.study import Study
from experiments.errors import UserError
from experiments.tasks.load import load_task
from reports.audit.verify import verify
from reports.render.formats import render
from reports.results.table import Table
from tests.unit.reports.conftest import Bench


@pytest.fixture
def table(bench: Bench) -> Table:
    bench.study["published"] = {"early_loss": "early loss"}
    bench.paper_keys = ("perplexity", "bleu", "params", "early_loss")
    bench.row("base", paper={"early_loss": 2.182, "bleu": 26.6}).row("gelu", {"model.activation": "gelu"})
    return bench.row("rezero", {"model.residual_scale": "rezero"}, paper={"early_loss": 2.2}).table()


@pytest.mark.parametrize("form", ["markdown", "latex", "html"])
def test_a_column_with_the_paper_s_digits_which_verify_reads_again(table: Table, form: str) -> None:
    printed = render(table, form)
    assert "early" in printed and "loss" in printed and "(paper)" in printed
    assert "2.182" in printed and "2.200" in printed
    assert verify(printed, table, form).same
    assert not verify(printed.replace("2.182", "2.181"), table, form).same


def test_json_and_csv_have_them_by_name(table: Table) -> None:
    rows = {row["row"]: row for row in json.loads(render(table, "json"))}
    assert [rows[key]["paper"]["early_loss"] for key in ("base", "gelu", "rezero")] == [2.182, None, 2.2]
    read = {row["row"]: row for row in csv.DictReader(io.StringIO(render(table, "csv")))}
    assert [read[key]["paper_early_loss"] for key in ("base", "gelu", "rezero")] == ["2.182", "", "2.2"]


def refusal(**parts: object) -> str:
    row = {"key": "base", "paper": {"early_loss": 2.0}}
    study = Study.model_validate({"name": "s", "title": "S", "variation": [row], "origin": "s.toml", **parts})
    with pytest.raises(UserError) as refused:
        resolve(study, selection(), load_task("translation"))
    return str(refused.value)


def test_a_number_without_a_head_and_a_head_for_a_column_of_the_table_are_refused() -> None:
    assert "'early_loss'. Nearest:" in refusal()
    heads = {"early_loss": "early loss", "bleu": "BLEU"}
    assert "s.toml, [published]: the table of the task translation has a column for 'bleu'" in refusal(published=heads)
