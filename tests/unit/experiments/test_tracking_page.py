"""A table's links and saved views in MLflow: columns and addresses. That MLflow reads them: tests/browser."""

import base64
import json
import zlib

from experiments.tracking.database import RowLine
from experiments.tracking.page import Published, Table
from experiments.tracking.saved_views import CREATED, NAME, _state, link

LINES = [
    RowLine("base", "", 3, {"h": "8", "P_drop": "0.1"}, {"num_params": 10.0, "BLEU": 25.0}),
    RowLine("h%1", "A", 3, {"h": "1", "P_drop": "0.1"}, {"num_params": 10.0, "BLEU": 24.0}),
]


def state(lines=LINES):
    columns = ["BLEU", "acc%", "ΔBLEU"]
    table = Table("s", "demo", "builtin", "T", "profile demo", [], lines, "", {}, columns, {}, ["BLEU sd"])
    text = _state(table, "tags.x = 'y'")
    assert text.startswith("deflate;")
    return json.loads(zlib.decompress(base64.b64decode(text.removeprefix("deflate;"))))


def test_the_columns_are_values_and_changes_then_the_settings_that_vary_then_deviations():
    found = state()
    columns = ["metrics.`BLEU`", "metrics.`acc_x25_`", "metrics.`ΔBLEU`", "params.`h`", "params.`P_drop`"]
    columns.append("metrics.`BLEU sd`")
    assert found["selectedColumns"] == columns and found["columnOrder"] == [NAME, CREATED, *columns]
    assert found["searchFilter"] == "tags.x = 'y'"
    assert found["orderByKey"] == "attributes.start_time" and found["orderByAsc"]


def test_no_head_is_cut_and_the_first_columns_fit_beside_an_open_panel():
    widths = state()["columnWidths"]
    assert all(widths[column] >= 30 + 8 * len(column.split("`")[1]) for column in state()["selectedColumns"])
    named = [RowLine("untrained", "", 2, {}, {"BLEU": 1.0})]
    assert state(named)["columnWidths"][NAME] >= 195  # 'untrained · seed 2' below its row
    assert widths[NAME] + widths[CREATED] + widths["metrics.`BLEU`"] <= 400  # of some 710 pixels in a window of 1,300


def test_the_links_open_the_mode_for_model_training():
    table = Published("7", "c4a115")
    documented, saved = table.listing("http://127.0.0.1:5000/"), link(table, "http://127.0.0.1:5000")
    for address in (documented, saved):
        assert address.startswith("http://127.0.0.1:5000/#/experiments/7/runs?workflowType=machine_learning&")
    assert "viewStateShareKey=c4a115&" in saved
    assert "searchFilter=tags.table+%3D+%27c4a115%27&orderByKey=attributes.start_time" in documented
    assert "viewStateShareKey" not in documented  # MLflow ignores a saved view where the address says what to search
