"""Which decoding has the plain names in MLflow, and that a rebuilt database equals the grown one."""

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from experiments.store.layout import Store
from tests.unit.experiments.test_tracking_whole import dump

from .conftest import Cli

pytestmark = pytest.mark.slow
OTHER = ("--set", "evaluation.beam_size=1", "--set", "evaluation.length_penalty=0.0")


def scores(store: Path) -> dict[str, float]:
    """MLflow's latest metrics of the only trained run."""
    query = (
        "SELECT m.key, m.value FROM latest_metrics m JOIN tags t ON t.run_uuid = m.run_uuid AND t.key = 'run_id' "
        "JOIN runs r ON r.run_uuid = m.run_uuid AND r.lifecycle_stage = 'active'"
    )
    return dict(sqlite3.connect(store / "mlflow.db").execute(query))


def content(store: Path) -> dict[str, set[Any]]:
    """All but the times of the parent: of runs that began at once, either may have been the first to be seen."""
    found = dump(Store.open(store))
    found["runs"] = {line for line in found["runs"] if line[1] != "tiny · exact · builtin"}
    return dict(found)


def assert_rebuilt_equals_grown(cli: Cli, store: Path) -> None:
    grown = content(store)
    cli("rebuild", "--store", store)
    rebuilt = content(store)
    for table, lines in grown.items():
        assert rebuilt[table] - lines == lines - rebuilt[table] == set(), table


def printed(cli: Cli, tiny: Path, store: Path, *options: str) -> Any:
    from .conftest import as_json

    [row] = as_json(cli("report", tiny, "--rows", "untrained", "--store", store, "--json", *options))
    return row


def test_the_plain_names_are_the_studys_own_decoding_whatever_came_first(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    """Trained with another beam first; then the study's own."""
    store, rows = tmp_path / "store", ("--rows", "untrained")
    cli("run", tiny, *rows, "--store", store, *OTHER)
    first = scores(store)
    assert not {"bleu", "perplexity"} & set(first)
    [other] = [name for name in first if name.startswith("bleu.dev.")]
    assert first[other] == pytest.approx(printed(cli, tiny, store, *OTHER)["bleu"])
    cli("run", tiny, *rows, "--store", store)
    both = scores(store)
    assert both["bleu"] == pytest.approx(printed(cli, tiny, store)["bleu"])
    assert both[other] == first[other]
    assert_rebuilt_equals_grown(cli, store)
    assert scores(store) == both


def test_another_beam_goes_under_its_own_name(cli: Cli, tiny: Path, tmp_path: Path, finished: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(finished, store)
    before = dump(Store.open(store))["latest_metrics"]
    cli("evaluate", tiny, "--seeds", "2", "--store", store, *OTHER)
    after = dump(Store.open(store))["latest_metrics"]
    plain = {"bleu", "perplexity"}
    assert {line for line in before if line[1] in plain} == {line for line in after if line[1] in plain}
    assert sum(line[1].startswith("bleu.dev.") for line in after) == 6
    assert_rebuilt_equals_grown(cli, store)
