"""Tests of a corpus's files, its identity, and messages for unusable corpora."""

import gzip
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.config.data import DataConfig
from experiments.data.corpora import parallel as corpus_module
from experiments.data.corpora.corpus import select_sets
from experiments.data.corpora.parallel import resolve
from experiments.errors import UserError

TEXT = {
    "train": (["a b", "c d", "e f"], ["A B", "C D", "E F"]),
    "dev": (["g"], ["G"]),
    "test_2016": (["h", "i"], ["H", "I"]),
}


def write(folder: Path, name: str, lines: list[str], packed: bool = False) -> None:
    content = "".join(f"{line}\n" for line in lines).encode()
    path = folder / (name + (".gz" if packed else ""))
    path.write_bytes(gzip.compress(content, mtime=0) if packed else content)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "mine"
    place.mkdir()
    for name, (source, target) in TEXT.items():
        write(place, f"{name}.en", source)
        write(place, f"{name}.de", target)
    return place


def config(folder: Path, **settings: object) -> DataConfig:
    return DataConfig(corpus=str(folder), **settings)  # type: ignore[arg-type]


def message(data: DataConfig) -> str:
    with pytest.raises(UserError) as error:
        resolve(data).check()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_files_and_languages_are_seen_from_the_names(folder: Path) -> None:
    (folder / "README.md").write_text("about")
    corpus = resolve(config(folder))
    assert (corpus.source, corpus.target, corpus.sets) == ("en", "de", ("dev", "test_2016"))
    for name, (source, target) in TEXT.items():
        assert list(corpus.read(name)) == list(zip(source, target, strict=True))
    assert corpus.check() == {"train": 3, "dev": 1, "test_2016": 2}


@pytest.mark.parametrize("dev", ["val", "valid"])
def test_packed_files_and_other_names_of_dev(tmp_path: Path, dev: str) -> None:
    for name in ("train", dev):
        for language in ("en", "fr"):
            write(tmp_path, f"{name}.{language}", [language], packed=True)
    corpus = resolve(config(tmp_path))
    assert (corpus.source, corpus.target, corpus.tests) == ("en", "fr", {})
    assert list(corpus.read("dev")) == [("en", "fr")]


def test_named_files_are_joined_in_order(tmp_path: Path) -> None:
    for year in ("2012", "2013", "2014"):
        for language in ("en", "de"):
            write(tmp_path, f"newstest{year}.{language}", [f"{language}{year}"], packed=year == "2012")
    data = config(tmp_path, train=("newstest2014", "newstest2012"), dev=("newstest2013",), test=("newstest2014",))
    corpus = resolve(data)
    assert list(corpus.read("train")) == [("en2014", "de2014"), ("en2012", "de2012")]
    assert corpus.sets == ("dev", "newstest2014")


def test_languages_are_asked_for_where_names_do_not_say(folder: Path, tmp_path: Path) -> None:
    write(folder, "train.fr", ["x", "y", "z"])
    assert "train.<lang> for de, en, fr" in message(config(folder))
    assert "data.source and data.target" in message(config(folder))
    assert resolve(config(folder, source="de", target="en")).source == "de"
    for language in ("de", "fr"):
        write(tmp_path, f"train.{language}", ["x"])
        write(tmp_path, f"dev.{language}", ["x"])
    assert "train.<lang> for de, fr" in message(config(tmp_path))
    corpus = resolve(config(tmp_path, target="de"))
    assert (corpus.source, corpus.target) == ("fr", "de")
    assert 'both "de"' in message(config(tmp_path, source="de", target="de"))


def test_missing_things_are_named_with_what_is_there(folder: Path) -> None:
    assert "nowhere does not exist" in message(config(folder / "nowhere"))
    assert "train.en is not a folder" in message(config(folder / "train.en"))
    text = message(config(folder, train=("trian",)))
    assert "no trian.<lang>" in text and "Near: train" in text and "dev.de, dev.en, test_2016.de" in text
    text = message(config(folder, source="en", target="cs"))
    assert "no train.cs" in text and "data.target" in text
    (folder / "test_2016.de").unlink()
    assert "no test_2016.de" in message(config(folder))
    (folder / "dev.en").unlink()
    assert "no dev.en" in message(config(folder))


def test_unclear_files_are_refused(folder: Path) -> None:
    write(folder, "val.en", ["x"])
    assert "dev and val" in message(config(folder)) and "data.dev" in message(config(folder))
    (folder / "val.en").unlink()
    write(folder, "train.en", ["x"], packed=True)
    text = message(config(folder))
    assert "train.en and " in text and "train.en.gz exist" in text
    (folder / "train.en.gz").unlink()
    assert 'data.test names "dev"' in message(config(folder, test=("dev",)))


def test_unequal_sides_are_named_with_both_counts(folder: Path) -> None:
    write(folder, "dev.de", ["G", "H"])
    text = message(config(folder))
    assert "dev.en has 1 line but" in text and "dev.de has 2" in text
    with pytest.raises(UserError, match=r"dev\.en has 1 line but"):
        resolve(config(folder)).training_digest()


def test_two_test_sets_of_one_name_are_refused(folder: Path) -> None:
    for place in ("old", "new"):
        (folder / place).mkdir()
        write(folder / place, "news.en", ["x"])
        write(folder / place, "news.de", ["X"])
    assert "old/news and new/news are both the set news" in message(config(folder, test=("old/news", "new/news")))
    assert resolve(config(folder, test=("new/news", "new/news"))).sets == ("dev", "news")


