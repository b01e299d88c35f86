"""The saved views of a table in MLflow: columns, charts and addresses. That MLflow reads them: tests/browser."""

import base64
import json
import zlib

from experiments.tracking.database import RowLine
from experiments.tracking.page import Chart, Published, Table, _state

LINES = [
    RowLine("base", "", 3, {"model.h": "8", "model.p": "0.1"}, {"num_params": 10.0, "bleu.mean": 25.0}),
    RowLine("h%1", "A", 3, {"model.h": "1", "model.p": "0.1"}, {"num_params": 10.0, "bleu.mean": 24.0}),
]
CHARTS = [Chart("perplexity.mean", "PPL"), Chart("bleu.mean", "BLEU"), Chart("num_params", "parameters"),
          Chart("train_loss", "loss", curve=True)]  # fmt: skip


def state(lines=LINES, charts=CHARTS):
    table = Table("s", "demo", "builtin", "T", "profile demo", [], lines, "", {}, charts, ["bleu.mean", "acc%"], {})
    text = _state(table, "tags.x = 'y'", "tags.`order.s`")
    assert text.startswith("deflate;")
    return json.loads(zlib.decompress(base64.b64decode(text.removeprefix("deflate;"))))


def test_the_columns_are_the_settings_that_vary_and_the_metrics():
    found = state()
    assert found["selectedColumns"] == [
        "params.`model.h`",
        "params.`model.p`",
        "metrics.`bleu.mean`",
        "metrics.`acc_x25_`",
    ]
    assert found["searchFilter"] == "tags.x = 'y'" and found["orderByKey"] == "tags.`order.s`" and found["orderByAsc"]


def test_the_charts_are_of_the_metrics_of_parameters_and_of_settings():
    charts = state()["compareRunCharts"]
    assert [chart["type"] for chart in charts] == ["BAR", "BAR", "BAR", "LINE", "SCATTER", "PARALLEL"]
    assert len({chart["uuid"] for chart in charts}) == len(charts)
    *_, scatter, parallel = charts
    assert (scatter["xaxis"]["key"], scatter["yaxis"]["key"]) == ("num_params", "bleu.mean")
    assert parallel["selectedParams"] == ["model.h"]  # the other is the same everywhere
    assert parallel["selectedMetrics"] == ["bleu.mean"]


def test_without_settings_or_parameters_their_charts_are_left_out():
    lines = [RowLine(key, "", 1, {}, {"bleu.mean": 1.0}) for key in "ab"]
    assert [chart["type"] for chart in state(lines)["compareRunCharts"]] == ["BAR", "BAR", "BAR", "LINE"]
    assert state(lines, [Chart("num_params", "parameters")])["compareRunCharts"][0]["metricKey"] == "num_params"


def test_twenty_rows_have_room_for_the_labels_on_their_bars():
    [section] = state(LINES * 10)["compareRunSections"]
    assert section["cardHeight"] >= 20 * 20


def test_the_links_open_the_mode_for_model_training():
    found = Published("7", "c4a", "115")
    for address in (found.view("http://127.0.0.1:5000/"), found.listing("http://127.0.0.1:5000")):
        assert address.startswith("http://127.0.0.1:5000/#/experiments/7/runs?workflowType=machine_learning&")
    assert "viewStateShareKey=c4a" in found.view("") and "viewStateShareKey=115" in found.listing("")
