"""Text to pieces and back: SentencePiece with our own settings, trained on the training set only; or bytes of UTF-8.

Normalisation is the identity and spaces are kept: `decode(encode(text))` is the text, character by character.
Exceptions by SentencePiece's design: "▁" (U+2581, its sign for a space) becomes a space, and what is no piece, such as
a character that is not in the training set, becomes " ⁇ "; U+0000, U+001F and "▅" (U+2585) are never learnt.
Imports no torch, and sentencepiece only when a model is trained or loaded.
"""

import functools
import hashlib
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from experiments.config.data import DataConfig
from experiments.errors import UserError
from experiments.store.durable import write_bytes

SPACE = "\u2581"  # SentencePiece's sign: three bytes that stand for one
PAD_ID = 0
BOS_ID = 1
EOS_ID = 2
UNK_ID = 3

SAMPLE_PAIRS = 1_000_000  # larger training sets are sampled at even distances, to bound memory
SAMPLE_BYTES = 100_000_000  # of running text about so many

_SETTINGS: dict[str, Any] = {
    "model_type": "bpe",
    "normalization_rule_name": "identity",  # the default, nmt_nfkc, rewrites text
    "remove_extra_whitespaces": False,
    "byte_fallback": False,
    "character_coverage": 1.0,
    "max_sentence_length": 1 << 20,  # bytes; longer lines would be skipped silently (the default is 4,192)
    "num_threads": 1,  # the model is a function of the text alone
    "pad_id": PAD_ID,
    "bos_id": BOS_ID,
    "eos_id": EOS_ID,
    "unk_id": UNK_ID,
}
# For each of `data.units`. A character needs no sign for a space before the line.
_UNITS: dict[str, dict[str, Any]] = {
    "bpe": {},
    "unigram": {"model_type": "unigram"},
    "wordpiece": {"model_type": "unigram"},
    "word": {"model_type": "word"},
    "char": {"model_type": "char", "add_dummy_prefix": False},
}
# For running text: every character comes back, those that were not learnt as bytes; a line's end is a piece.
RUNNING_TEXT: dict[str, Any] = {"byte_fallback": True, "add_dummy_prefix": False, "user_defined_symbols": ["\n"]}
# For a target of whole symbols (`data.target_symbols`): every word is a piece, up to the size; rarer ones are unknown.
_SYMBOLS: dict[str, Any] = {"model_type": "word", "hard_vocab_limit": False}
_ERRORS_ONLY = 2  # SentencePiece's minloglevel: hides its progress from the terminal


class VocabularyTooLarge(UserError):  # noqa: N818 - what is wrong
    """The text does not allow so many pieces."""


def tokenizer_settings(data: DataConfig, shared: bool) -> dict[str, Any]:
    """Everything besides the training text that determines the pieces; part of identities."""
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
    """Return whether the tokenizer is trained on pair `index`: all pairs up to SAMPLE_PAIRS, else an even sample."""
    return pairs <= SAMPLE_PAIRS or (index + 1) * SAMPLE_PAIRS // pairs > index * SAMPLE_PAIRS // pairs


def train_tokenizer(lines: Iterable[str], data: DataConfig, path: Path, what: str, *, symbols: int = 0) -> None:
    """Train on `lines` and write the model to `path`; the same lines give the same bytes.

    symbols: words are the pieces, at most so many; 0: as `data` says. what: the text's name, for messages. Raises
    UserError if the text does not allow `data.vocab_size` pieces.
    """
    import sentencepiece

    if data.units == "byte" and not symbols:
        write_bytes(path, FILE)
        return
    chosen = {**_SYMBOLS, "vocab_size": symbols} if symbols else _learnt(data)
    model = io.BytesIO()
    raised: list[BaseException] = []  # errors of `lines`: SentencePiece would turn them into RuntimeError
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
    """Return the prefix that marks a learnt model that SentencePiece does not apply by itself; b"" for the others.

    Of running text it applies all: what is no piece there becomes bytes.
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


# What the largest vocabulary holds, for each of `data.units` that has a largest.
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
    """A trained model. Pieces are ids in [0, vocab_size); `encode` adds neither BOS nor EOS."""

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
        """Number of pieces, special symbols included."""
        return int(self._model.GetPieceSize())

    def encode(self, text: str) -> list[int]:
        """Piece ids of a text, without BOS and EOS."""
        return cast("list[int]", self._model.Encode(text))

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
        """Encode many lines, in order, with SentencePiece's own threads."""
        return cast("list[list[int]]", self._model.Encode(list(texts), num_threads=threads))

    @property
    def is_bytes(self) -> bool:
        """Return whether the pieces are bytes, and text may hold bytes that are no UTF-8."""
        return isinstance(self._model, Utf8)

    @property
    def vocabulary(self) -> list[str]:
        """Every piece as it occurs in a text, without the sign for the space before it."""
        return [piece.removeprefix("\u2581") for piece in self.pieces(range(self.vocab_size))]

    def surfaces(self, text: str) -> list[str]:
        """The text of each piece of `encode`, with "▁" for a space: of an unknown one, what stands there."""
        return cast("list[str]", self._model.EncodeAsPieces(text))

    def decode(self, pieces: Sequence[int], unknown: Sequence[str] = ()) -> str:
        """Decode to text; PAD, BOS and EOS vanish; UNK and ids beyond the vocabulary become " ⁇ ".

        unknown: of learnt pieces, what stands for each UNK in order (`surfaces`); () for " ⁇ ".
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
        """The pieces' own text, with "▁" for a space: for figures."""
        return [str(self._model.IdToPiece(int(piece))) for piece in ids]


