"""The evaluation of a language model: −ln P of each line of a set. Only the child imports it: it needs torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.data.encoding.text import EncodedText
from experiments.evaluation.score.counts import bits_per_byte, piece_perplexity, word_perplexity
from experiments.evaluation.windows import stream_nll
from experiments.tasks.base import Context, EvaluationSpec
from experiments.tasks.language_config import LanguageConfig
from experiments.tasks.sequence.trained import open_trained


def measure(
    config: LanguageConfig, encoded: EncodedText, evaluation: EvaluationSpec, trainings: Sequence[Path], folder: Path,
    context: Context,
) -> dict[str, Any]:  # fmt: skip
    """Score a set; `statistics.npy` keeps of each line the sum of −ln P, its pieces, bytes and words.

    A document's end is predicted too and counts to its last line.
    """
    settings = evaluation.settings
    size = encoded.facts["vocab_size"]["target"]
    trained = open_trained(config, evaluation, trainings, context.device, (size, size))
    stream, facts = encoded.set(evaluation.set, evaluation.inputs["set"])
    stream = stream.first(context.limit)
    nll = stream_nll(
        trained.model, stream, trained.device, window=settings["window"], stride=settings["stride"],
        mix=config.data.mix_documents, should_stop=context.should_stop,
    )  # fmt: skip
    assert stream.lines is not None
    first = stream.lines[:, 0] - 1  # in nll, which begins at the second piece
    pieces = np.diff(first, append=len(nll))
    statistics = np.column_stack([np.add.reduceat(nll, first), pieces, stream.lines[:, 1:]])
    np.save(folder / "statistics.npy", statistics, allow_pickle=False)
    sums = statistics.sum(axis=0)
    return {
        "metrics": {
            "bits_per_byte": float(bits_per_byte(sums)),
            "perplexity": float(piece_perplexity(sums)),
            "word_perplexity": float(word_perplexity(sums)),
        },
        "sentences": len(statistics),
        "pieces": len(nll),
        "set_facts": facts,
        **trained.device.describe(),
    }
