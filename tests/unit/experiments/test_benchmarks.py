"""What the benchmarks do before they measure anything."""

from pathlib import Path

from benchmarks.real_batches import BUILTIN_PIECES, real_jobs
from experiments.store.layout import Store


def test_real_batches_of_the_builtin_corpus_are_made(tmp_path: Path) -> None:
    """The default of `--corpus`: its vocabulary has no more pieces than the generated text."""
    store = Store.open(tmp_path / "store")
    ours, theirs = real_jobs("builtin", store.root, "fp32", [1, 1])
    assert ours["model"]["vocab_size"] == BUILTIN_PIECES
    assert [tokens for _, tokens in ours["rounds"]] == [tokens for _, tokens in theirs["rounds"]]
    assert 0 < ours["rounds"][0][1] <= 4096
