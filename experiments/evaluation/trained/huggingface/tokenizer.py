"""tokenizer.json, as Hugging Face's tokenizers read it, from a tokenizer of running text.

Bytes become byte-level BPE without merges; SentencePiece's BPE a list of merges, which its scores order; its unigrams
stay so. Text begins with the sign for the end of a document, as in training.
"""

from collections.abc import Mapping
from typing import Any

from experiments.data.encoding import utf8
from experiments.data.encoding.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Tokenizer

SPECIAL = (PAD_ID, BOS_ID, EOS_ID, UNK_ID)
_SPACE = "▁"
_LINE_END = "\n"  # a piece that is cut out before all others (RUNNING_TEXT)
_NEVER = -1e6  # a score for pieces that no text has


def tokenizer_json(model: bytes, units: str) -> dict[str, Any]:
    """The content of tokenizer.json. `model`: a tokenizer's file; `units`: data.units."""
    tokenizer = Tokenizer(model)
    pieces = tokenizer.pieces(range(tokenizer.vocab_size))
    special = {index: pieces[index] for index in SPECIAL}
    own = {} if tokenizer.is_bytes or _LINE_END not in pieces else {pieces.index(_LINE_END): _LINE_END}
    document_end = special[EOS_ID]
    first = {"SpecialToken": {"id": document_end, "type_id": 0}}
    text: list[Any] = [{"Sequence": {"id": name, "type_id": kind}} for kind, name in enumerate("AB")]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": index, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False, "special": index in special,
            }
            for index, content in sorted((special | own).items())
        ],
        **(_bytes(special) if tokenizer.is_bytes else _sentencepiece(model, pieces, units)),
        "post_processor": {
            "type": "TemplateProcessing", "single": [first, text[0]], "pair": [first, *text],
            "special_tokens": {document_end: {"id": document_end, "ids": [EOS_ID], "tokens": [document_end]}},
        },
    }  # fmt: skip


def _bytes(special: Mapping[int, str]) -> dict[str, Any]:
    byte_level = {"add_prefix_space": False, "trim_offsets": False, "use_regex": False, "type": "ByteLevel"}
    vocab = {content: index for index, content in special.items()}
    vocab |= {character: utf8.SPECIAL + byte for byte, character in enumerate(byte_characters())}
    return {
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": False, "unk_token": None},
        "decoder": byte_level,
    }


def byte_characters() -> list[str]:
    """The character that stands for each byte in byte-level BPE: itself if it prints, otherwise one from U+0100 on."""
    printed = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printed]
    return [chr(byte if byte in printed else 0x100 + others.index(byte)) for byte in range(256)]


def _sentencepiece(trained: bytes, pieces: list[str], units: str) -> dict[str, Any]:
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=trained)
    learnt = {
        piece: float(processor.GetScore(index))
        for index, piece in enumerate(pieces)
        if index not in SPECIAL and piece != _LINE_END and not processor.IsByte(index)
    }
    if units == "unigram":
        model: dict[str, Any] = {
            "type": "Unigram", "unk_id": UNK_ID, "byte_fallback": True,
            "vocab": [[piece, learnt.get(piece, _NEVER)] for piece in pieces],
        }  # fmt: skip
    else:
        model = {
            "type": "BPE", "unk_token": pieces[UNK_ID], "fuse_unk": True, "byte_fallback": True,
            "vocab": {piece: index for index, piece in enumerate(pieces)}, "merges": _merges(learnt),
        }  # fmt: skip
    return {
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE},
        "pre_tokenizer": None,
        "model": model,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
    }


def _merges(learnt: Mapping[str, float]) -> list[list[str]]:
    """Pairs that make a piece, the best piece first: SentencePiece joins the pair whose piece has the best score."""
    order = sorted((piece for piece in learnt if len(piece) > 1), key=lambda piece: -learnt[piece])
    return [
        [piece[:cut], piece[cut:]]
        for piece in order
        for cut in range(1, len(piece))
        if piece[:cut] in learnt and piece[cut:] in learnt
    ]
