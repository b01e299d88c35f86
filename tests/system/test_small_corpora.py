"""The smallest corpora (one sentence pair, empty lines, no text) train, or are refused with a one-sentence message."""

from pathlib import Path

import pytest

from tests.slow import mostly_nightly

from .conftest import Cli, as_json

PAIR = {"train.en": "a small house\n", "train.de": "ein kleines Haus\n", "dev.en": "a house\n", "dev.de": "ein Haus\n"}


def corpus(folder: Path, **files: str) -> Path:
    folder.mkdir()
    for name, text in (PAIR | {name.replace("_", "."): text for name, text in files.items()}).items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("files", "precision"),
    mostly_nightly(
        [
            ({}, "fp32"),
            ({}, "auto"),  # bf16 if available: few padded shapes, fitted to one pair
            (
                {"train_en": "a small house\n\n", "train_de": "ein kleines Haus\n\n", "dev_en": "\n", "dev_de": "\n"},
                "fp32",
            ),
        ],
        1,
    ),
    ids=["one pair", "one pair, few shapes", "an empty pair beside it, an empty dev"],
)
def test_one_pair_trains(cli: Cli, tiny: Path, tmp_path: Path, files: dict[str, str], precision: str) -> None:
    where = ["--corpus", corpus(tmp_path / "c", **files), "--store", tmp_path / "store", "--devices", "cpu:2"]
    given = ["--set", "data.vocab_size=40", "--set", f"training.precision={precision}"]
    [row] = as_json(cli("run", tiny, "--rows", "base", *where, *given, "--json"))
    assert row["n"] == 1 and row["ppl"] > 1


@pytest.mark.parametrize(
    ("files", "given", "said"),
    [
        ({}, "8000", "data.vocab_size = 8000 is more than the training text of c allows"),
        ({"train_en": "\n", "train_de": "\n"}, "40", "every line is empty"),
        ({"train_en": "\n", "train_de": "ein Haus\n"}, "40", "train"),
        ({"train_en": "", "train_de": ""}, "40", "train.en is empty. Put one sentence on each line"),
        ({"dev_en": "", "dev_de": ""}, "40", "dev.en is empty. Put one sentence on each line"),
    ],
    ids=["8,000 pieces", "empty lines", "no pair without an empty side", "empty train", "empty dev"],
)
def test_no_text_is_refused(cli: Cli, tiny: Path, tmp_path: Path, files: dict[str, str], given: str, said: str) -> None:
    folder, store = corpus(tmp_path / "c", **files), tmp_path / "store"
    done = cli("run", tiny, "--corpus", folder, "--set", f"data.vocab_size={given}", "--store", store, code=2)
    assert said in done.stderr and "Traceback" not in done.stderr
    assert not store.exists()
