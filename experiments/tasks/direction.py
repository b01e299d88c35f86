"""Infer from a metric's name whether lower or higher values are better.

If the name contains no known word, words for both directions, or a word that may reverse the direction ("free", "no",
"gain"), the direction is unknown. So is that of a "score" of something unknown. In this case no value of the
metric is printed in bold, and the program does not check claims about it.
"""

import re
from collections.abc import Iterator


def _set_of(words: str) -> frozenset[str]:
    return frozenset(words.split())


LOWER = _set_of(
    """
    loss losses logloss error errors err wer cer ter mer der eer perplexity ppl nll mse mae rmse mape smape rmsle msle
    mase bpc bpb bits nats fid kid fvd lpips latency ece brier regret divergence kl kld crossentropy epe ade fde
    failure failures
    """
)
COSTS = _set_of("time runtime walltime duration rank")  # lower is better, but these words do not name a score
HIGHER = _set_of(
    """
    acc accuracy acc1 acc5 top1 top5 f1 fscore bleu sacrebleu chrf rouge meteor cider spice comet auc auroc auprc aupr
    ap map miou iou dice jaccard mrr ndcg recall precision prec sensitivity specificity r2 reward return em psnr ssim
    mcc kappa spearman pearson correlation winrate success throughput fps speedup mos loglikelihood hits hit pass
    """
)
# Higher is better, unless another word decides, as in "FID score". Beside unknown words, as in "toxicity score", these
# words decide nothing.
WEAK = _set_of("score match likelihood")
_BESIDE_WEAK = _set_of(
    """
    train training val valid validation dev test eval mean avg average median total overall final best last max macro
    micro weighted log per token word exact string quasi none strict flexible extract the of and bert bart clip glue
    superglue squad quality silhouette
    """
)
_REVERSING = _set_of("no non not without free gain gains")  # may reverse the direction of every other word
# May reverse the direction of a word for which lower is better: an "error correction rate" is better if it is higher.
_REVERSING_LOWER = _set_of(
    """
    correction corrections corrected detection detections detected recovery recovered avoidance avoided prevention
    prevented tolerance tolerated resistance robustness removal removed suppression mitigation saved saving savings less
    """
)
_AGAINST = _set_of("neg negative minus inverse inv")
_RELATIVE = _set_of("improvement reduction drop delta gap change increase decrease difference diff relative")
_FAILURES = _set_of("failure failures error errors")  # a longer "time to failure" is better
_SPREAD = _set_of("std stdev sd stderr variance")
_SETS = "train|training|val|valid|validation|dev|test|eval"
_JOINED = re.compile(rf"(?:{_SETS})(?P<word>loss|error|err|acc|accuracy|ppl|perplexity)")


def direction(name: str) -> str:
    """Return "lower" or "higher", or "" if the name does not decide it."""
    down, up = "↓" in name, "↑" in name
    if down != up:
        return "lower" if down else "higher"
    words = set(_words(name))
    if words & (_RELATIVE | _SPREAD | _REVERSING) or (down and up):
        return ""
    if words & _AGAINST:
        likelihood = words & {"likelihood", "loglikelihood", "ll", "loglik"}
        return "lower" if likelihood else ""
    if re.search(r"per[\W_]?(second|sec|s)(?![a-z])|/s(ec)?\b", name.lower()):
        return "" if words & LOWER else "higher"
    lower, higher = bool(words & (LOWER | COSTS)), bool(words & HIGHER)
    if lower and (higher or words & _REVERSING_LOWER or (words & COSTS and words & _FAILURES)):
        return ""
    if lower or higher:
        return "lower" if lower else "higher"
    return "higher" if words & WEAK and set(_plain_words(name)) <= WEAK | _BESIDE_WEAK else ""


def is_metric(name: str) -> bool:
    """Return whether the name of a column in a file names a score."""
    words = set(_words(name))
    return bool(words & (LOWER | HIGHER | WEAK)) or "↓" in name or "↑" in name


def _plain_words(name: str) -> Iterator[str]:
    """Yield the words of a name in lower case, without final digits. "valLoss" has the words "val" and "loss"."""
    for part in re.split(r"[\W_]+", name):
        for word in _split(part):
            if bare := word.rstrip("0123456789"):
                yield bare


def _split(part: str) -> list[str]:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", part).lower().split()


def _words(name: str) -> Iterator[str]:
    """Yield the words of a name in lower case. "valLoss" has the words "val", "loss" and "valloss".

    Names are split at capital letters and at characters that are neither letters nor digits.
    """
    for part in re.split(r"[\W_]+", name):
        for word in {part.lower(), *_split(part)}:
            yield word
            yield word.rstrip("0123456789")  # acc1, bleu4, map50
            if word.startswith("rouge"):
                yield "rouge"
            if joined := _JOINED.fullmatch(word):
                yield joined["word"]
