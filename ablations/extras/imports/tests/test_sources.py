"""Sources of runs that cannot be read, and addresses with passwords."""

import json
import os
import time

import pytest

from ablations.extras.imports.external import ExternalRun, collect
from ablations.extras.imports.mlflow_runs import read_mlflow
from experiments.errors import UserError
from model.extensions import added, load
from tests.unit.experiments.test_masked_credentials import ADDRESSES, SECRET


@pytest.mark.parametrize("kind", ["csv", "wandb"])
def test_a_pipe_is_no_source_of_runs(tmp_path, kind):
    os.mkfifo(tmp_path / "runs.csv")
    with pytest.raises(UserError, match=r"runs\.csv: it is not a regular file"):
        collect(kind, str(tmp_path / "runs.csv"), load(added("readers")[kind]))


@pytest.mark.parametrize("address", ADDRESSES[:5])
def test_neither_source_nor_settings_of_imported_runs_have_it(address):
    def read(_):
        yield ExternalRun("a", settings={"db": address, "x": [address]}, labels={"l": address}, metrics={"acc": 1.0})

    found = collect("mlflow", address, read)
    assert SECRET not in json.dumps([found.source, *(dict(run.settings) for run in found.runs)])

    def fail(_):
        raise OSError(f"cannot connect to {address}")

    with pytest.raises(UserError) as failed:
        collect("mlflow", address, fail)
    assert SECRET not in str(failed.value) and "cannot connect" in str(failed.value)


def test_an_import_from_a_server_that_is_down_ends_at_once(monkeypatch):
    monkeypatch.delenv("http_proxy", raising=False)
    began = time.monotonic()
    with pytest.raises(UserError) as failed:
        collect("mlflow", f"http://user:{SECRET}@127.0.0.1:1#e", read_mlflow)
    assert time.monotonic() - began < 10 and SECRET not in str(failed.value) and "127.0.0.1:1" in str(failed.value)
