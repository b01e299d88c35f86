"""Split answers into tokens: words, subwords or morphemes, of all words or only of the content words."""

import importlib.util
import io
import random
from collections.abc import Callable, Iterable

from clauses import FUNCTION_WORDS, PARTICLES

Tokenizer = Callable[[str], list[str]]

# Tags of the Sejong corpus for nouns, verbs, adjectives and adverbs.
CONTENT_TAGS = ("NNG", "NNP", "VV", "VA", "MAG")
PACKAGES = {"kiwi": "kiwipiepy", "mecab": "konlpy"}


def make_tokenizer(tokens: str, which: str, tagger: str, pieces: int, texts: Iterable[str]) -> Tokenizer:
    """Return a function that splits a text into tokens.

    which: "all" or "content". pieces: maximum number of subwords, which are learned from `texts`.
    """
    if tokens == "morphemes":
        tagged = {"kiwi": _kiwi, "mecab": _mecab}[tagger]()
        return lambda text: [m for m, tag in tagged(text) if which == "all" or tag.startswith(CONTENT_TAGS)]
    words = str.split if which == "all" else _content_words
    return words if tokens == "words" else _subwords([" ".join(words(text)) for text in texts], pieces, words)


def refuse_missing(tagger: str) -> None:
    """Raise ValueError if the package that splits words into morphemes is not installed."""
    if importlib.util.find_spec(PACKAGES[tagger]) is None:
        raise ValueError(
            f'tokens = "morphemes" needs a Korean morphological analyser, and {PACKAGES[tagger]} is not installed in '
            'this environment. Install it: `pip install kiwipiepy` (tagger = "kiwi"), or `pip install konlpy` and '
            'mecab-ko (tagger = "mecab", as in the paper). Or set tokens = "words" or "subwords".'
        )


def _content_words(text: str) -> list[str]:
    """Return the words without function words and particles. These rules are only for the generated answers."""
    return [_stem(word) for word in text.split() if word not in FUNCTION_WORDS]


def _stem(word: str) -> str:
    for particle in PARTICLES:
        if word.endswith(particle) and len(word) > len(particle) + 1:
            return word.removesuffix(particle)
    return word


def _subwords(texts: list[str], pieces: int, words: Tokenizer) -> Tokenizer:
    """Return a tokenizer for byte pair encoding. Raises ValueError if `pieces` is too small for the characters."""
    import sentencepiece

    needed = len(set("".join(texts))) + 4  # the characters, and the symbols <unk>, <s>, </s> and ▁
    if pieces < needed:
        raise ValueError(f"pieces = {pieces}: the characters of the training answers alone need {needed}.")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model, model_type="bpe", vocab_size=pieces,
        hard_vocab_limit=False, character_coverage=1.0, num_threads=1, minloglevel=2,
    )  # fmt: skip
    learnt = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return lambda text: learnt.encode(" ".join(words(text)), out_type=str)


def _kiwi() -> Callable[[str], list[tuple[str, str]]]:
    from kiwipiepy import Kiwi

    kiwi = Kiwi(num_workers=1)
    return lambda text: [(token.form, token.tag) for token in kiwi.tokenize(text)]


def _mecab() -> Callable[[str], list[tuple[str, str]]]:
    from konlpy.tag import Mecab

    return Mecab().pos


def augment(text: str, copies: int, chance: random.Random) -> list[str]:
    """Return the text and its changed copies (Wei & Zou 2019, "EDA").

    The copies alternately have two words swapped or some words deleted.
    """
    return [text, *((_swap, _delete)[n % 2](text.split(), chance) for n in range(copies))]


def _swap(words: list[str], chance: random.Random) -> str:
    if len(words) > 1:
        a, b = chance.sample(range(len(words)), 2)
        words[a], words[b] = words[b], words[a]
    return " ".join(words)


def _delete(words: list[str], chance: random.Random) -> str:
    return " ".join([word for word in words if chance.random() > 0.1] or words)
