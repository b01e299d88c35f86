"""Bytes of UTF-8 as pieces: nothing is learnt, and any text comes back. Imports neither torch nor sentencepiece.

Four special symbols, then the 256 bytes: byte b is piece 4 + b. SentencePiece's fall-back to bytes would not do: it
writes a space as "▁", which is three bytes.
"""

from collections.abc import Sequence

SPECIAL = 4  # PAD, BOS, EOS, UNK (tokenizer.py)
SIZE = SPECIAL + 256
UNKNOWN = " ⁇ ".encode()  # as SentencePiece shows UNK
FILE = b"transformer-ablations tokenizer: bytes of UTF-8, 4 + b\n"  # stands where a learnt model would


class Utf8:
    """What `Tokenizer` calls of a SentencePieceProcessor, by its names."""

    def GetPieceSize(self) -> int:  # noqa: N802 - SentencePiece's name
        return SIZE

    def Encode(self, text: str | Sequence[str], num_threads: int = 1) -> list[int] | list[list[int]]:  # noqa: N802
        """Pieces of a text, or of each of several.

        U+DC80 to U+DCFF are bytes that were no UTF-8 (PEP 383); other lone surrogates, no characters, become "?".
        """
        return _encoded(text) if isinstance(text, str) else [_encoded(each) for each in text]

    def Decode(self, pieces: Sequence[int]) -> str:  # noqa: N802
        """The text; bytes that are no UTF-8 become U+FFFD, one for each broken character."""
        unknown = SPECIAL - 1
        parts = (bytes((p - SPECIAL,)) if p >= SPECIAL else UNKNOWN if p == unknown else b"" for p in pieces)
        return b"".join(parts).decode("utf-8", "replace")

    def IdToPiece(self, piece: int) -> str:  # noqa: N802
        """A printable character of ASCII as it is, "▁" for a space, <0xC3> for other bytes."""
        if piece < SPECIAL:
            return ("<pad>", "<s>", "</s>", "<unk>")[piece]
        byte = piece - SPECIAL
        return "▁" if byte == ord(" ") else chr(byte) if ord(" ") < byte < 0x7F else f"<0x{byte:02X}>"


def _encoded(text: str) -> list[int]:
    return [SPECIAL + byte for byte in to_bytes(text)]


def to_bytes(text: str) -> bytes:
    """The bytes of a text that was decoded with "surrogateescape"."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")
