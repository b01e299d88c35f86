"""A user's mistakes give one clear paragraph and exit code 2, without a traceback, and nothing is written."""

import gzip
import re
from pathlib import Path

import pytest

from .conftest import Cli

GOOD_EN, GOOD_DE = "a small house\nthe old man sees it\n" * 60, "ein kleines Haus\nder alte Mann sieht es\n" * 60


def corpus(folder: Path, **files: str | bytes) -> Path:
    folder.mkdir()
    contents: dict[str, str | bytes] = {"train_en": GOOD_EN, "train_de": GOOD_DE, "dev_en": GOOD_EN, "dev_de": GOOD_DE}
    for name, content in (contents | files).items():
        path = folder / name.replace("_", ".")
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def refused(cli: Cli, tmp_path: Path, *arguments: str | Path, verb: str = "run") -> str:
    store = tmp_path / "store"
    done = cli(verb, *arguments, "--store", store, code=2)
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not store.exists(), sorted(store.rglob("*"))
    return done.stderr


def test_a_vocabulary_that_the_text_does_not_allow_says_what_it_allows(cli: Cli, tmp_path: Path, tiny: Path) -> None:
    message = refused(cli, tmp_path, tiny, "--corpus", corpus(tmp_path / "c"), "--set", "data.vocab_size=5000")
    assert "data.vocab_size" in message and "5000" in message


def test_a_batch_smaller_than_a_pair(cli: Cli, tmp_path: Path, tiny: Path) -> None:
    message = refused(cli, tmp_path, tiny, "--set", "training.tokens_per_batch=4")
    assert "training.tokens_per_batch" in message and "pieces" in message


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"train_en": GOOD_EN.encode() + b"caf\xe9\n"}, ["train.en", "121", "UTF-8"]),
        ({"train_fr": GOOD_DE, "dev_fr": GOOD_DE}, ["fr"]),
    ],
    ids=["not UTF-8", "three languages"],
)
def test_corpora(cli: Cli, tmp_path: Path, tiny: Path, files: dict[str, str | bytes], words: list[str]) -> None:
    message = refused(cli, tmp_path, tiny, "--corpus", corpus(tmp_path / "c", **files))
    assert all(word in message for word in words), message


def test_a_truncated_gzip_is_named(cli: Cli, tmp_path: Path, tiny: Path) -> None:
    folder = corpus(tmp_path / "c")
    (folder / "train.en").unlink()
    (folder / "train.en.gz").write_bytes(gzip.compress(GOOD_EN.encode())[:-20])
    assert "train.en.gz" in refused(cli, tmp_path, tiny, "--corpus", folder)


def test_a_store_of_another_version_is_left_alone(cli: Cli, tmp_path: Path, tiny: Path) -> None:
    (tmp_path / "store.json").write_text('{"version": 999}', encoding="utf-8")
    for verb in ("plan", "queue", "run", "report"):
        done = cli(verb, tiny, "--store", tmp_path, code=2)
        assert "999" in done.stderr and "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["store.json"]


def test_a_store_below_a_file(cli: Cli, tmp_path: Path, tiny: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    message = cli("run", tiny, "--store", tmp_path / "file" / "store", code=2).stderr
    assert "Traceback" not in message and "--store" in message


def test_what_plan_shows_and_run_refuses(cli: Cli, tmp_path: Path) -> None:
    """If no corpus is named, `plan` prints the plan with a warning, and `run` and `queue` refuse."""
    asked = ["table3", "--profile", "paper", "--rows", "base"]
    planned = cli("plan", *asked, "--store", tmp_path / "store")
    assert "63.08M params" in planned.stdout and "`ablations run` will refuse this" in planned.stderr
    for verb in ("run", "queue"):
        assert "--corpus DIR" in refused(cli, tmp_path, *asked, verb=verb)


def test_a_row_beyond_the_memory_of_all_devices(cli: Cli, tmp_path: Path) -> None:
    """`plan` prints the row, the memory that it needs and the available memory. `run` refuses before it trains."""
    asked = ["table3", "--rows", "base,big", "--set", "model.d_model=100000000", "--store", tmp_path / "store"]
    planned = cli("plan", *asked, code=2)
    assert "872500.00M params" in planned.stdout
    assert re.search(r"the largest is cpu: [\d.]+ GB.*: base [\d,.]+ GB, big [\d,.]+ GB", planned.stderr)
    assert "need more memory" in refused(cli, tmp_path, *asked[:-2])


def test_a_limit_below_what_the_weights_need(cli: Cli, tmp_path: Path, tiny: Path) -> None:
    """torch alone needs 0.3 GB: `plan` prints that it does not fit, and `run` starts nothing."""
    limited = ["table3", "--rows", "base", "--devices", "cpu:1@0.2GB"]
    planned = cli("plan", *limited, "--store", tmp_path / "store", code=2).stderr
    said = r"cpu: 0\.2 GB, the limit in --devices\): base 0\.\d GB, with the smallest micro-batch, .*raise the limit"
    assert re.search(said, planned)
    assert re.search(said, refused(cli, tmp_path, *limited))
    assert "not a limit of memory, such as cpu:1@3GB" in refused(cli, tmp_path, tiny, "--devices", "cpu:1@3")


def test_more_threads_than_cores_are_named(cli: Cli, tmp_path: Path) -> None:
    planned = cli("plan", "table3", "--rows", "base", "--devices", "cpu:99x99", "--store", tmp_path / "store")
    assert "9,801 threads on" in planned.stderr
