"""The first part of an evaluation: perplexity of a set's references. Only the child imports it: it needs torch."""

from typing import Any

from experiments.data.encoding.encoded import EncodedSet
from experiments.evaluation.likelihood import measure_likelihood
from experiments.tasks.base import Context
from experiments.tasks.sequence.trained import Trained


def measure(trained: Trained, text: EncodedSet, context: Context) -> dict[str, Any]:
    """The facts of this part for the record. `pieces`: the number of pieces that the perplexity is a mean over."""
    threads = trained.device.threads
    source_ids = trained.source_tokenizer.encode_batch(text.source, threads)
    target_ids = trained.target_tokenizer.encode_batch(text.target, threads)
    found = measure_likelihood(trained.model, source_ids, target_ids, trained.device, should_stop=context.should_stop)
    return {"metrics": {"perplexity": found.perplexity}, "pieces": found.pieces, **trained.device.describe()}
