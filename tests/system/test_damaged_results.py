"""A result that was changed on disk gives a gap and a warning that names the file, never a wrong number."""

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.store.checksummed import read_json, write_json
from reports.audit.verify import lasting
from tests.flips import printed

from .conftest import Cli


@pytest.fixture
def store(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "store"))


def _places(store: Path) -> list[Path]:
    """Return the folders of the dev set's evaluations."""
    found = sorted(store.glob("runs/*/evaluations/*/result.json"))
    return [path.parent for path in found if _record(path)["set"] == "dev"]


def _record(path: Path) -> dict[str, Any]:
    record = read_json(path)
    assert record is not None
    return record


def _rewritten(path: Path, record: dict[str, Any]) -> None:
    path.unlink()  # the file is hard-linked to the attempt's copy, which must not change
    write_json(path, record)


def _digit(place: Path, _: Path) -> str:
    path = place / "result.json"
    text, value = path.read_text(), _record(path)["metrics"]["perplexity"]
    path.write_text(text.replace(str(value), str(value + 100)))
    return "checksum"


def _metric(place: Path, _: Path) -> str:
    """Change a metric so that it contradicts the record's counts, with a correct checksum."""
    record = _record(place / "result.json")
    record["metrics"]["bleu"] += 20.0
    _rewritten(place / "result.json", record)
    return "the counts beside it give"


def _statistics(place: Path, _: Path) -> str:
    path = place / "statistics.npy"
    np.save(path, np.load(path)[::-1])
    return "statistics.npy has changed since it was written"


def _settings(place: Path, _: Path) -> str:
    record = _record(place.parents[1] / "result.json")
    record["spec"]["config"]["model"]["dropout"] = 0.5
    _rewritten(place.parents[1] / "result.json", record)
    return "model.dropout = 0.5, and the plan has 0.1"


def _decoding(place: Path, _: Path) -> str:
    record = _record(place / "result.json")
    record["settings"]["beam_size"] = 1
    _rewritten(place / "result.json", record)
    return "other settings than the plan"


def _swapped(place: Path, other: Path) -> str:
    _rewritten(place / "result.json", _record(other / "result.json"))
    return "is the record of another run_id"


@pytest.mark.parametrize("harm", [_digit, _metric, _statistics, _settings, _decoding, _swapped])
def test_what_cannot_be_believed_is_a_gap_with_its_reason(tiny: Path, store: Path, harm: Any) -> None:
    whole, [place, other, *_] = printed(tiny, store, 2), _places(store)
    assert not any("damaged" in text for text in whole.values())
    reason = harm(place, other)
    for format_, text in printed(tiny, store, 2).items():
        assert reason in text, format_
        assert str(place.parents[1].relative_to(store)) in text, "the warning names the file, within the store"
        assert str(store) not in text
        assert format_ not in ("markdown", "latex", "html") or "damaged" in text, "the cell says so"


def test_what_was_deleted_as_advised_is_made_again(cli: Cli, tiny: Path, store: Path) -> None:
    whole, [place, *_] = printed(tiny, store, 2, "short"), _places(store)
    _digit(place, place)
    (place / "result.json").unlink()
    cli("run", tiny, "--seeds", "2", "--store", store, "--devices", "cpu:1")
    assert _lasting(printed(tiny, store, 2, "short")) == _lasting(whole)


def _lasting(texts: dict[str, str]) -> dict[str, str]:
    """Remove the parts of printed tables that another attempt changes: costs and dates."""
    lines = {name: lasting(text, name).partition("**What it cost**")[0] for name, text in texts.items()}
    return {name: re.sub(r"\d{4}-\d\d-\d\d", "a day", text) for name, text in lines.items()}
