"""Tests of examples/personality: published numbers, settings, data, training and refusals."""

import contextlib
import itertools
import json
import sys
from pathlib import Path

import pytest
import torch

from ablations.study.study import load_study
from reports.spec.sentences import parse

FOLDER = Path(__file__).parents[3] / "examples" / "personality"
sys.path[:0] = [str(FOLDER), str(FOLDER.parents[1] / "experiments" / "client")]

import answers  # noqa: E402
import classify  # noqa: E402
import dataset  # noqa: E402
import networks  # noqa: E402
import outputs  # noqa: E402
import published  # noqa: E402
import tokens  # noqa: E402
import vectors  # noqa: E402

Settings = classify.Settings
WORDS = str.split


@pytest.fixture(scope="module")
def study():
    return load_study(str(FOLDER / "personality.toml"))


def settings_of(study, key):
    (row,) = (row for row in study.variations if row.key == key)
    return Settings(**{**study.base, **row.set})


def shares(printed, total):
    """Return the counts k for which k/total, in per cent, rounds to the printed number."""
    return [k for k in range(total + 1) if printed in (round(100 * k / total, 2), round(100 * k / total, 1))]


def test_two_published_accuracies_are_no_counts(study):
    paper = {row.key: row.paper for row in study.variations if row.paper}
    assert len(paper) == 5
    odd = {(key, 38) for key, found in paper.items() if not shares(found["accuracy_test"], 38)}
    odd |= {(key, 375) for key, found in paper.items() if not shares(found["accuracy_dev"], 375)}
    assert odd == {("Simple-BLSTM", 38), ("Fa-whl-BLSTM", 375)}
    assert round(100 * 34 / 38, 2) == 89.47 and round(100 * 25 / 28, 2) == 89.29


TABLE_1 = {  # two directions, fastText, words
    "Simple-LSTM": (False, False, "content"),
    "Fa-LSTM": (False, True, "content"),
    "Simple-BLSTM": (True, False, "all"),
    "Fa-extr-BLSTM": (True, True, "content"),
    "Fa-whl-BLSTM": (True, True, "all"),
}


def test_the_five_rows_are_table_1(study):
    for key, expected in TABLE_1.items():
        settings = settings_of(study, key)
        assert (settings.bidirectional, settings.pretrained, settings.words) == expected
        assert (settings.network, settings.tokens, settings.classes) == ("lstm", "words", "EI")
        assert (settings.slow_epochs, settings.slow_rate, settings.learning_rate) == (10, 1e-4, 1e-3)


def test_the_cases_column_counts_the_published_answers(study):
    for row in study.variations[:5]:
        letters = [letter for letter, _ in published.answered(*TABLE_1[row.key])]
        judged = [a == label for a, (_, _, label) in zip(letters, published.CASES, strict=True) if label != "neutral"]
        assert row.paper["accuracy_published"] == round(100 * sum(judged) / 6, 2)
    assert published.answered(False, True, "all") is None
    for expected in TABLE_1.values():
        assert all((p >= 0.5) == (letter == "E") for letter, p in published.answered(*expected))


class Context:
    """The attributes of a run's context that `fit` uses."""

    def __init__(self, folder, seed=1, resume=None):
        self.seed, self.folder, self.resume, self.logged = seed, folder, resume, []

    def log(self, epoch, **values):
        self.logged.append({"epoch": epoch, **values})

    @contextlib.contextmanager
    def checkpoint(self, epoch):
        path = self.folder / f"{epoch}"
        path.mkdir()
        yield path


def prepared(settings, seed=1):
    texts = dataset.sets(settings)
    names = dict.fromkeys(token for answer in texts["train"] for token in WORDS(answer.text))
    vocabulary = {name: number for number, name in enumerate(names, start=2)}
    data = {name: dataset.encode(texts[name], WORDS, vocabulary, settings) for name in ("train", "dev")}
    torch.manual_seed(seed)
    outputs_ = 16 if settings.classes == "sixteen" else 1
    start = vectors.random_vectors(vocabulary, settings.width, seed)
    return data, networks.Side(
        [networks.Classifier(settings, start, outputs_) for _ in range(4 if settings.classes == "four" else 1)]
    )


SMALL = {"train_answers": 60, "dev_answers": 40, "width": 8, "batch": 20}


def test_the_papers_own_numbers_contradict_one_of_its_conclusions(study):
    """Pretrained embeddings lower the LSTM's test accuracy.

    Whole words change the dev accuracy but not the test accuracy.
    """
    paper = {row.key: row.paper for row in study.variations}
    gains = []
    for claim in study.claims:
        said = parse(claim.check)
        (first,), (second,) = said.subjects, said.others
        gains.append(round(paper[first][said.number] - paper[second][said.number], 2))
    assert gains == [-5.27, 5.45, 7.9, 0.0, 1.7]


