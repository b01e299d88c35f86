"""Score decoded text with BLEU and chrF by sacrebleu and with the paper's BLEU, and compute BLEU from sums of counts.

An evaluation stores one row of counts per sentence. The corpus BLEU of any set of sentences follows from the sums of
their counts. Reports use the counts to recompute recorded scores, and to resample sentences for statistical tests.

Imports no torch. sacrebleu is imported only when text is scored.
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
_NO_SCORE = -9999999999.0  # the value that sacrebleu uses for the logarithm of zero


@dataclass(frozen=True)
class SetScores:
    """The scores of a decoded set."""

    metrics: dict[str, float]  # name of the metric → score
    signatures: dict[str, str]  # name of the metric → signature
    statistics: NDArray[np.int64]  # (sentences, BLEU_COUNTS)


def score_text(translations: Sequence[str], references: Sequence[str], language: str = "en") -> SetScores:
    """Score translations against one reference each. The scores are BLEU (13a, cased), chrF and the paper's BLEU.

    All scores are from 0 to 100. The paper's BLEU is left out if sacremoses is not installed.

    language: the target language. The tokenizer of the paper's BLEU depends on it.
    """
    from sacrebleu.metrics import BLEU, CHRF

    corpus_bleu, chrf = BLEU(tokenize="13a"), CHRF()
    # effective_order does not change the counts. Without it, sacrebleu logs a warning for every sentence.
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


def bleu(sums: NDArray[Any]) -> NDArray[np.float64]:
    """Return the BLEU, from 0 to 100, of sums of counts.

    The arithmetic is that of sacrebleu with the smoothing "exp" and without effective order.

    sums: shape (…, 10), with the counts in the order of BLEU_COUNTS. The result has the shape (…).
    """
    sums = sums.astype(np.float64)
    sys_len, ref_len = sums[..., 0], sums[..., 1]
    correct, total = sums[..., 2 : 2 + ORDERS], sums[..., 2 + ORDERS :]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = correct / total
        product = ratios[..., 0] * ratios[..., 1] * ratios[..., 2] * ratios[..., 3]
        precision = np.asarray(100.0 * np.sqrt(np.sqrt(product)))  # the geometric mean of four ratios
        lacking = ~(product > 0)  # smooth only these scores, so that no score depends on the others in the call
        if lacking.any():
            precision[lacking] = np.exp(_smoothed(correct[lacking], total[lacking]) / ORDERS)
        penalty = np.where(sys_len < ref_len, np.exp(np.minimum(0.0, 1 - ref_len / sys_len)), 1.0)
    penalty = np.where((sys_len == 0) & (ref_len > 0), 0.0, penalty)
    score: NDArray[np.float64] = np.where(correct.any(axis=-1), penalty * precision, 0.0)
    return score


def _smoothed(correct: NDArray[Any], total: NDArray[Any]) -> NDArray[np.float64]:
    """Return the sum of the logarithms of the smoothed precisions.

    The first order without matches counts as 1/2 match, the next one as 1/4, and so on. An order without n-grams has
    the precision 0.
    """
    zero = (correct == 0) & (total > 0)
    halvings = 2.0 ** np.cumsum(zero, axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = 100.0 * np.where(zero, 1 / halvings, correct) / total
        logs = np.where(total > 0, np.log(precision), _NO_SCORE)
    summed: NDArray[np.float64] = logs.sum(axis=-1)
    return summed


# tensor2tensor's get_ende_bleu.sh applies Moses' tokenizer to both sides and replaces a hyphen between two characters
# by ##AT##-##AT##, "as in the paper". The script then scores with multi-bleu: word n-grams up to 4, without smoothing.
# Only these scores are comparable with Tables 2 and 3 of the paper. sacrebleu's tokenizer 13a gives other scores for
# the same text. sacremoses is imported only when it is used, so that decoding also works on a machine without it.


_HYPHEN = re.compile(r"(\S)-(\S)")


def available() -> bool:
    """Return whether sacremoses is installed."""
    return importlib.util.find_spec("sacremoses") is not None


def paper_bleu(translations: Sequence[str], references: Sequence[str], language: str) -> float:
    """Return the paper's BLEU of a corpus, from 0 to 100.

    language: such as "de"; it determines the tokenizer's list of abbreviations. For an unknown language, the list of
        "en" is used.
    """
    from sacrebleu.metrics import BLEU

    tokenize = PaperTokens(language)
    ours, theirs = ([tokenize(line) for line in side] for side in (translations, references))
    multi_bleu = BLEU(tokenize="none", smooth_method="none", force=True)  # force: no warning about tokenized text
    return float(multi_bleu.corpus_score(ours, [theirs]).score)


def signature(language: str) -> str:
    """Return the signature of the paper's BLEU, in the format of sacrebleu."""
    return (
        f"nrefs:1|case:mixed|eff:no|tok:moses-{language}+split|smooth:none|sacremoses:{metadata.version('sacremoses')}"
    )


class PaperTokens:
    """Tokenizer of the paper's BLEU. It returns a line's tokens, separated by spaces.

    It applies Moses' tokenizer, and then replaces "rich-text" by "rich ##AT##-##AT## text".
    """

    def __init__(self, language: str) -> None:
        from sacremoses import MosesTokenizer

        self._moses = MosesTokenizer(lang=language)

    def __call__(self, line: str) -> str:
        return split_compounds(" ".join(self._moses.tokenize(line, escape=False)))


def split_compounds(line: str) -> str:
    """Split words at hyphens, as get_ende_bleu.sh does with perl -ple 's{(\\S)-(\\S)}{$1 ##AT##-##AT## $2}g'.

    Matches do not overlap, so only the first hyphen of "a-b-c" is replaced.
    """
    return _HYPHEN.sub(r"\1 ##AT##-##AT## \2", line)
