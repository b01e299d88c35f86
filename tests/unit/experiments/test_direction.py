"""A metric's name implies its direction. A name that implies none, or both, gives no direction."""

import pytest

from experiments.tasks.direction import direction

LOWER = [
    "Test Loss", "val loss", "test/loss_mean", "valLoss", "eval-loss", "NLL (nats)", "MAE [eV]", "test error (%)",
    "RMSE/test", "WER%", "bits_per_byte", "bits/byte", "latency_ms", "MAPE", "FID↓", "perplexity (test)", "NLLLoss",
    "testloss", "brier_score", "rank_test_score", "negative log likelihood", "x↓",
]  # fmt: skip
HIGHER = [
    "acc", "Top-1 accuracy", "val_acc1", "mIoU", "mAP@50", "ROUGE-L", "rouge2", "bleu4", "F1 (macro)", "log likelihood",
    "samples_per_second", "exact_match,none", "Acc ↑", "is↑", "BERTScore", "hits@10", "score", "mean_test_score",
    "val_score1", "exact_match,strict-match", "F1 score", "detection_accuracy",
]  # fmt: skip
UNKNOWN = [
    "elbow", "glossary", "lossless_rate", "is", "error reduction", "accuracy loss", "neg_mean_squared_error", "Δ", "",
    "accuracy_drop", "value", "std_test_score", "toxicity_score", "anomaly_score", "hate score", "toxicityScore",
    "error_free_rate", "no_errors", "perplexity_gain", "error_correction_rate", "error-detection rate", "non-errors",
    "errors_per_second", "mean time to failure", "false match rate", "time_saved", "errorFreeRate", "accuracy gain",
]  # fmt: skip


@pytest.mark.parametrize(("names", "found"), [(LOWER, "lower"), (HIGHER, "higher"), (UNKNOWN, "")])
def test_direction_is_what_the_name_says(names: list[str], found: str) -> None:
    assert {name: direction(name) for name in names} == dict.fromkeys(names, found)
