"""A table's links and saved views in MLflow: columns, charts and addresses. That MLflow reads them: tests/browser."""

import base64
import json
import zlib

from experiments.tracking.database import RowLine
from experiments.tracking.page import Chart, Published, Table
from experiments.tracking.saved_views import CREATED, NAME, _state, links

LINES = [
    RowLine("base", "", 3, {"h": "8", "P_drop": "0.1"}, {"num_params": 10.0, "BLEU": 25.0}),
    RowLine("h%1", "A", 3, {"h": "1", "P_drop": "0.1"}, {"num_params": 10.0, "BLEU": 24.0}),
]
CHARTS = [Chart("PPL", "PPL (dev)"), Chart("BLEU", "BLEU (dev)"), Chart("num_params", "parameters"),
          Chart("train_loss", "loss", curve=True)]  # fmt: skip


def state(lines=LINES, charts=CHARTS):
    table = Table("s", "demo", "builtin", "T", "profile demo", [], lines, "", {}, charts, ["BLEU", "acc%"], {})
    text = _state(table, "tags.x = 'y'")
    assert text.startswith("deflate;")
    return json.loads(zlib.decompress(base64.b64decode(text.removeprefix("deflate;"))))


def test_the_columns_are_the_metrics_and_then_the_settings_that_vary():
    found = state()
    columns = ["metrics.`BLEU`", "metrics.`acc_x25_`", "params.`h`", "params.`P_drop`"]
    assert found["selectedColumns"] == columns and found["columnOrder"] == [NAME, CREATED, *columns]
    assert found["searchFilter"] == "tags.x = 'y'"
    assert found["orderByKey"] == "attributes.start_time" and found["orderByAsc"]


def test_no_head_is_cut_and_the_first_columns_fit_beside_an_open_panel():
    widths = state()["columnWidths"]
    assert all(widths[column] >= 30 + 8 * len(column.split("`")[1]) for column in state()["selectedColumns"])
    named = [RowLine("untrained", "", 2, {}, {"BLEU": 1.0})]
    assert state(named)["columnWidths"][NAME] >= 195  # 'untrained · seed 2' below its row
    assert widths[NAME] + widths[CREATED] + widths["metrics.`BLEU`"] <= 400  # of some 710 pixels in a window of 1,300


def test_the_charts_are_of_the_metrics_of_parameters_and_of_settings():
    charts = state()["compareRunCharts"]
    assert [chart["type"] for chart in charts] == ["BAR", "BAR", "BAR", "LINE", "SCATTER", "PARALLEL"]
    assert len({chart["uuid"] for chart in charts}) == len(charts)
    *_, scatter, parallel = charts
    assert (scatter["xaxis"]["key"], scatter["yaxis"]["key"]) == ("num_params", "BLEU")
    assert parallel["selectedParams"] == ["h"]  # the other is the same everywhere
    assert parallel["selectedMetrics"] == ["BLEU"]


def test_without_settings_or_parameters_their_charts_are_left_out():
    lines = [RowLine(key, "", 1, {}, {"BLEU": 1.0}) for key in "ab"]
    assert [chart["type"] for chart in state(lines)["compareRunCharts"]] == ["BAR", "BAR", "BAR", "LINE"]
    assert state(lines, [Chart("num_params", "parameters")])["compareRunCharts"][0]["metricKey"] == "num_params"


def test_twenty_rows_have_room_for_the_labels_on_their_bars():
    [section] = state(LINES * 10)["compareRunSections"]
    assert section["cardHeight"] >= 20 * 20


def test_the_links_open_the_mode_for_model_training():
    table = Published("7", "c4a115")
    documented, (charts, listing) = table.listing("http://127.0.0.1:5000/"), links(table, "http://127.0.0.1:5000")
    for address in (documented, charts, listing):
        assert address.startswith("http://127.0.0.1:5000/#/experiments/7/runs?workflowType=machine_learning&")
    assert "viewStateShareKey=c4a115c&" in charts and "viewStateShareKey=c4a115l&" in listing
    assert "searchFilter=tags.table+%3D+%27c4a115%27&orderByKey=attributes.start_time" in documented
    assert "viewStateShareKey" not in documented  # MLflow ignores a saved view where the address says what to search
