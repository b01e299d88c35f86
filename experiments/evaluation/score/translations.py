"""Corpus scores of detokenised text by sacrebleu, each with its signature and its counts for significance tests."""

from collections.abc import Sequence

import numpy as np
from sacrebleu.metrics import BLEU, CHRF

from experiments.evaluation.score import paper_bleu
from experiments.evaluation.score.result import SetScores


def score_text(translations: Sequence[str], references: Sequence[str], language: str = "en") -> SetScores:
    """BLEU (13a tokens, cased), chrF and the paper's BLEU of `translations` against one reference each, 0 to 100.

    language: the target's; the paper's BLEU tokenizes by it, and is left out if sacremoses is not installed.
    """
    if len(translations) != len(references) or not references:
        raise ValueError(
            f"{len(translations)} translations and {len(references)} references: expected equal numbers, at least one"
        )
    bleu, chrf = BLEU(tokenize="13a"), CHRF()
    # effective_order does not change the counts; without it sacrebleu logs a warning per sentence
    counter = BLEU(tokenize="13a", effective_order=True)
    counts = [counter.sentence_score(t, [r]) for t, r in zip(translations, references, strict=True)]
    metrics = {
        "bleu": float(bleu.corpus_score(translations, [references]).score),
        "chrf": float(chrf.corpus_score(translations, [references]).score),
    }
    signatures = {"bleu": str(bleu.get_signature()), "chrf": str(chrf.get_signature())}
    if paper_bleu.available():
        metrics["bleu_paper"] = paper_bleu.paper_bleu(translations, references, language)
        signatures["bleu_paper"] = paper_bleu.signature(language)
    return SetScores(
        metrics=metrics,
        signatures=signatures,
        statistics=np.array([[c.sys_len, c.ref_len, *c.counts, *c.totals] for c in counts], dtype=np.int64),
    )
