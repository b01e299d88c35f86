"""Which text, in which pieces and windows: the `data` section of language models. Imports no torch."""

from typing import Literal

from pydantic import Field

from experiments.config import DataConfig, Names


class TextData(DataConfig):
    """Running text. The pieces hold any text: what was not learnt is spelt in bytes."""

    corpus: str = Field(
        "builtin", description='"builtin" (generated), a folder with train*.txt, dev*.txt …, or a file, which is split'
    )
    train: Names = Field((), description="names or patterns of the training files; train*.txt if unset")
    dev: Names = Field((), description="the same for the development set; dev*.txt or val*.txt")
    test: Names = Field((), description="the same for test sets, each file one; test*.txt")
    vocab_size: int = Field(8000, ge=16, description="pieces of the vocabulary; char and byte do not read it")
    units: Literal["bpe", "unigram", "char", "byte"] = Field(
        "bpe", description="pieces: learnt by BPE or as a unigram model, characters, bytes"
    )
    window: int = Field(256, ge=2, description="pieces that the network sees at once")
    documents: Literal["file", "line", "blank_line"] = Field(
        "file", description="a document is a file, a line, or what blank lines part; EOS stands before and after it"
    )
    mix_documents: bool = Field(True, description="windows reach from a document into the next; false: none does")


UNREAD = {"data.source": "languages", "data.target": "languages", "data.max_pieces": "pairs of sentences"}
