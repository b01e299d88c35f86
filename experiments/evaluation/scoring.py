"""Scores of decoded text: BLEU and chrF of lines by sacrebleu, the paper's BLEU, and BLEU from sums of counts.

An evaluation keeps one row of counts per sentence; the sum over any sentences gives their corpus score. So a report
recomputes a recorded score, and resamples sentences for tests. Imports no torch; sacrebleu is imported when text is
scored.
"""

import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np
from numpy.typing import NDArray

ORDERS = 4
BLEU_COUNTS = (
    "sys_len", "ref_len", *(f"correct_{n}" for n in range(1, ORDERS + 1)), *(f"total_{n}" for n in range(1, ORDERS + 1))
)  # fmt: skip
_NO_SCORE = -9999999999.0  # sacrebleu's logarithm of a precision of zero


@dataclass(frozen=True)
class SetScores:
    """The scores of a decoded set. `metrics` and `signatures` are by metric name; `statistics`: counts per sentence."""

    metrics: dict[str, float]
    signatures: dict[str, str]
    statistics: NDArray[np.int64]


def score_text(translations: Sequence[str], references: Sequence[str], language: str = "en") -> SetScores:
    """Score translations against one reference each: BLEU (13a tokens, cased), chrF and the paper's BLEU, 0 to 100.

    language: of the target; the paper's BLEU tokenizes by it, and is left out if sacremoses is not installed.
    """
    from sacrebleu.metrics import BLEU, CHRF

    corpus_bleu, chrf = BLEU(tokenize="13a"), CHRF()
    # effective_order does not change the counts; without it sacrebleu logs a warning per sentence
    counter = BLEU(tokenize="13a", effective_order=True)
    counts = [counter.sentence_score(t, [r]) for t, r in zip(translations, references, strict=True)]
    metrics = {
        "bleu": float(corpus_bleu.corpus_score(translations, [references]).score),
        "chrf": float(chrf.corpus_score(translations, [references]).score),
    }
    signatures = {"bleu": str(corpus_bleu.get_signature()), "chrf": str(chrf.get_signature())}
    if available():
        metrics["bleu_paper"] = paper_bleu(translations, references, language)
        signatures["bleu_paper"] = signature(language)
    return SetScores(
        metrics=metrics,
        signatures=signatures,
        statistics=np.array([[c.sys_len, c.ref_len, *c.counts, *c.totals] for c in counts], dtype=np.int64),
    )


# --- Corpus scores of many sums of counts at once


def bleu(sums: NDArray[Any]) -> NDArray[np.float64]:
    """Map sums of counts (… × 10, BLEU_COUNTS) to BLEU (…), from 0 to 100.

    The arithmetic is sacrebleu's, with its smoothing "exp" and without effective order.
    """
    sums = sums.astype(np.float64)
    sys_len, ref_len = sums[..., 0], sums[..., 1]
    correct, total = sums[..., 2 : 2 + ORDERS], sums[..., 2 + ORDERS :]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = correct / total
        product = ratios[..., 0] * ratios[..., 1] * ratios[..., 2] * ratios[..., 3]
        precision = np.asarray(100.0 * np.sqrt(np.sqrt(product)))  # the geometric mean of four, without a logarithm
        lacking = ~(product > 0)  # each score on its own: it does not depend on the others in the call
        if lacking.any():
            precision[lacking] = np.exp(_smoothed(correct[lacking], total[lacking]) / ORDERS)
        penalty = np.where(sys_len < ref_len, np.exp(np.minimum(0.0, 1 - ref_len / sys_len)), 1.0)
    penalty = np.where((sys_len == 0) & (ref_len > 0), 0.0, penalty)
    score: NDArray[np.float64] = np.where(correct.any(axis=-1), penalty * precision, 0.0)
    return score


def _smoothed(correct: NDArray[Any], total: NDArray[Any]) -> NDArray[np.float64]:
    """Sum of the logarithms of precisions; an order without matches counts 1/2, the next 1/4 …; without n-grams 0."""
    zero = (correct == 0) & (total > 0)
    halvings = 2.0 ** np.cumsum(zero, axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = 100.0 * np.where(zero, 1 / halvings, correct) / total
        logs = np.where(total > 0, np.log(precision), _NO_SCORE)
    summed: NDArray[np.float64] = logs.sum(axis=-1)
    return summed


# --- BLEU as in the paper: Moses tokens, compounds split at hyphens, the arithmetic of multi-bleu.perl
# tensor2tensor's get_ende_bleu.sh applies Moses' tokenizer to both sides, replaces a hyphen between two characters by
# ##AT##-##AT##, "as in the paper", and scores with multi-bleu: word n-grams up to 4, no smoothing. Only such numbers
# are comparable with Table 2 and Table 3: sacrebleu's 13a gives others for the same text. sacremoses is imported on
# use: a bare GPU box decodes without it, and then has no such score.


_HYPHEN = re.compile(r"(\S)-(\S)")


def available() -> bool:
    """Return whether sacremoses is installed."""
    return importlib.util.find_spec("sacremoses") is not None


def paper_bleu(translations: Sequence[str], references: Sequence[str], language: str) -> float:
    """Corpus score from 0 to 100; `language` chooses the tokenizer's abbreviations ("de"; unknown ones use "en"'s)."""
    from sacrebleu.metrics import BLEU

    tokenize = PaperTokens(language)
    ours, theirs = ([tokenize(line) for line in side] for side in (translations, references))
    multi_bleu = BLEU(tokenize="none", smooth_method="none", force=True)  # force: it is text in tokens indeed
    return float(multi_bleu.corpus_score(ours, [theirs]).score)


def signature(language: str) -> str:
    """A signature of the metric, in sacrebleu's style."""
    return (
        f"nrefs:1|case:mixed|eff:no|tok:moses-{language}+split|smooth:none|sacremoses:{metadata.version('sacremoses')}"
    )


class PaperTokens:
    """A line to words with spaces between: Moses' tokens, then "rich-text" to "rich ##AT##-##AT## text"."""

    def __init__(self, language: str) -> None:
        from sacremoses import MosesTokenizer

        self._moses = MosesTokenizer(lang=language)

    def __call__(self, line: str) -> str:
        return split_compounds(" ".join(self._moses.tokenize(line, escape=False)))


def split_compounds(line: str) -> str:
    """Like the script's perl, s{(\\S)-(\\S)}{$1 ##AT##-##AT## $2}g: of "a-b-c" only the first hyphen."""
    return _HYPHEN.sub(r"\1 ##AT##-##AT## \2", line)
