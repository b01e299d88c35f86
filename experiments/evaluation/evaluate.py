"""One set, decoded and scored: joins perplexity, search and scores. Knows no store and no task."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from experiments.config import EvaluationConfig
from experiments.data.encoding.tokenizer import Tokenizer
from experiments.device import Device
from experiments.evaluation.decode.beam import SearchSettings
from experiments.evaluation.decode.translate import translate
from experiments.evaluation.likelihood import measure_likelihood
from experiments.evaluation.score.scoring import SetScores
from model.transformer import Transformer


@dataclass(frozen=True)
class SetResult:
    metrics: dict[str, float]  # perplexity, and those of the scores
    signatures: dict[str, str]  # of scores that have one
    outputs: list[str]  # text, in the input's order
    statistics: NDArray[np.int64]  # of the scores, per sentence
    pieces: int  # of the references, EOS counted: what the perplexity is a mean over
    unfinished: int  # outputs that ran into their length limit


def search_settings(config: EvaluationConfig) -> SearchSettings:
    """The search that an evaluation's settings ask for."""
    return SearchSettings(config.beam_size, config.length_penalty, config.max_extra_length)


def evaluate_set(
    model: Transformer,
    tokenizers: tuple[Tokenizer, Tokenizer],
    sources: Sequence[str],
    references: Sequence[str],
    settings: SearchSettings,
    device: Device,
    score: Callable[[Sequence[str], Sequence[str]], SetScores],
    *,
    progress: Callable[[str, int, int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> SetResult:
    """Perplexity of the references, then beam search, and `score(outputs, references)` of what it found.

    `tokenizers`: of source and target, the same one twice where the vocabulary is shared.
    """
    source_ids = tokenizers[0].encode_batch(sources, device.threads)
    target_ids = tokenizers[1].encode_batch(references, device.threads)
    likelihood = measure_likelihood(model, source_ids, target_ids, device, should_stop=should_stop)

    def decoded(done: int, total: int) -> None:
        if progress is not None:
            progress("decoding", done, total)

    found = translate(model, source_ids, settings, device, progress=decoded, should_stop=should_stop)
    outputs = [tokenizers[1].decode(hypotheses[0].ids) for hypotheses in found]
    scores = score(outputs, references)
    return SetResult(
        metrics={"perplexity": likelihood.perplexity, **scores.metrics},
        signatures=scores.signatures,
        outputs=outputs,
        statistics=scores.statistics,
        pieces=likelihood.pieces,
        unfinished=sum(not hypotheses[0].finished for hypotheses in found),
    )
