"""Settings of the data: the corpus, and how its text is split into word pieces. Imports no torch."""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from experiments.config.field_types import Names
from model.strict import StrictModel

MOST_GENERATED = 10_000_000  # maximum number of generated pairs; a larger number would fill the disk


class DataConfig(StrictModel):
    """Settings of the corpus and of the tokenizer."""

    # Whether the corpus is running text, whose tokenizer must encode any text. Other corpora consist of pairs of lines.
    running_text: ClassVar[bool] = False

    corpus: str = Field("builtin", description='"builtin" (generated) or a folder with train.<lang>, dev.<lang> …')
    source: str | None = Field(None, description="source language; from the file names if unset")
    target: str | None = Field(None, description="target language; from the file names if unset")
    train: Names = Field((), description="names of training files without the language; several are joined")
    dev: Names = Field((), description="names of files of the development set without the language")
    test: Names = Field((), description="names of the test sets; every test* file if unset")
    vocab_size: int = Field(
        37000, ge=16, description="size of the vocabulary in pieces, with special symbols; char and byte do not use it"
    )
    max_pieces: int = Field(
        256, ge=2, description="training pairs with a longer side (EOS counted) are dropped and counted"
    )
    builtin_pairs: int = Field(
        20000, ge=1, le=MOST_GENERATED, description="training pairs that the built-in corpus generates"
    )
    builtin_version: Literal[1, 2] = Field(
        1,
        description="version of the built-in sentence pairs; in 2 many words depend on distant words (docs/corpora.md)",
    )
    units: Literal["bpe", "unigram", "wordpiece", "word", "char", "byte"] = Field(
        "bpe",
        description="kind of word pieces: learnt by BPE, by a unigram model, or by a unigram model with greedy "
        "matching (wordpiece); whole words, characters, bytes of UTF-8",
    )

    @property
    def sized_by_text(self) -> bool:
        """Whether word pieces are characters or bytes. `vocab_size` has no effect then."""
        return self.units in ("char", "byte")

    @property
    def target_symbols(self) -> int:
        """The size of a separate vocabulary of target symbols, which are separated by spaces in the text.

        0 means that the target is split into `units`, like the source.
        """
        return 0

    @field_validator("corpus")
    @classmethod
    def _found_from_anywhere(cls, corpus: str) -> str:
        """Make the path of a folder absolute, because the coordinator may run in another folder."""
        return corpus if corpus == "builtin" else str(Path(corpus).expanduser().absolute())
