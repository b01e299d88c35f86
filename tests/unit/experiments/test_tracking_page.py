"""Tests of the link to a table's rows in MLflow. tests/browser checks that MLflow's page accepts it."""

from urllib.parse import parse_qs, urlsplit

from experiments.tracking.page import Published


def test_the_link_opens_the_rows_in_the_mode_for_model_training():
    address = Published("7", "c4a115").listing("http://127.0.0.1:5000/")
    assert address.startswith("http://127.0.0.1:5000/#/experiments/7/runs?")
    found = parse_qs(urlsplit(urlsplit(address).fragment).query)
    assert found["searchFilter"] == ["tags.table = 'c4a115'"] and found["workflowType"] == ["machine_learning"]
    assert (found["orderByKey"], found["orderByAsc"]) == (["attributes.start_time"], ["true"])
