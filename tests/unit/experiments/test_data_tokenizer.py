"""Pieces are trained only on the given text, always the same, and can be converted back to text."""

import io
import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.config.data import DataConfig
from experiments.data.encoding import tokenizer as tokenizer_module
from experiments.data.encoding.tokenizer import (
    BOS_ID,
    EOS_ID,
    PAD_ID,
    UNK_ID,
    Tokenizer,
    VocabularyTooLarge,
    in_sample,
    tokenizer_settings,
    train_tokenizer,
)
from experiments.errors import UserError
from experiments.identity import digest

LINES = ["the cat sat on the mat", "der Hund saß auf der Matte", "the dog sat", "die Katze saß", "e\u0301 é ﬁ Å"]


def sized(pieces: int, units: str = "bpe") -> DataConfig:
    return DataConfig().model_copy(update={"vocab_size": pieces, "units": units})  # also fewer than a study may ask for


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("tokenizer") / "t.model"
    train_tokenizer(LINES, sized(60), path, "the text")
    return Tokenizer.load(path)


def test_special_symbols_have_fixed_ids(trained: Tokenizer) -> None:
    assert (PAD_ID, BOS_ID, EOS_ID, UNK_ID) == (0, 1, 2, 3)
    assert trained.vocab_size == 60
    assert trained.decode([BOS_ID, *trained.encode("the cat"), EOS_ID, PAD_ID]) == "the cat"


def test_training_text_comes_back_as_it_was(trained: Tokenizer) -> None:
    for line in [*LINES, "", " the", "the  cat", "sat  "]:
        pieces = trained.encode(line)
        assert trained.decode(pieces) == line
        assert not set(pieces) & {PAD_ID, BOS_ID, EOS_ID, UNK_ID}
    assert trained.encode_batch(LINES, threads=2) == [trained.encode(line) for line in LINES]


def test_text_cannot_smuggle_in_special_symbols(trained: Tokenizer) -> None:
    assert not set(trained.encode("the </s> cat <s> <pad>")) & {PAD_ID, BOS_ID, EOS_ID}


def test_unseen_characters_are_unknown(trained: Tokenizer) -> None:
    assert trained.encode("漢").count(UNK_ID) == 1
    assert trained.decode([UNK_ID]) == " ⁇ "


# What SentencePiece keeps for itself, as the module says: U+0000, U+001F, "▁" (U+2581), "▅" (U+2585); and no line ends.
NOT_KEPT = "\x00\x1f▁▅\n"
TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters=NOT_KEPT + "<>"), max_size=30)


@settings(max_examples=25)
@given(st.lists(TEXT, min_size=1, max_size=5))
def test_any_training_text_comes_back(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    path = tmp_path_factory.mktemp("any") / "t.model"
    lines = [*(line.rstrip("\r") for line in lines), "ab ab"]  # SentencePiece takes a last "\r" for a line's end
    size = len({*"".join(lines), " "}) + 4  # every character, the sign for a space, four special symbols
    train_tokenizer(lines, sized(size + 1), path, "the text")  # and "ab"
    tokenizer = Tokenizer.load(path)
    for line in lines:
        assert tokenizer.decode(tokenizer.encode(line)) == line


@settings(max_examples=25)
@given(st.lists(TEXT, min_size=1, max_size=5), st.sampled_from(["unigram", "word", "char", "byte"]))
def test_any_text_comes_back_in_every_unit(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], units: str
) -> None:
    """Bytes can represent every text.

    Other units can represent their training text if the vocabulary is large enough.
    """
    path = tmp_path_factory.mktemp("any") / "t.model"
    lines = [*(line.rstrip("\r") for line in lines), "ab ab"]
    trained_on = ["x"] if units == "byte" else lines
    try:
        train_tokenizer(trained_on, sized(8000, units), path, "the text")
    except VocabularyTooLarge as error:  # says the size that holds every word, or every string that repeats
        assert units in ("unigram", "word")
        largest = int(str(error).split("data.vocab_size to ")[1].split()[0])
        train_tokenizer(trained_on, sized(largest, units), path, "the text")
    tokenizer = Tokenizer.load(path)
    for line in lines:
        assert tokenizer.decode(tokenizer.encode(line)) == line
        assert units != "byte" or len(tokenizer.encode(line)) == len(line.encode())
        assert units != "char" or len(tokenizer.encode(line)) == len(line)


