"""Corpora of trees: folders and files, the trees of another parser, the generated ones, identities, mistakes."""

import gzip
import hashlib
from pathlib import Path
from typing import Any

import pytest

from ablations.extras.parsing import corpus as corpus_module
from ablations.extras.parsing.corpus import TreeData, resolve
from ablations.extras.parsing.generated import HELD_OUT, RECIPE_VERSION, generate_trees, mistaken, recipe_digest
from ablations.extras.parsing.linear import Repairs, delinearise, linearise
from ablations.extras.parsing.tree import to_text
from experiments.data.corpora import corpus as corpora
from experiments.data.corpora.lexicon import Dice
from experiments.data.encoding.encoded import encoded_digest
from experiments.data.encoding.prepare import prepare
from experiments.errors import UserError

TRAIN = "( (S (NP-SBJ (DT the) (NN dog)) (VP (VBD slept)) (. .)) )\n(TOP (NP (NN rain)))\n"
PAIRS = [("the dog slept .", "S NP DT NN /NP VP VBD /VP . /S"), ("rain", "NP NN /NP")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "bank"
    (place / "train" / "02").mkdir(parents=True)
    (place / "train" / "02" / "wsj_0201.mrg").write_text(TRAIN)
    (place / "train" / "readme.txt").write_text("no trees")
    (place / "dev.ptb.gz").write_bytes(gzip.compress(b"(ROOT (NP (NN sun)))"))
    (place / "test_a.mrg").write_text("(S (NN a))")
    (place / "machine.mrg").write_text("(S (NN b))\n(S (NN c))\n(S (NN d))")
    return place


def data(folder: Path | str, **settings: Any) -> TreeData:
    return TreeData(corpus=str(folder), **settings)


def test_folders_and_files_are_sets(folder: Path) -> None:
    corpus = resolve(data(folder))
    assert corpus.sets == ("dev", "test_a")
    assert list(corpus.read("train")) == PAIRS
    assert list(corpus.read("dev")) == [("sun", "NP NN /NP")]
    assert corpus.check() == {"train": 2, "dev": 1, "test_a": 1}
    assert corpora.select_sets(corpus, ("dev", "test")) == ("dev", "test_a")


def test_sections_are_named_and_joined(folder: Path) -> None:
    corpus = resolve(data(folder, train=("train/02",), train_extra=("machine",), dev=("test_a",)))
    assert corpus.check() == {"train": 5, "dev": 1, "test_a": 1}
    assert [words for words, _ in corpus.read("train")] == ["the dog slept .", "rain", "b", "c", "d"]


def test_the_digest_is_of_the_content(folder: Path, tmp_path: Path) -> None:
    digest, dev = resolve(data(folder)).training_digest(), resolve(data(folder)).set_digest("dev")
    moved = folder.rename(tmp_path / "elsewhere")
    assert resolve(data(moved)).training_digest() == digest
    assert resolve(data(moved, train_extra=("machine",))).training_digest() != digest
    (moved / "test_a.mrg").write_text("(S (NN z))")
    assert resolve(data(moved)).training_digest() == digest
    (moved / "train" / "03.mrg").write_text("(S (NN z))")
    assert resolve(data(moved)).training_digest() != digest
    assert resolve(data(moved)).set_digest("dev") == dev


def test_trees_that_were_counted_are_not_read_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "corpora"
    root.mkdir()
    first = resolve(data(folder)).check(root)
    monkeypatch.setattr(corpus_module, "read_trees", lambda path, _: pytest.fail(f"{path} read again"))
    assert resolve(data(folder)).check(root) == first


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train": ("wsj",)}, "has no wsj{.mrg,.ptb,.parse,.tree,.trees}"),
        ({"dev": ("none",)}, "Name others with data.dev"),
        ({"train_extra": ("none",)}, "Name others with data.train_extra"),
        ({"source": "en"}, "a corpus of trees has none"),
        ({"test": ("dev",)}, 'another set has the name "dev"'),
        ({"test": ("test_a", "train/../test_a")}, "are both the set test_a"),
    ],
)
def test_what_is_missing_is_named(folder: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        resolve(data(folder, **settings))
    assert message in str(error.value)


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        resolve(data(tmp_path / "none"))
    with pytest.raises(UserError, match="has no train"):
        resolve(data(tmp_path))


def test_bad_trees_are_found_with_file_and_line(folder: Path) -> None:
    path = folder / "train" / "02" / "wsj_0201.mrg"
    path.write_text(f"{TRAIN}(S (NP (NN x))\n")
    with pytest.raises(UserError, match=r"wsj_0201.mrg, line 3: the tree that begins here is not closed"):
        resolve(data(folder)).check()
    path.write_text("# nothing but this\n")
    with pytest.raises(UserError, match="holds no tree"):
        resolve(data(folder)).check()
    path.write_text("(S (/X (NN a)) (NN b))")
    with pytest.raises(UserError, match=r'train: tree 1: the label "/X" cannot be written'):
        list(resolve(data(folder)).read("train"))


def test_generated_trees_are_whole_and_held_out_ones_apart() -> None:
    corpus = resolve(TreeData(builtin_pairs=200, train_extra=("extra",), builtin_extra=50))
    assert corpus.check() == {"train": 250, **HELD_OUT} and corpus.sets == ("dev", "test")
    train = list(corpus.read("train"))
    assert len(train) == 250
    for words, symbols in train:
        tree, repairs = delinearise(words.split(" "), symbols.split(" "))
        assert repairs == Repairs() and tree.brackets[0][1:] == (0, len(tree))
    held_out = [words for name in corpus.sets for words, _ in corpus.read(name)]
    assert len(set(held_out)) == len(held_out) == 600
    assert not {words for words, _ in train} & set(held_out)
    assert list(corpus.read("train"))[:200] == list(resolve(TreeData(builtin_pairs=200)).read("train"))


def test_generated_recipes_have_names_of_their_own() -> None:
    settings = ({}, {"builtin_pairs": 7}, {"train_extra": ("extra",)}, {"train_extra": ("extra",), "builtin_extra": 7})
    assert len({resolve(TreeData(**each)).training_digest() for each in settings}) == 4
    for name in ("dev", "test"):  # the held-out trees are the same for every training set
        assert len({resolve(TreeData(**each)).set_digest(name) for each in settings}) == 1
    assert len({resolve(TreeData()).set_digest(name) for name in ("dev", "test")}) == 2


PINNED = {1: "85667e94e4ff9265"}  # by version


def test_other_generated_trees_need_another_version() -> None:
    assert (recipe_digest(2000, 0), recipe_digest(100, 5)) == ("0fb7e1c2c843d3b7", "42da7e419d89f086")
    trees = (
        *generate_trees("dev"),
        *generate_trees("test"),
        *generate_trees("train", 10_000),
        *generate_trees("extra", 1_000),
    )
    made = hashlib.sha256("\n".join(map(to_text, trees)).encode()).hexdigest()[:16]
    assert made == PINNED[RECIPE_VERSION]


@pytest.mark.parametrize("settings", [{"train": ("x",)}, {"test": ("x",)}, {"train_extra": ("x",)}])
def test_the_generated_corpus_knows_no_files(settings: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="the built-in trees have the sets"):
        resolve(TreeData(**settings))


def test_another_parsers_mistakes_are_trees_of_the_same_words() -> None:
    dice, changed = Dice(1), 0
    for tree in generate_trees("train", 300):
        wrong = mistaken(dice, tree)
        assert (wrong.words, wrong.tags) == (tree.words, tree.tags)
        assert delinearise(wrong.words, linearise(wrong)) == (wrong, Repairs())
        changed += wrong.brackets != tree.brackets
    assert 30 < changed < 270


def test_encoded_with_whole_symbols_on_the_target_side(folder: Path, tmp_path: Path) -> None:
    config, corpus = data(folder, vocab_size=24, target_vocab_size=64), resolve(data(folder))
    encoded = prepare(corpus, config, False, tmp_path / "c", lambda *_: None, workers=1)
    source, target = encoded.tokenizers
    assert source.vocab_size == 24
    assert set(target.vocabulary[4:]) == {"S", "NP", "DT", "NN", "/NP", "VP", "VBD", "/VP", ".", "/S"}
    assert [target.decode(encoded.train["target"][i]) for i in (0, 1)] == [symbols for _, symbols in PAIRS]
    assert len(encoded.train["target"][0]) == 10
    assert target.decode([5, 63]).endswith("⁇ ")  # a model over 64 symbols may say one that was never learnt
    assert encoded.set("dev").target == ("NP NN /NP",)
    assert encoded.digest == encoded_digest(corpus.training_digest(), config, False)
    more = data(folder, vocab_size=24, target_vocab_size=65)
    assert encoded.digest != encoded_digest(corpus.training_digest(), more, False)
