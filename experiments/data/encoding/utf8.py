"""Encode text as bytes of UTF-8. This needs no training and works for any text.

The vocabulary has four special symbols, then the 256 bytes: byte b is piece 4 + b. SentencePiece's byte fallback is
not used, because it writes a space as "▁", which has three bytes.
"""

from collections.abc import Sequence

FIRST_BYTE = 4  # after PAD, BOS, EOS and UNK
SIZE = FIRST_BYTE + 256
UNKNOWN = " ⁇ ".encode()  # SentencePiece's text for UNK
FILE = b"transformer-ablations tokenizer: bytes of UTF-8, 4 + b\n"  # the complete content of the model file


class Utf8:
    """UTF-8 bytes as pieces, with the methods of SentencePieceProcessor that `Tokenizer` calls."""

    def GetPieceSize(self) -> int:  # noqa: N802 - SentencePiece's name
        return SIZE

    def Encode(self, text: str | Sequence[str], num_threads: int = 1) -> list[int] | list[list[int]]:  # noqa: N802
        """Return the piece ids of one text, or of each of several texts.

        The code points U+DC80 to U+DCFF represent bytes that were not UTF-8 (PEP 383). Other lone surrogates become
        "?". In a text with other lone surrogates, U+DC80 to U+DCFF also become "?".
        """
        return _encoded(text) if isinstance(text, str) else [_encoded(each) for each in text]

    def Decode(self, pieces: Sequence[int]) -> str:  # noqa: N802
        """Return the text. Bytes that are not UTF-8 become U+FFFD, one for each invalid sequence."""
        unknown = FIRST_BYTE - 1
        parts = (bytes((p - FIRST_BYTE,)) if p >= FIRST_BYTE else UNKNOWN if p == unknown else b"" for p in pieces)
        return b"".join(parts).decode("utf-8", "replace")

    def IdToPiece(self, piece: int) -> str:  # noqa: N802
        """Return the text of a piece: a printable ASCII character, "▁" for a space, <0xC3> for another byte."""
        if piece < FIRST_BYTE:
            return ("<pad>", "<s>", "</s>", "<unk>")[piece]
        byte = piece - FIRST_BYTE
        return "▁" if byte == ord(" ") else chr(byte) if ord(" ") < byte < 0x7F else f"<0x{byte:02X}>"


def _encoded(text: str) -> list[int]:
    return [FIRST_BYTE + byte for byte in to_bytes(text)]


def to_bytes(text: str) -> bytes:
    """Return the bytes of a text that was decoded with "surrogateescape"."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")
