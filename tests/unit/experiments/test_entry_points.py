"""What an installed package adds by entry points, without a fork of this program."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.tasks import load
from experiments.tasks.translation import Translation

PACKAGE = """
from experiments.tasks.translation import Translation

class Retrieval(Translation):
    name = "retrieval"

TASK = Retrieval()
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package as pip leaves it in site-packages."""
    (tmp_path / "retrieval_task.py").write_text(PACKAGE)
    about = tmp_path / "retrieval_task-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: retrieval-task\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[ablations.tasks]\nretrieval = retrieval_task:TASK\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    load.named_tasks.cache_clear()
    yield
    load.named_tasks.cache_clear()


@pytest.mark.usefixtures("installed")
def test_a_task_of_a_package_is_known_by_its_name() -> None:
    task = load.load_task("retrieval")
    assert isinstance(task, Translation) and task.name == "retrieval" and not load.trains_apart("retrieval")
    assert task.code.keys() == {"training", "likelihood", "decode", "score"}
