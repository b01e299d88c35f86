"""Which trees, and how they become pieces: the `data` section of the parsing task. Imports no torch."""

from pydantic import Field

from experiments.config import MOST_GENERATED, DataConfig, Names


class TreeData(DataConfig):
    """Section 6.3. Defaults are the paper's for the Wall Street Journal alone."""

    corpus: str = Field("builtin", description='"builtin" (generated) or a folder with train, dev and test trees')
    train_extra: Names = Field((), description="further training trees, such as another parser's; names as in train")
    vocab_size: int = Field(16000, ge=16, description="word-pieces of the sentences; 32,000 with the extra trees")
    target_vocab_size: int = Field(512, ge=16, description="symbols of the trees: labels, their closings, tags")
    max_pieces: int = Field(
        512, ge=2, description="training trees with a longer side (EOS counted) are dropped and counted"
    )
    builtin_extra: int = Field(
        20000, ge=1, le=MOST_GENERATED, description='trees that the built-in corpus knows as "extra"'
    )
