"""Tests of characters, bytes, words and unigram pieces as a corpus's units: sizes, identities and refusals."""

from pathlib import Path
from typing import Any

import pytest

from experiments.config.run_config import RunConfig
from experiments.data.corpora.builtin import generate
from experiments.data.encoding.encoded import EncodedCorpus
from experiments.data.encoding.prepare import prepare
from experiments.errors import UserError
from experiments.identity import run_identity
from experiments.tasks.network import sizes_by_text
from experiments.tasks.translation import TASK
from model.network import build_model

UNITS = ("bpe", "unigram", "word", "char", "byte")
SMALL = {"num_layers": 1, "d_model": 8, "d_ff": 16, "num_heads": 2, "d_k": 4, "d_v": 4}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write English and German text with symbols that SentencePiece reserves, and characters that one side lacks."""
    place = tmp_path / "text"
    place.mkdir()
    for name, count in (("train", 300), ("dev", 12), ("test", 5)):
        pairs = list(generate(name, 300))[:count]
        pairs[0] = ("a ▁ ▅ 漢  b", "ein \x1f ß é")
        for language, lines in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
            (place / f"{name}.{language}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return place


def config(folder: Path | str, units: str, shared: bool = True, **data: Any) -> RunConfig:
    data = {"corpus": str(folder), "vocab_size": 150, "max_pieces": 512, "units": units, **data}
    return RunConfig.from_mapping({"model": {**SMALL, "shared_vocabulary": shared}, "data": data})


def prepared(settings: RunConfig, root: Path) -> EncodedCorpus:
    return prepare(TASK.corpus(settings), settings.data, settings.model.shared_vocabulary, root, lambda *_: None)


@pytest.mark.parametrize("units", UNITS)
@pytest.mark.parametrize("shared", [True, False])
def test_a_plan_knows_the_model_that_the_prepared_text_gives(
    folder: Path, tmp_path: Path, units: str, shared: bool
) -> None:
    settings = config(folder, units, shared, vocab_size=120)
    target, source = TASK.vocab_sizes(settings)
    tokenizers = prepared(settings, tmp_path / "store").tokenizers
    assert (source, target) == tuple(tokenizer.vocab_size for tokenizer in tokenizers)
    model = build_model(settings.model, target, source, device="meta")
    read = model.embeddings["shared" if shared else "source"]
    assert (model.vocab_size, read.vocab_size) == (target, source)


@pytest.mark.parametrize("units", UNITS)
def test_dev_comes_back_and_its_length_is_counted(folder: Path, tmp_path: Path, units: str) -> None:
    (folder / "dev.de").write_text((folder / "train.de").read_text("utf-8"), encoding="utf-8")
    (folder / "dev.en").write_text((folder / "train.en").read_text("utf-8"), encoding="utf-8")
    settings = config(folder, units, vocab_size=834 if units == "word" else 150)
    encoded = prepared(settings, tmp_path / "store")
    dev, (source, target) = encoded.set("dev"), encoded.tokenizers
    texts = [(source, dev.sides["source"], dev.source), (target, dev.sides["target"], dev.target)]
    for tokenizer, pieces, lines in texts:
        for i in range(1, len(lines)):  # 0: the reserved signs
            assert tokenizer.decode(pieces[i].tolist()) == lines[i]
    if units == "byte":
        assert source.decode(dev.sides["source"][0].tolist()) == dev.source[0]
    assert not list(TASK.preflight(settings, tmp_path / "elsewhere"))


@pytest.mark.parametrize("units", ["char", "byte"])
def test_a_size_that_is_not_read_makes_no_other_corpus_and_is_refused_in_a_row(
    folder: Path, tmp_path: Path, units: str
) -> None:
    small, large = config(folder, units, vocab_size=16), config(folder, units, vocab_size=37000)
    assert prepared(small, tmp_path).digest == prepared(large, tmp_path).digest
    assert TASK.vocab_sizes(small) == TASK.vocab_sizes(large)
    assert small.unread(["data.vocab_size", "data.units"]) == ["data.vocab_size"]
    assert f"is a piece here (data.units = {units})" in small.why_unread("data.vocab_size")
    assert not config(folder, "bpe").unread(["data.vocab_size"])


def test_every_unit_is_another_run_and_bpe_the_one_without_the_setting(folder: Path) -> None:
    names = {run_identity(config(folder, units), {"corpus": "c"}) for units in UNITS}
    data = {"corpus": str(folder), "vocab_size": 150, "max_pieces": 512}
    unset = RunConfig.from_mapping({"model": SMALL, "data": data})
    assert len(names) == 5 and run_identity(unset, {"corpus": "c"}) in names


def test_words_that_spaces_do_not_part_are_refused_before_and_while_preparing(tmp_path: Path) -> None:
    place = tmp_path / "text"
    place.mkdir()
    for language, signs in (("en", "abcdefgh"), ("zh", "天地玄黃宇宙洪荒")):
        words = [first + second + third for first in signs for second in signs for third in signs]
        for name in ("train", "dev"):
            (place / f"{name}.{language}").write_text("\n".join(words) + "\n", encoding="utf-8")
    settings = config(place, "word", vocab_size=40)
    with pytest.raises(UserError, match=r"data\.units = word cannot hold the .* side of text: .* of its words") as e:
        prepared(settings, tmp_path / "store")
    assert [str(error) for error in TASK.preflight(settings, tmp_path / "elsewhere")] == [str(e.value)]
    (error,) = TASK.preflight(config(place, "word", vocab_size=9000), tmp_path / "elsewhere")
    assert "is more than the training text of text allows: its words" in str(error) and "1028 or less" in str(error)
    assert not TASK.preflight(config(place, "byte"), tmp_path / "elsewhere")


def test_counting_is_remembered_and_another_text_counted_anew(folder: Path) -> None:
    settings = config(folder, "char")
    first = sizes_by_text(TASK.corpus(settings), settings.data, True)
    with (folder / "train.en").open("a", encoding="utf-8") as english, (folder / "train.de").open("a") as german:
        english.write("字\n")
        german.write("ein Wort\n")
    again = sizes_by_text(TASK.corpus(settings), settings.data, True)
    assert again == (first[0] + 1, first[1] + 1)