def test_training_stops_when_the_dev_loss_rises_and_keeps_the_best(tmp_path):
    settings = Settings(**SMALL, learning_rate=0.05, slow_epochs=1, dropout=0.0)
    data, model = prepared(settings)
    context = Context(tmp_path)
    assert classify.fit(model, data["train"], data["dev"], settings, context) == len(context.logged) < settings.epochs
    losses = [point["dev_loss"] for point in context.logged]
    assert losses[-1] >= losses[-2] and all(b < a for a, b in itertools.pairwise(losses[:-1]))
    with torch.no_grad():
        kept = outputs.loss_of(model.eval()(data["dev"].ids, data["dev"].lengths), data["dev"].bits, settings).item()
    assert kept == pytest.approx(min(losses))


def test_the_first_epochs_have_the_slow_rate(tmp_path):
    settings = Settings(**SMALL, slow_rate=0.0, slow_epochs=3, epochs=3, patience=3)
    data, model = prepared(settings)
    before = [parameter.clone() for parameter in model.parameters()]
    classify.fit(model, data["train"], data["dev"], settings, Context(tmp_path))
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_half_is_extraverted():
    class Undecided(torch.nn.Module):
        def forward(self, ids, lengths):
            return torch.zeros(len(ids), 1)

    data = dataset.encode([answers.Answer("가", "E")], WORDS, {}, Settings())
    bits, probability = outputs.predict(Undecided(), data, Settings())
    assert bits.tolist() == [[1]] and probability.tolist() == [0.5]


def test_augmentation_leaves_no_duplicates_and_no_answer_out():
    texts = answers.generate("train", 300, ("EI",), 0.15)
    found = dataset.augmented(texts, 2, seed=1)
    assert len(set(found)) == len(found) < 3 * len(texts)
    assert {(a.text, a.label) for a in texts} <= {(a.text, a.label) for a in found}
    words = {word for answer in texts for word in answer.text.split()}
    assert all(set(answer.text.split()) <= words for answer in found)


KINDS = ["lstm", "gru", "feed_forward", "transformer"]


@pytest.mark.parametrize("network", KINDS)
@torch.no_grad()
def test_padding_has_no_influence(network):
    settings = Settings(**SMALL, network=network)
    data, model = prepared(settings)
    dev, model = data["dev"], model.eval()
    together = model(dev.ids, dev.lengths)
    for place in (0, 7):
        n = dev.lengths[place : place + 1]
        alone = model(dev.ids[place : place + 1, : n.item()], n)
        torch.testing.assert_close(alone, together[place : place + 1])


def test_feed_forward_alone_ignores_the_order_of_words():
    for network in KINDS:
        data, model = prepared(Settings(**SMALL, network=network))
        dev, model = data["dev"], model.eval()
        n = dev.lengths[:1]
        ids = dev.ids[:1, : n.item()]
        same = torch.allclose(model(ids, n), model(ids.flip(1), n), atol=1e-6)
        assert same == (network == "feed_forward")


def test_sixteen_classes_and_four_networks_name_types():
    settings = Settings(**SMALL, classes="sixteen")
    data, _ = prepared(settings)
    perfect = torch.nn.functional.one_hot(outputs.class_of(data["dev"].bits), 16).double() * 9

    class Perfect(torch.nn.Module):
        def forward(self, ids, lengths):
            return perfect

    bits, _ = outputs.predict(Perfect(), data["dev"], settings)
    assert outputs.correct(bits, data["dev"]).all() and len(set(map(tuple, bits.tolist()))) > 8
    assert outputs.letters(settings, [1, 1, 1, 1]) == "ENFJ"
    four, model = prepared(Settings(**SMALL, classes="four"))
    assert model(four["dev"].ids, four["dev"].lengths).shape == (40, 4)
    model.zero_grad()
    model(four["dev"].ids, four["dev"].lengths)[:, 2].sum().backward()
    with_gradient = [any(p.grad.any() for p in one.parameters()) for one in model.classifiers]
    assert with_gradient == [False, False, True, False]


def lines(path, *rows):
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


def row(answer="a b", label="E", **more):
    return {"question": "q", "answer": answer, "label": label, **more}


