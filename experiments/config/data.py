"""Settings of the data: the corpus, and how its text is split into pieces. Imports no torch."""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from experiments.config.field_types import Names
from model.strict import StrictModel

MOST_GENERATED = 10_000_000  # pairs of a built-in corpus; more are a mistake, which would fill the disk


class DataConfig(StrictModel):
    """The corpus, and how text becomes pieces."""

    running_text: ClassVar[bool] = False  # one side, whose pieces hold any text; otherwise pairs of lines

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
        description="kind of pieces: learnt by BPE, by a unigram model, or by one with greedy matching (wordpiece); "
        "whole words, characters, bytes of UTF-8",
    )

    @property
    def sized_by_text(self) -> bool:
        """Return whether every unit of the training text is a piece, so that `vocab_size` is not read."""
        return self.units in ("char", "byte")

    @property
    def target_symbols(self) -> int:
        """Return the size of a target vocabulary of whole symbols between spaces; 0 if the target has `units` too."""
        return 0

    @field_validator("corpus")
    @classmethod
    def _found_from_anywhere(cls, corpus: str) -> str:
        """Make a folder's path absolute: the coordinator may run in another folder."""
        return corpus if corpus == "builtin" else str(Path(corpus).expanduser().absolute())