@pytest.mark.parametrize("line", ["▁▅ \x00\x1f", "漢字 é e\u0301", "</s> <pad>", " ⁇ "])
def test_bytes_hold_what_sentencepiece_keeps_for_itself(tmp_path: Path, line: str) -> None:
    train_tokenizer([], sized(16, "byte"), tmp_path / "t.model", "no text at all")
    tokenizer = Tokenizer.load(tmp_path / "t.model")
    pieces = tokenizer.encode(line)
    assert tokenizer.decode([BOS_ID, *pieces, EOS_ID, PAD_ID]) == line
    assert tokenizer.vocab_size == 260 and not set(pieces) & {PAD_ID, BOS_ID, EOS_ID, UNK_ID}
    assert len(tokenizer.vocabulary) == len(set(tokenizer.pieces(range(260)))) == 260


def test_a_broken_character_is_shown_as_one_and_the_rest_as_it_is(tmp_path: Path) -> None:
    train_tokenizer([], sized(16, "byte"), tmp_path / "t.model", "no text at all")
    tokenizer = Tokenizer.load(tmp_path / "t.model")
    first, second = tokenizer.encode("é")
    a = tokenizer.encode("a")[0]
    assert tokenizer.decode([a, first, a]) == "a\ufffda" and tokenizer.decode([a, first, second]) == "aé"
    assert tokenizer.decode([a, UNK_ID, a, 260, 10_000]) == "a ⁇ a ⁇  ⁇ "


@pytest.mark.parametrize("units", ["char", "byte"])
def test_where_the_text_decides_the_size_a_requested_one_changes_nothing(tmp_path: Path, units: str) -> None:
    for size in (16, 37000):
        train_tokenizer(LINES, sized(size, units), tmp_path / f"{size}.model", "the text")
    small, large = (Tokenizer.load(tmp_path / f"{size}.model") for size in (16, 37000))
    assert small.sha256 == large.sha256
    assert tokenizer_settings(sized(16, units), True) == tokenizer_settings(sized(37000, units), True)


def test_the_settings_of_bpe_are_what_they_were_before_there_were_units() -> None:
    """The digests must not change, because they name the encoded corpora of every store."""
    assert digest(tokenizer_settings(DataConfig(vocab_size=100), True)) == "a8fb1ebb05060f49"


def test_the_same_text_gives_the_same_model(tmp_path: Path, trained: Tokenizer) -> None:
    train_tokenizer(iter(LINES), sized(60), tmp_path / "again.model", "the text")
    train_tokenizer([*LINES, "the cat"], sized(60), tmp_path / "other.model", "the text")
    assert Tokenizer.load(tmp_path / "again.model").sha256 == trained.sha256
    assert Tokenizer.load(tmp_path / "other.model").sha256 != trained.sha256


def test_long_lines_are_learnt_from_too(tmp_path: Path) -> None:
    train_tokenizer(["ab " * 3000 + "ß", "ab"], sized(10), tmp_path / "t.model", "the text")
    assert UNK_ID not in Tokenizer.load(tmp_path / "t.model").encode("ß")


def test_too_many_pieces_are_refused_with_the_largest_number_that_works(tmp_path: Path) -> None:
    path = tmp_path / "t.model"
    with pytest.raises(
        UserError, match=r"data\.vocab_size = 8000 is more than the text of x allows.* gives \d+\."
    ) as e:
        train_tokenizer(LINES, sized(8000), path, "the text of x")
    assert not path.exists()
    largest = int(str(e.value).split("data.vocab_size to ")[1].split()[0])
    train_tokenizer(LINES, sized(largest), path, "the text of x")
    assert Tokenizer.load(path).vocab_size == largest