def test_lines_that_end_at_carriage_returns_alone_are_not_one_line(folder: Path) -> None:
    (folder / "dev.en").write_bytes(b"a\rb\rc\r")
    (folder / "dev.de").write_bytes(b"A\rB\rC\r")
    assert "dev.en has carriage returns" in message(config(folder))


def test_a_line_that_is_no_sentence_is_refused_in_a_set_and_left_out_of_training(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(corpus_module, "LONGEST_LINE", 20)
    write(folder, "train.en", ["a b", "x" * 21, "e f"])
    assert len(list(resolve(config(folder)).read("train"))) == 3
    write(folder, "dev.de", ["y" * 21])
    with pytest.raises(UserError, match=r"dev\.de, line 1 has 21 characters"):
        list(resolve(config(folder)).read("dev"))


def test_a_file_that_changes_while_it_is_read_is_noticed(folder: Path) -> None:
    pairs = resolve(config(folder)).read("train")
    next(pairs)
    write(folder, "dev.en", ["g", "too many"])
    assert len(list(pairs)) == 2
    with pytest.raises(UserError, match=r"dev\.de ends at line 1"):
        list(resolve(config(folder)).read("dev"))


def test_the_digest_is_of_content_and_direction_alone(folder: Path, tmp_path: Path) -> None:
    digest = resolve(config(folder)).training_digest()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name, new_name in (("train", "first"), ("dev", "second")):
        for side, language in enumerate(("en", "de")):
            write(elsewhere, f"{new_name}.{language}", TEXT[name][side], packed=True)
    moved = config(elsewhere, train=("first",), dev=("second",))
    assert resolve(moved).training_digest() == digest
    assert resolve(config(folder, source="de", target="en")).training_digest() != digest
    write(folder, "test_2016.en", ["other", "text"])
    assert resolve(config(folder)).training_digest() == digest
    write(folder, "dev.en", ["other"])
    assert resolve(config(folder)).training_digest() != digest


def test_sets_have_digests_of_their_own(folder: Path) -> None:
    corpus = resolve(config(folder))
    dev, test = corpus.set_digest("dev"), corpus.set_digest("test_2016")
    assert dev != test
    write(folder, "test_2016.de", ["H", "J"])
    assert corpus.set_digest("dev") == dev and corpus.set_digest("test_2016") != test


def test_sets_are_selected_by_name(folder: Path) -> None:
    for language in ("en", "de"):
        write(folder, f"test_2017.{language}", ["x"])
    corpus = resolve(config(folder))
    assert select_sets(corpus, ("test_2017", "dev")) == ("test_2017", "dev")
    assert select_sets(corpus, ("dev", "test", "test_2016")) == ("dev", "test_2016", "test_2017")
    with pytest.raises(UserError, match=r'"tset_2017", .* It has: test_2017, test_2016'):
        select_sets(corpus, ("tset_2017",))
    only_dev = resolve(config(folder, test=()))
    assert only_dev.sets == corpus.sets  # unset: every test* file
    with pytest.raises(UserError, match=r"evaluation\.sets"):
        select_sets(resolve(DataConfig()), ("newstest2014",))


def fake_generate(split: str, pairs: int, version: int) -> Iterator[tuple[str, str]]:
    sizes = {"train": pairs, "dev": 2, "test": 3}
    return ((f"{split} {i}", f"{split.upper()} {i}" * version) for i in range(sizes[split]))


def test_the_builtin_corpus_has_a_recipe_and_two_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus_module, "generate", fake_generate)
    monkeypatch.setattr(corpus_module, "recipe_digest", lambda pairs, version: f"recipe {version} of {pairs}")
    corpus = resolve(DataConfig(builtin_pairs=5))
    assert (corpus.source, corpus.target, corpus.sets) == ("en", "de", ("dev", "test"))
    assert corpus.check() == {"train": 5, "dev": 2, "test": 3}
    assert next(corpus.read("dev")) == ("dev 0", "DEV 0")
    back = resolve(DataConfig(builtin_pairs=5, source="de"))
    assert (back.source, back.target) == ("de", "en")
    assert next(back.read("dev")) == ("DEV 0", "dev 0")
    other = resolve(DataConfig(builtin_pairs=6))
    second = resolve(DataConfig(builtin_pairs=5, builtin_version=2))
    assert next(second.read("dev")) == ("dev 0", "DEV 0DEV 0")
    assert len({c.training_digest() for c in (corpus, back, other, second)}) == 4
    assert corpus.set_digest("dev") != corpus.set_digest("test")


def test_the_builtin_corpus_takes_no_file_names() -> None:
    with pytest.raises(UserError, match=r"English-German, .* en to fr"):
        resolve(DataConfig(target="fr"))
    with pytest.raises(UserError, match="built-in corpus has its own sets"):
        resolve(DataConfig(dev=("newstest2013",)))


@pytest.mark.process
def test_planning_imports_neither_torch_nor_sentencepiece() -> None:
    code = (
        "import sys, experiments.data.corpora.parallel\n"
        "import experiments.data.encoding.tokenizer, experiments.data.encoding.encoded\n"
        "assert not {'torch', 'sentencepiece'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
