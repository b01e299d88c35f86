"""Corpus scores of detokenised text by sacrebleu, with signatures and counts for tests; and the paper's BLEU."""

import importlib.util
import re
from collections.abc import Sequence
from importlib import metadata

import numpy as np
from sacrebleu.metrics import BLEU, CHRF

from experiments.evaluation.counts import SetScores


def score_text(translations: Sequence[str], references: Sequence[str], language: str = "en") -> SetScores:
    """BLEU (13a tokens, cased), chrF and the paper's BLEU of `translations` against one reference each, 0 to 100.

    language: the target's; the paper's BLEU tokenizes by it, and is left out if sacremoses is not installed.
    """
    bleu, chrf = BLEU(tokenize="13a"), CHRF()
    # effective_order does not change the counts; without it sacrebleu logs a warning per sentence
    counter = BLEU(tokenize="13a", effective_order=True)
    counts = [counter.sentence_score(t, [r]) for t, r in zip(translations, references, strict=True)]
    metrics = {
        "bleu": float(bleu.corpus_score(translations, [references]).score),
        "chrf": float(chrf.corpus_score(translations, [references]).score),
    }
    signatures = {"bleu": str(bleu.get_signature()), "chrf": str(chrf.get_signature())}
    if available():
        metrics["bleu_paper"] = paper_bleu(translations, references, language)
        signatures["bleu_paper"] = signature(language)
    return SetScores(
        metrics=metrics,
        signatures=signatures,
        statistics=np.array([[c.sys_len, c.ref_len, *c.counts, *c.totals] for c in counts], dtype=np.int64),
    )


# --- BLEU as in the paper: Moses tokens, compounds split at hyphens, the arithmetic of multi-bleu.perl
# tensor2tensor's get_ende_bleu.sh applies Moses' tokenizer to both sides, replaces a hyphen between two characters by
# ##AT##-##AT##, "as in the paper", and scores with multi-bleu: word n-grams up to 4, no smoothing. Only such numbers
# are comparable with Table 2 and Table 3: sacrebleu's 13a gives others for the same text. sacremoses is imported on
# use: a bare GPU box decodes without it, and then has no such score.


_HYPHEN = re.compile(r"(\S)-(\S)")


def available() -> bool:
    """Whether sacremoses is installed."""
    return importlib.util.find_spec("sacremoses") is not None


def paper_bleu(translations: Sequence[str], references: Sequence[str], language: str) -> float:
    """Corpus score from 0 to 100; `language` chooses the tokenizer's abbreviations ("de"; unknown ones use "en"'s)."""
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