def test_a_file_is_read_and_split(tmp_path):
    path = lines(tmp_path / "a.jsonl", *(row(f"a{n}", "ENFP" if n % 2 else "I") for n in range(1413)))
    sets = answers.read(path, ("EI",))
    assert {name: len(found) for name, found in sets.items()} == answers.STUDY_SIZES == {
        "train": 1000, "dev": 375, "test": 38,
    }  # fmt: skip
    assert sets == answers.read(path, ("EI",)) and {one.label for one in sets["train"]} == {"E", "I"}
    named = lines(tmp_path / "b.jsonl", *(row(set=name) for name in ("dev", "test", "train", "train")))
    assert [len(answers.read(named, ("EI",))[name]) for name in ("train", "dev", "test")] == [2, 1, 1]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ('{"question": "q"', "line 2: this is not JSON"),
        ("[1]", "line 2: this is no JSON object"),
        ({"question": "q", "answer": "a"}, "line 2: label is missing"),
        (row(label="X"), "line 2: unknown label 'X': E or I, or a whole type"),
        (row(label="NS"), "line 2: unknown label"),
        (row(answer="  "), "line 2: the answer is empty"),
        (row(set="valid"), "line 2: unknown set 'valid'"),
        (row(set="dev"), "some lines have no set"),
        (row(), "too few"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, bad, message):
    path = lines(tmp_path / "a.jsonl", row(), bad)
    with pytest.raises(ValueError, match=message) as refused:
        Settings(data=str(path))
    assert str(path) in str(refused.value)
    with pytest.raises(ValueError, match=r"cannot be read: No such file"):
        Settings(data=str(tmp_path / "none.jsonl"))


@pytest.mark.parametrize("header", ["", "3 2\n"])
def test_vectors_of_a_file(tmp_path, header):
    path = tmp_path / "a.vec"
    path.write_text(f"{header}친구 1.5 -2\n혼자 0.25 4\n없다 1 1\n", encoding="utf-8")
    vocabulary = {"혼자": 2, "파티": 3, "친구": 4}
    table, known = vectors.read_vectors(path, vocabulary, seed=1)
    assert known == 2 and table.shape == (5, 2)
    assert table[2].tolist() == [0.25, 4] and table[4].tolist() == [1.5, -2] and table[0].tolist() == [0, 0]
    assert (table[3] != 0).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2 3\na 1 2 3\nb 1 2\n", "line 3 has 2 numbers, and 3 are expected"),
        ("a 1 2\nb 1 2 3\n", "line 2 has 3 numbers, and 2"),
        ("3 2\na 1 2\nb 1 2\n", "has 2 vectors, and its first line says 3"),
        ("", "has 0 vectors"),
    ],
)
def test_uneven_vectors_are_refused(tmp_path, text, message):
    path = tmp_path / "a.vec"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        Settings(vectors=str(path))
    assert classify.files(Settings(vectors=str(path), pretrained=False)) == []


def test_numbers_that_are_none_are_refused(tmp_path):
    path = tmp_path / "a.vec"
    for text, message in (("a 1 x\n", "line 1: could not convert"), ("a 1 nan\n", "line 1: a number is not finite")):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            vectors.read_vectors(path, {"a": 2}, seed=1)


def test_subwords_join_to_the_text():
    texts = [answer.text for answer in answers.generate("train", 200, ("EI",), 0.15)]
    tokenize = tokens.make_tokenizer("subwords", "all", "kiwi", 250, texts)
    pieces = [tokenize(text) for text in texts]
    assert all("".join(found).replace("▁", " ").strip() == text for found, text in zip(pieces, texts, strict=True))
    assert len({piece for found in pieces for piece in found}) <= 250
    length = sum(map(len, pieces))
    assert sum(len(text.split()) for text in texts) < length < sum(map(len, texts)) / 2
    assert tokens.make_tokenizer("subwords", "all", "kiwi", 2000, texts)(texts[0])  # more than there are
    with pytest.raises(ValueError, match=r"pieces = 20: the characters .* need \d+"):
        tokens.make_tokenizer("subwords", "all", "kiwi", 20, texts)


def test_content_words_drop_particles_and_function_words():
    tokenize = tokens.make_tokenizer("words", "content", "kiwi", 0, [])
    assert tokenize("그리고 주말에는 친구들과 파티를 즐겨요") == ["주말", "친구", "파티", "즐겨요"]


def test_morphemes_without_an_analyser_are_refused(monkeypatch):
    monkeypatch.setattr(tokens, "PACKAGES", {"kiwi": "no_such_package_here"})
    with pytest.raises(ValueError, match=r"needs a Korean morphological analyser.*pip install kiwipiepy"):
        Settings(tokens="morphemes")


def test_morphemes():
    pytest.importorskip("kiwipiepy")
    everything, content = (tokens.make_tokenizer("morphemes", which, "kiwi", 0, []) for which in ("all", "content"))
    assert content("친구를 만나요") == ["친구", "만나"]
    assert set(content("친구를 만나요")) < set(everything("친구를 만나요"))