def test_too_few_pieces_are_refused_with_the_number_of_characters(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"too few for the text: .* alone are \d+ pieces") as e:
        train_tokenizer(LINES, sized(16), tmp_path / "t.model", "the text")
    least = int(str(e.value).split("more than ")[1].rstrip("."))
    train_tokenizer(LINES, sized(least + 1), tmp_path / "t.model", "the text")
    with pytest.raises(UserError, match="the text holds no text"):
        train_tokenizer(["", ""], sized(16), tmp_path / "t.model", "the text")


def test_training_says_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train_tokenizer(LINES, sized(60), tmp_path / "t.model", "the text")
    Tokenizer.load(tmp_path / "t.model").encode("the cat")
    assert capfd.readouterr() == ("", "")


def test_a_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.model").write_bytes(b"nothing")
    for name in ("t.model", "missing.model"):
        with pytest.raises(UserError, match=name):
            Tokenizer.load(tmp_path / name)


def test_a_large_training_set_is_sampled_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_module, "SAMPLE_PAIRS", 10)
    assert all(in_sample(i, 10) for i in range(10))
    taken = [i for i in range(37) if in_sample(i, 37)]
    assert len(taken) == 10
    assert {b - a for a, b in itertools.pairwise(taken)} == {3, 4}


def test_settings_tell_vocabularies_apart() -> None:
    data = DataConfig(vocab_size=100)
    kinds = [
        tokenizer_settings(data, True),
        tokenizer_settings(data, False),
        tokenizer_settings(DataConfig(vocab_size=99), True),
    ]
    assert kinds[0] != kinds[1] != kinds[2] != kinds[0]
    assert kinds[0]["normalization_rule_name"] == "identity"


# --- WordPiece


def longest_match(word: str, pieces: frozenset[str]) -> list[str]:
    """Split a word by the definition: take the longest piece that starts the word, then repeat for the rest."""
    if not word:
        return []
    first = max((piece for piece in pieces if word.startswith(piece)), key=len, default=word[0])
    return [first, *longest_match(word[len(first) :], pieces)]


WORDS = ["the cat sat on the mat", "a caterpillar sat there", "the mats are on the cats", "theatre of the other cat"]


