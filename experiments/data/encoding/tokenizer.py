"""Convert text to pieces and back: with SentencePiece, trained on the training set only, or as bytes of UTF-8.

Text is not normalised and spaces are kept, so `decode(encode(text))` equals the text. With SentencePiece, there are
three exceptions. "▁" (U+2581, its sign for a space) becomes a space. Text that is not a piece, such as a character that
is not in the training set, becomes " ⁇ ". U+0000, U+001F and "▅" (U+2585) are never learnt.
This module imports no torch, and imports sentencepiece only when a model is trained or loaded.
"""

import functools
import hashlib
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from experiments.config.data import DataConfig
from experiments.data.encoding.utf8 import FILE, Utf8
from experiments.errors import UserError
from experiments.store.durable import write_bytes

SPACE = "\u2581"  # SentencePiece's sign for a space; three bytes in UTF-8
PAD_ID = 0
BOS_ID = 1
EOS_ID = 2
UNK_ID = 3

SAMPLE_PAIRS = 1_000_000  # maximum number of training pairs; larger sets are sampled evenly, to bound memory
SAMPLE_BYTES = 100_000_000  # approximate maximum number of characters of running text that train a tokenizer

_SETTINGS: dict[str, Any] = {
    "model_type": "bpe",
    "normalization_rule_name": "identity",  # the default, nmt_nfkc, rewrites text
    "remove_extra_whitespaces": False,
    "byte_fallback": False,
    "character_coverage": 1.0,
    "max_sentence_length": 1 << 20,  # bytes; longer lines would be skipped silently (the default is 4,192)
    "num_threads": 1,  # makes the model depend only on the text
    "pad_id": PAD_ID,
    "bos_id": BOS_ID,
    "eos_id": EOS_ID,
    "unk_id": UNK_ID,
}
# Additional settings for each value of `data.units`. Characters need no sign for a space at the start of a line.
_UNITS: dict[str, dict[str, Any]] = {
    "bpe": {},
    "unigram": {"model_type": "unigram"},
    "wordpiece": {"model_type": "unigram"},
    "word": {"model_type": "word"},
    "char": {"model_type": "char", "add_dummy_prefix": False},
}
# Settings for running text: characters that were not learnt become bytes, so all text can be decoded. The line feed is
# a piece.
RUNNING_TEXT: dict[str, Any] = {"byte_fallback": True, "add_dummy_prefix": False, "user_defined_symbols": ["\n"]}
# Settings for a target of whole symbols (`data.target_symbols`). Every word is a piece, up to the size of the
# vocabulary; rarer words are unknown.
_SYMBOLS: dict[str, Any] = {"model_type": "word", "hard_vocab_limit": False}
_ERRORS_ONLY = 2  # value of SentencePiece's minloglevel; prints errors but no progress


class VocabularyTooLarge(UserError):  # noqa: N818 - the name states the error
    """Raised if the text does not allow the requested number of pieces."""


def tokenizer_settings(data: DataConfig, shared: bool) -> dict[str, Any]:
    """Return all settings that, together with the training text, determine the pieces. Identities include them."""
    settings: dict[str, Any] = {"units": "byte", "shared": shared}
    if data.units != "byte":
        sample = {"sample_bytes": SAMPLE_BYTES} if data.running_text else {"sample_pairs": SAMPLE_PAIRS}
        settings = {**_SETTINGS, **_learnt(data), "shared": shared, **sample}
    if data.units == "wordpiece":
        settings["units"] = "wordpiece"
    if _mark(data) in _EACH:
        settings["unknown"] = ONE_EACH
    if data.target_symbols:
        settings["target"] = {**_SYMBOLS, "vocab_size": data.target_symbols, "unknown": ONE_EACH}
    return settings


def _learnt(data: DataConfig) -> dict[str, Any]:
    size = {"use_all_vocab": True} if data.sized_by_text else {"vocab_size": data.vocab_size}
    return {**_UNITS[data.units], **size, **(RUNNING_TEXT if data.running_text else {})}


def in_sample(index: int, pairs: int) -> bool:
    """Return whether pair number `index` trains the tokenizer. If there are too many pairs, they are sampled evenly."""
    return pairs <= SAMPLE_PAIRS or (index + 1) * SAMPLE_PAIRS // pairs > index * SAMPLE_PAIRS // pairs


