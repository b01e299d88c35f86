"""Write a decoder alone as a folder that Hugging Face's transformers load by themselves.

config.json, generation_config.json    the architecture, with the run under "ablations"
model.safetensors                      weights, fp32
tokenizer.json, tokenizer_config.json  the pieces
README.md                              how to use it
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch

from experiments.data.encoding.encoded import model_names
from experiments.data.encoding.tokenizer import BOS_ID, EOS_ID, FIRST_BYTE, PAD_ID, UNK_ID, Tokenizer
from experiments.errors import UserError, explain_os_errors
from experiments.evaluation.export import loaded, millions, readme
from experiments.evaluation.huggingface_weights import config_of, layout_of, tensors_of, tied
from experiments.evaluation.trained import model_sizes
from experiments.store.checksummed import write_json
from experiments.store.durable import whole_folder
from model.cost import num_params
from model.network import EncoderDecoder


def export(config: Any, attempt: Path, folder: Path, *, run_id: str, choice: str, facts: Mapping[str, Any]) -> str:
    """Write the model of an attempt to `folder`, which must be new or empty. The name of its architecture.

    config: a language model's. Raises UserError, also for a network that none of the architectures equals.
    """
    if config.needs_encoder:
        raise UserError(
            "--format huggingface writes language models, and this run has an encoder: leave the option out."
        )
    window = config.data.window
    positions = config.model.longest or max(window, config.model.max_length)
    layout = layout_of(config.model, positions)
    model = loaded(config, attempt, folder, choice)
    assert isinstance(model, EncoderDecoder)
    name = model_names(config.model.shared_vocabulary)[0]
    pieces = tokenizer_json((attempt / "final" / name).read_bytes(), config.data.units)
    described = config_of(layout, config.model, model.vocab_size, positions, tied=tied(model))
    run = {"run_id": run_id, "checkpoint": choice, "seed": config.seed, **facts}
    special = {"bos_token_id": EOS_ID, "eos_token_id": EOS_ID, "pad_token_id": PAD_ID}
    end = pieces["added_tokens"][EOS_ID]["content"]
    text = readme(
        "huggingface",
        title=folder.name,
        params=millions(num_params(config.model, *model_sizes(config, attempt))),
        steps=config.training.train_steps,
        layout=f"{layout.title} ({layout.architecture})",
        positions=positions,
        window=window,
        end=end,
        run_id=run_id,
        choice=choice,
        seed=config.seed,
        commit=facts.get("commit") or "unknown",
    )
    with explain_os_errors(f"write {folder}"), whole_folder(folder, replace=True) as aside:
        tensors = tensors_of(layout, model, positions)
        safetensors.torch.save_file(tensors, aside / "model.safetensors", {"format": "pt"})
        write_json(aside / "config.json", {**described, "ablations": run}, checksummed=False)
        # no text has these three
        never = {"suppress_tokens": [PAD_ID, BOS_ID, UNK_ID]}
        write_json(aside / "generation_config.json", special | never, checksummed=False)
        # not sorted, as tokenizers write it
        (aside / "tokenizer.json").write_text(json.dumps(pieces, ensure_ascii=False), encoding="utf-8")
        names = {"bos_token": end, "eos_token": end}
        names |= {f"{n}_token": pieces["added_tokens"][i]["content"] for n, i in (("pad", PAD_ID), ("unk", UNK_ID))}
        write_json(
            aside / "tokenizer_config.json",
            {
                "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": positions,
                "clean_up_tokenization_spaces": False, **names,
            },
            checksummed=False,
        )  # fmt: skip
        (aside / "README.md").write_text(text, encoding="utf-8")
    return layout.title


# --- tokenizer.json, as Hugging Face's tokenizers read it, from a tokenizer of running text
# Bytes become byte-level BPE without merges; SentencePiece's BPE a list of merges, which its scores order; its unigrams
# stay so. Text begins with the sign for the end of a document, as in training.


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
    vocab |= {character: FIRST_BYTE + byte for byte, character in enumerate(byte_characters())}
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
