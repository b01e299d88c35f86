"""What an installed package adds by entry points, without a fork of this program."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments import extensions
from experiments.errors import UserError
from experiments.jobs.engines.load import engine_class, load_engine
from experiments.jobs.engines.local import LocalEngine
from experiments.store.layout import Store
from experiments.tasks import load
from experiments.tasks.translation import Translation
from experiments.tracking.sinks.sink import check_sink, folder_of
from reports.render.formats import formats, render
from tests.unit.reports.conftest import Bench

PACKAGE = """
from experiments.jobs.engines.local import LocalEngine
from experiments.tasks.translation import Translation

class Retrieval(Translation):
    name = "retrieval"

class Queue(LocalEngine):
    name = "queue"

class Lines:
    def __init__(self, store, folder):
        self.folder = folder
    def sync(self, run): ...
    def close(self): ...

TASK = Retrieval()

def rows(table):
    return " ".join(row.key for row in table.rows) + "\\n"
"""
ENTRIES = """
[ablations.tasks]
retrieval = a_package:TASK
[ablations.engines]
queue = a_package:Queue
[ablations.sinks]
lines = a_package:Lines
[ablations.formats]
rows = a_package:rows
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package as pip leaves it in site-packages."""
    (tmp_path / "a_package.py").write_text(PACKAGE)
    about = tmp_path / "a_package-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: a-package\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(str(tmp_path))
    extensions.added.cache_clear()
    yield
    extensions.added.cache_clear()


@pytest.mark.usefixtures("installed")
def test_a_task_of_a_package_is_known_by_its_name() -> None:
    task = load.load_task("retrieval")
    assert isinstance(task, Translation) and task.name == "retrieval" and not load.trains_apart("retrieval")
    assert task.code.keys() == {"likelihood", "decode", "score"}


@pytest.mark.process
@pytest.mark.usefixtures("installed")
def test_an_engine_of_a_package_starts_children(tmp_path: Path) -> None:
    assert issubclass(engine_class("queue"), LocalEngine)
    engine = load_engine("queue", {}, tmp_path, 1)
    engine.close()
    assert engine.name == "queue"


@pytest.mark.usefixtures("installed")
def test_a_sink_of_a_package_gets_runs(tmp_path: Path) -> None:
    check_sink("lines")
    store = Store.open(tmp_path / "store")
    made = extensions.load(extensions.added("sinks")["lines"])(store, folder_of(store, "lines"))
    assert made.folder == folder_of(store, "lines")
    with pytest.raises(UserError, match="tensorboard, wandb, lines"):
        check_sink("nothing")


@pytest.mark.usefixtures("installed")
def test_a_format_of_a_package_prints_tables(bench: Bench) -> None:
    table = bench.row("base", results=[(5.0, 27.0)]).table()
    assert render(table, "rows").split() == [row.key for row in table.rows] and formats()[-1] == "rows"