def _learnt_model(model: bytes) -> Any:
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(model)
    return processor


# --- Pieces that are chosen here, of a learnt vocabulary


# These stand before the learnt model.
GREEDY = b"transformer-ablations tokenizer: greedy longest match\n"
WORDS = b"transformer-ablations tokenizer: a piece for each word\n"
CHARACTERS = b"transformer-ablations tokenizer: a piece for each character\n"
ONE_EACH = "one piece each"  # of neighbours that are no pieces SentencePiece would make one piece
_EACH = (WORDS, CHARACTERS)


class WordPiece:
    """Greedy segmentation with the methods of SentencePieceProcessor that `Tokenizer` calls.

    Each word, with the sign for the space before it, is cut from its beginning: the longest piece of the vocabulary
    that it begins with, then the same for the rest, as BERT's tokenizer does. A character that is no piece is unknown.
    As in Wu et al. 2016 (arXiv 1609.08144, section 4.1), a sign marks the beginning of a word, and pieces are chosen
    for the likelihood of the training text: here by a unigram model (Kudo 2018), which prunes; theirs (Schuster &
    Nakajima 2012) grow from characters. How they cut a word, they do not say.
    """

    def __init__(self, model: bytes) -> None:
        learnt = _learnt_model(model.partition(b"\n")[2])  # after the line that names the kind
        self.Decode, self.DecodePieces = learnt.Decode, learnt.DecodePieces
        self.IdToPiece, self.GetPieceSize = learnt.IdToPiece, learnt.GetPieceSize
        self._ids = {learnt.IdToPiece(piece): piece for piece in range(UNK_ID + 1, learnt.GetPieceSize())}
        self._longest = max(map(len, self._ids))
        self._cut = functools.lru_cache(1 << 18)(self._cut_word)

    def Encode(self, text: str | Sequence[str], num_threads: int = 1) -> list[Any]:  # noqa: N802
        """Pieces of a text, or of each of several."""
        if not isinstance(text, str):
            return [self.Encode(line) for line in text]
        return [self._ids.get(piece, UNK_ID) for piece in self.EncodeAsPieces(text)]

    def EncodeAsPieces(self, text: str) -> list[str]:  # noqa: N802
        """The pieces' text; of an unknown one the character."""
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
    """Each word is a piece, known or not; words stand between spaces."""

    def _cut_word(self, word: str) -> list[str]:
        return [word] if word else []


class Characters(WordPiece):
    """Each character is a piece, known or not."""

    def EncodeAsPieces(self, text: str) -> list[str]:  # noqa: N802
        """The characters, with "▁" for a space."""
        return list(text.replace(" ", SPACE))


_KINDS: dict[bytes, Callable[[bytes], Any]] = {GREEDY: WordPiece, WORDS: Words, CHARACTERS: Characters}


# --- Bytes of UTF-8 as pieces: nothing is learnt, and any text comes back
# Four special symbols, then the 256 bytes: byte b is piece 4 + b. SentencePiece's fall-back to bytes would not do: it
# writes a space as "▁", which is three bytes.


FIRST_BYTE = 4  # PAD, BOS, EOS, UNK (tokenizer.py)
SIZE = FIRST_BYTE + 256
UNKNOWN = " ⁇ ".encode()  # as SentencePiece shows UNK
FILE = b"transformer-ablations tokenizer: bytes of UTF-8, 4 + b\n"  # stands where a learnt model would


class Utf8:
    """UTF-8 bytes as pieces, with the methods of SentencePieceProcessor that `Tokenizer` calls."""

    def GetPieceSize(self) -> int:  # noqa: N802 - SentencePiece's name
        return SIZE

    def Encode(self, text: str | Sequence[str], num_threads: int = 1) -> list[int] | list[list[int]]:  # noqa: N802
        """Pieces of a text, or of each of several.

        U+DC80 to U+DCFF are bytes that were no UTF-8 (PEP 383); other lone surrogates, no characters, become "?".
        """
        return _encoded(text) if isinstance(text, str) else [_encoded(each) for each in text]

    def Decode(self, pieces: Sequence[int]) -> str:  # noqa: N802
        """The text; bytes that are no UTF-8 become U+FFFD, one for each broken character."""
        unknown = FIRST_BYTE - 1
        parts = (bytes((p - FIRST_BYTE,)) if p >= FIRST_BYTE else UNKNOWN if p == unknown else b"" for p in pieces)
        return b"".join(parts).decode("utf-8", "replace")

    def IdToPiece(self, piece: int) -> str:  # noqa: N802
        """A printable character of ASCII as it is, "▁" for a space, <0xC3> for other bytes."""
        if piece < FIRST_BYTE:
            return ("<pad>", "<s>", "</s>", "<unk>")[piece]
        byte = piece - FIRST_BYTE
        return "▁" if byte == ord(" ") else chr(byte) if ord(" ") < byte < 0x7F else f"<0x{byte:02X}>"


def _encoded(text: str) -> list[int]:
    return [FIRST_BYTE + byte for byte in to_bytes(text)]


def to_bytes(text: str) -> bytes:
    """The bytes of a text that was decoded with "surrogateescape"."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")
