"""Infer from a metric's name whether lower or higher values are better.

If the name contains no known word, or words for both directions, the direction is unknown. In this case no value of the
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
WEAK = _set_of("score match likelihood")  # higher is better, unless another word decides, as in "FID score"
_AGAINST = _set_of("neg negative minus inverse inv")
_RELATIVE = _set_of("improvement reduction drop delta gap change increase decrease difference diff relative")
_SPREAD = _set_of("std stdev sd stderr variance")
_SETS = "train|training|val|valid|validation|dev|test|eval"
_JOINED = re.compile(rf"(?:{_SETS})(?P<word>loss|error|err|acc|accuracy|ppl|perplexity)")


def direction(name: str) -> str:
    """Return "lower" or "higher", or "" if the name does not decide it."""
    down, up = "↓" in name, "↑" in name
    if down != up:
        return "lower" if down else "higher"
    words = set(_words(name))
    if words & (_RELATIVE | _SPREAD) or (down and up):
        return ""
    if words & _AGAINST:
        likelihood = words & {"likelihood", "loglikelihood", "ll", "loglik"}
        return "lower" if likelihood else ""
    if re.search(r"per[\W_]?(second|sec|s)(?![a-z])|/s(ec)?\b", name.lower()):
        return "higher"
    lower, higher = bool(words & (LOWER | COSTS)), bool(words & HIGHER)
    if lower and higher:
        return ""
    return "lower" if lower else "higher" if higher or words & WEAK else ""


def is_metric(name: str) -> bool:
    """Return whether the name of a column in a file names a score."""
    words = set(_words(name))
    return bool(words & (LOWER | HIGHER | WEAK)) or "↓" in name or "↑" in name


def _words(name: str) -> Iterator[str]:
    """Yield the words of a name in lower case. "valLoss" has the words "val", "loss" and "valloss".

    Names are split at capital letters and at characters that are neither letters nor digits.
    """
    for part in re.split(r"[\W_]+", name):
        split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", part).lower().split()
        for word in {part.lower(), *split}:
            yield word
            yield word.rstrip("0123456789")  # acc1, bleu4, map50
            if word.startswith("rouge"):
                yield "rouge"
            if joined := _JOINED.fullmatch(word):
                yield joined["word"]