def train_tokenizer(lines: Iterable[str], data: DataConfig, path: Path, what: str, *, symbols: int = 0) -> None:
    """Train a tokenizer on `lines` and write the model to `path`. The same lines give the same bytes.

    Raises UserError if the text does not allow `data.vocab_size` pieces.

    what: name of the text, for messages.
    symbols: 0, or the maximum size of a vocabulary in which every word is one piece.
    """
    import sentencepiece

    if data.units == "byte" and not symbols:
        write_bytes(path, FILE)
        return
    chosen = {**_SYMBOLS, "vocab_size": symbols} if symbols else _learnt(data)
    model = io.BytesIO()
    raised: list[BaseException] = []  # exceptions of `lines`, which SentencePiece converts to RuntimeError
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_watched(lines, raised), model_writer=model, minloglevel=_ERRORS_ONLY,
            **{**_SETTINGS, **chosen},
        )  # fmt: skip
    except RuntimeError as error:
        if raised:
            raise raised[0] from None
        raise _explained(str(error), data, what) from error
    write_bytes(path, (WORDS if symbols else _mark(data)) + model.getvalue())


def _mark(data: DataConfig) -> bytes:
    """Return the prefix of the model file. It names the class of this module that segments the text.

    Return b"" if SentencePiece segments the text. For running text, only "wordpiece" has a prefix, because with other
    units SentencePiece encodes unknown text as bytes.
    """
    if data.units == "wordpiece":
        return GREEDY
    return b"" if data.running_text else {"word": WORDS, "char": CHARACTERS}.get(data.units, b"")


def _watched(lines: Iterable[str], raised: list[BaseException]) -> Iterator[str]:
    try:
        yield from lines
    except BaseException as error:
        raised.append(error)
        raise


# Parts of the message of VocabularyTooLarge: the largest possible vocabulary, by `data.units`.
_MOST = {
    "bpe": "merging every pair of pieces gives",
    "unigram": "all strings that repeat, with the characters, give",
    "wordpiece": "all strings that repeat, with the characters, give",
    "word": "its words and the four special symbols are",
}


def _explained(message: str, data: DataConfig, what: str) -> Exception:
    vocab_size = data.vocab_size
    if allowed := re.search(r"Vocabulary size too high .*<= (\d+)", message):
        return VocabularyTooLarge(
            f"data.vocab_size = {vocab_size} is more than {what} allows: {_MOST[data.units]} "
            f"{allowed[1]}. Set data.vocab_size to {allowed[1]} or less, or take more text."
        )
    if needed := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return UserError(
            f"data.vocab_size = {vocab_size} is too few for {what}: its characters and the four special symbols "
            f"alone are {needed[1]} pieces. Set data.vocab_size to more than {needed[1]}."
        )
    if "!sentences_.empty()" in message:
        return UserError(
            f"{what} holds no text to learn pieces from: every line is empty. Put one sentence on each line."
        )
    return RuntimeError(f"SentencePiece failed on {what}: {message}")


class Tokenizer:
    """A trained tokenizer. Pieces are integers in [0, vocab_size)."""

    def __init__(self, model: bytes) -> None:
        known = next((kind for mark, kind in _KINDS.items() if model.startswith(mark)), _learnt_model)
        self._model: Any = Utf8() if model == FILE else known(model)
        self.sha256 = hashlib.sha256(model).hexdigest()

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Load a model file. Raises UserError if it is missing or not a SentencePiece model."""
        try:
            return cls(path.read_bytes())
        except (OSError, RuntimeError) as error:
            raise UserError(f"The tokenizer {path} cannot be read ({error}). Restore it from its run.") from None

    @property
    def vocab_size(self) -> int:
        """The number of pieces, including special symbols."""
        return int(self._model.GetPieceSize())

    def encode(self, text: str) -> list[int]:
        """Return the piece ids of a text, without BOS and EOS."""
        return cast("list[int]", self._model.Encode(text))

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
        """Return the piece ids of many texts, in order. SentencePiece encodes them in parallel threads."""
        return cast("list[list[int]]", self._model.Encode(list(texts), num_threads=threads))

    @property
    def is_bytes(self) -> bool:
        """Return whether the pieces are bytes. If so, a text may contain bytes that are not UTF-8."""
        return isinstance(self._model, Utf8)

    @property
    def vocabulary(self) -> list[str]:
        """The text of every piece, without the sign for a space before it."""
        return [piece.removeprefix("\u2581") for piece in self.pieces(range(self.vocab_size))]

    def surfaces(self, text: str) -> list[str]:
        """Return the text of each piece of `encode`, with "▁" for a space. An unknown piece keeps its original text."""
        return cast("list[str]", self._model.EncodeAsPieces(text))

    def decode(self, pieces: Sequence[int], unknown: Sequence[str] = ()) -> str:
        """Return the text of pieces. PAD, BOS and EOS are left out; UNK and ids beyond the vocabulary become " ⁇ ".

        unknown: texts (from `surfaces`) that replace the occurrences of UNK, in order; () for " ⁇ ". It must be () if
            the pieces are bytes.
        """
        size = self.vocab_size
        ids = [piece if piece < size else UNK_ID for piece in map(int, pieces)]
        if not unknown:
            return cast(str, self._model.Decode(ids))
        given = iter(unknown)
        written = [next(given) if piece == UNK_ID else self._model.IdToPiece(piece) for piece in ids]
        text: str = self._model.DecodePieces(written).replace(SPACE, " ")
        return text.removeprefix(" ") if ids[0] == UNK_ID else text

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each piece, with "▁" for a space."""
        return [str(self._model.IdToPiece(int(piece))) for piece in ids]


