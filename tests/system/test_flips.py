"""A short version of `python -m tests.chaos flips`: a damaged file is refused, harmless, or named in the table."""

import shutil
from pathlib import Path

import pytest

from experiments.store.layout import Store
from tests.flip_kinds import all_kinds, corpus, others, queue, results
from tests.flips import Kind, Printing, flip_all, make_store

from .conftest import Cli

SEED = 2017


@pytest.fixture
def store(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "store"))


@pytest.mark.nightly
def test_no_harm_to_a_result_or_to_the_queue_is_silent(tiny: Path, store: Path) -> None:
    table = Printing(tiny, store, seeds=2, verbs=False)
    done = flip_all([*results(store, table), *queue(Store.open(store, create=False), table)], SEED, most=4)
    assert done["kinds"]["training result"]["said"] >= 8, "flips are seen at all"


@pytest.mark.nightly
def test_no_harm_to_a_corpus_or_a_trainers_checkpoint_is_silent(store: Path, tmp_path: Path) -> None:
    opened = Store.open(store, create=False)
    done = flip_all([*corpus(store), *others(opened, tmp_path)], SEED, most=4)
    assert done["kinds"]["corpus tokenizer.model"] == {"refused": 12}


@pytest.mark.nightly
def test_silent_harm_and_a_traceback_are_found(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\x00")
    with pytest.raises(AssertionError, match=r"a byte, bit 3 of .*silent[\s\S]*gone of .*traceback: FileNotFound"):
        flip_all([Kind("a byte", tmp_path / "file", (tmp_path / "file").read_bytes)], SEED)


@pytest.mark.nightly
def test_no_harm_to_any_kind_of_file_is_silent(tmp_path: Path) -> None:
    study, root = make_store(tmp_path / "made")
    done = flip_all(all_kinds(study, root, tmp_path), SEED, most=50)
    assert done["harms"] > 1600


@pytest.mark.nightly
def test_a_swapped_tokenizer_decodes_nothing(cli: Cli, tiny: Path, store: Path) -> None:
    place = min(store.glob("runs/*/evaluations/*/result.json")).parent
    tokenizer = place.parents[1] / "attempts/0001/final/tokenizer.model"
    data = bytearray(tokenizer.read_bytes())
    data[len(data) // 2] ^= 1
    tokenizer.write_bytes(data)
    shutil.rmtree(place)
    done = cli("run", tiny, "--seeds", "2", "--store", store, "--devices", "cpu:1", code=1)
    assert "1 failed" in done.stderr
    assert "tokenizer.model has changed since it was written" in cli("status", "--store", store).stdout
    assert not place.exists()


@pytest.mark.slow
def test_a_damaged_corpus_trains_nothing(cli: Cli, tiny: Path, store: Path) -> None:
    pieces = min(store.glob("corpora/*/train/source.pieces"))
    data = bytearray(pieces.read_bytes())
    data[10] ^= 1
    pieces.write_bytes(data)
    done = cli("run", tiny, "--seeds", "3", "--store", store, "--devices", "cpu:1", code=2)
    assert "source.pieces has changed since it was written" in done.stderr
    assert "Delete" in done.stderr
    shutil.rmtree(pieces.parents[1])
    cli("run", tiny, "--seeds", "3", "--store", store, "--devices", "cpu:2")