@pytest.fixture(scope="module")
def wordpiece(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("wordpiece") / "t.model"
    train_tokenizer(WORDS * 4, sized(29, "wordpiece"), path, "the text")
    return Tokenizer.load(path)


@settings(max_examples=200)
@given(text=st.text("catsmheronpil zé▁", max_size=30))
def test_word_pieces_are_the_greedy_longest_match(wordpiece: Tokenizer, text: str) -> None:
    pieces = frozenset(wordpiece.pieces(range(UNK_ID + 1, wordpiece.vocab_size)))
    marked = "".join(f"▁{word}" for word in text.replace("▁", " ").split(" ")) if text else ""
    words = [f"▁{word}" for word in marked.split("▁")[1:]]
    expected = [piece for word in words for piece in longest_match(word, pieces)]
    ids = wordpiece.encode(text)
    assert wordpiece.surfaces(text) == expected
    assert ids == [wordpiece.encode_batch([text])[0][n] for n in range(len(ids))]
    assert [piece for piece, n in zip(wordpiece.pieces(ids), ids, strict=True) if n != UNK_ID] == [
        piece for piece in expected if piece in pieces
    ]
    unknown = [piece for piece in expected if piece not in pieces]
    assert wordpiece.decode(ids, unknown) == text.replace("▁", " ")


def test_word_pieces_are_a_unigram_model_s_cut_otherwise(tmp_path: Path) -> None:
    text = Path(__file__).read_text(encoding="utf-8").split("\n")
    lines, models = [line for line in text if not set(line) & set(NOT_KEPT)], {}
    for units in ("unigram", "wordpiece"):
        train_tokenizer(lines, sized(300, units), tmp_path / units, "the text")
        models[units] = Tokenizer.load(tmp_path / units)
    unigram, wordpiece = models["unigram"], models["wordpiece"]
    assert unigram.pieces(range(300)) == wordpiece.pieces(range(300)) and unigram.sha256 != wordpiece.sha256
    assert all(wordpiece.decode(wordpiece.encode(line)) == line for line in lines)
    assert any(wordpiece.encode(line) != unigram.encode(line) for line in lines)
    named = [digest(tokenizer_settings(sized(300, units), shared=True)) for units in ("unigram", "wordpiece", "bpe")]
    assert len(set(named)) == 3


# --- Pieces that are words or characters: one each, known or not


@given(
    st.lists(st.sampled_from(["the", "cat", "sat", "on", "a", "mat", "é", "zzz", "qx", ""]), max_size=8).map(" ".join)
)
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("units", ["word", "char"])
def test_each_unknown_word_is_a_piece_of_its_own(units: str, each: dict[str, Tokenizer], text: str) -> None:
    """Neighbours that SentencePiece makes one piece: a perplexity divides by pieces, and PosUnk replaces each."""
    tokenizer = each[units]
    parts = ["▁" + word for word in text.split(" ")] if units == "word" else list(text.replace(" ", "▁"))
    known = {piece: number for number, piece in enumerate(tokenizer.pieces(range(tokenizer.vocab_size)))}
    expected = parts if text else []
    assert tokenizer.surfaces(text) == expected
    assert tokenizer.encode(text) == [known.get(part, UNK_ID) for part in expected]
    assert tokenizer.encode_batch([text, text]) == [tokenizer.encode(text)] * 2
    unknown = [part for part in expected if part not in known]
    assert tokenizer.decode(tokenizer.encode(text), unknown) == text


@pytest.fixture(scope="module")
def each(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    folder, found = tmp_path_factory.mktemp("each"), {}
    for units in ("word", "char"):
        train_tokenizer(["the cat sat", "on a mat", "a cat  sat"], sized(11, units), folder / units, "the text")
        found[units] = Tokenizer.load(folder / units)
    return found


def test_known_pieces_are_those_of_sentencepiece(each: dict[str, Tokenizer]) -> None:
    import sentencepiece

    for units, tokenizer in each.items():
        raw = sentencepiece.SentencePieceProcessor()
        settings = {"model_type": units, "normalization_rule_name": "identity", "remove_extra_whitespaces": False}
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["the cat sat", "on a mat", "a cat  sat"]), model_writer=model, minloglevel=2,
            pad_id=PAD_ID, bos_id=BOS_ID, eos_id=EOS_ID, unk_id=UNK_ID, add_dummy_prefix=units == "word", **settings,
            **({"vocab_size": 11} if units == "word" else {"use_all_vocab": True}),
        )  # fmt: skip
        raw.LoadFromSerializedProto(model.getvalue())
        for text in ("the cat sat", "a mat  on", "sat sat", " the"):
            if UNK_ID not in raw.Encode(text):
                assert tokenizer.encode(text) == raw.Encode(text)


def test_a_symbol_of_a_target_is_a_piece_known_or_not(tmp_path: Path) -> None:
    train_tokenizer(["(S (NP", "(S (VP"], sized(16, "bpe"), tmp_path / "t.model", "trees", symbols=16)
    tokenizer = Tokenizer.load(tmp_path / "t.model")
    assert tokenizer.encode("(S (X (Y (NP")[1:3] == [UNK_ID, UNK_ID]
    named = [tokenizer_settings(sized(300, units), shared=True) for units in ("word", "char", "bpe")]
    assert [settings.get("unknown") for settings in named] == ["one piece each", "one piece each", None]