def _learnt_model(model: bytes) -> Any:
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(model)
    return processor


# Prefixes of the model file, before SentencePiece's model.
GREEDY = b"transformer-ablations tokenizer: greedy longest match\n"
WORDS = b"transformer-ablations tokenizer: a piece for each word\n"
CHARACTERS = b"transformer-ablations tokenizer: a piece for each character\n"
ONE_EACH = "one piece each"  # SentencePiece would merge adjacent unknown words or characters into one piece
_EACH = (WORDS, CHARACTERS)


class WordPiece:
    """Greedy segmentation, with the methods of SentencePieceProcessor that `Tokenizer` calls.

    Each word includes the sign for the space before it. The first piece is the longest piece of the vocabulary with
    which the word begins. The rest of the word is cut in the same way, as in BERT's tokenizer. A character that is not
    a piece is unknown.

    As in Wu et al. 2016 (arXiv 1609.08144, section 4.1), a sign marks the beginning of a word, and the vocabulary
    maximises the likelihood of the training text. Here a unigram model (Kudo 2018) prunes a large vocabulary; in
    Schuster & Nakajima 2012, a vocabulary grows from characters. Wu et al. do not describe how they cut a word.
    """

    def __init__(self, model: bytes) -> None:
        learnt = _learnt_model(model.partition(b"\n")[2])  # the model follows the prefix
        self.Decode, self.DecodePieces = learnt.Decode, learnt.DecodePieces
        self.IdToPiece, self.GetPieceSize = learnt.IdToPiece, learnt.GetPieceSize
        self._ids = {learnt.IdToPiece(piece): piece for piece in range(UNK_ID + 1, learnt.GetPieceSize())}
        self._longest = max(map(len, self._ids))
        self._cut = functools.lru_cache(1 << 18)(self._cut_word)

    def Encode(self, text: str | Sequence[str], num_threads: int = 1) -> list[Any]:  # noqa: N802
        """Return the piece ids of one text, or of each of several texts."""
        if not isinstance(text, str):
            return [self.Encode(line) for line in text]
        return [self._ids.get(piece, UNK_ID) for piece in self.EncodeAsPieces(text)]

    def EncodeAsPieces(self, text: str) -> list[str]:  # noqa: N802
        """Return the text of each piece. An unknown piece is one character."""
        words = re.split(f"(?={SPACE})", SPACE + text.replace(" ", SPACE)) if text else []
        return [piece for word in words for piece in self._cut(word)]

    def _cut_word(self, word: str) -> list[str]:
        pieces, at = [], 0
        while at < len(word):
            ends = range(min(len(word), at + self._longest), at, -1)
            end = next((end for end in ends if word[at:end] in self._ids), at + 1)
            pieces.append(word[at:end])
            at = end
        return pieces


class Words(WordPiece):
    """Segmentation in which every word is a piece or unknown. Words are separated by spaces."""

    def _cut_word(self, word: str) -> list[str]:
        return [word] if word else []


class Characters(WordPiece):
    """Segmentation in which every character is a piece or unknown."""

    def EncodeAsPieces(self, text: str) -> list[str]:  # noqa: N802
        """Return the characters, with "▁" for a space."""
        return list(text.replace(" ", SPACE))


_KINDS: dict[bytes, Callable[[bytes], Any]] = {GREEDY: WordPiece, WORDS: Words, CHARACTERS: Characters}
