"""One set from text to scores."""

from pathlib import Path

import pytest
import torch

from experiments.config import EvaluationConfig
from experiments.data.encoding.tokenizer import Tokenizer, train_tokenizer
from experiments.device import Device
from experiments.evaluation.decode.beam import SearchSettings
from experiments.evaluation.decode.translate import translate
from experiments.evaluation.evaluate import evaluate_set, search_settings
from experiments.evaluation.likelihood import measure_likelihood
from experiments.evaluation.score.scoring import score_text
from model.config import ModelConfig
from model.factory import build_model
from reports.results.bleu import COUNTS

CPU = Device(torch.device("cpu"), "fp32", 1)
LINES = ["der Hund läuft schnell", "", "eine Katze schläft", "der Hund schläft"]


def test_joins_perplexity_search_and_scores(tmp_path: Path) -> None:
    train_tokenizer(LINES * 3, 40, tmp_path / "bpe", "the text")
    tokenizer = Tokenizer.load(tmp_path / "bpe")
    torch.manual_seed(0)
    config = ModelConfig(num_layers=1, d_model=8, d_ff=16, num_heads=2, d_k=4, d_v=4)
    model = build_model(config, tokenizer.vocab_size)
    settings = SearchSettings(beam_size=2, max_extra_length=3)
    seen: list[tuple[str, int, int]] = []
    found = evaluate_set(
        model, (tokenizer, tokenizer), LINES, LINES[::-1], settings, CPU, score_text, progress=lambda *n: seen.append(n)
    )

    ids = [tokenizer.encode(line) for line in LINES]
    likelihood = measure_likelihood(model, ids, ids[::-1], CPU)
    hypotheses = translate(model, ids, settings, CPU)
    assert found.metrics["perplexity"] == pytest.approx(likelihood.perplexity)
    assert found.pieces == likelihood.pieces
    assert found.outputs == [tokenizer.decode(h[0].ids) for h in hypotheses]
    assert found.outputs[1] == ""
    scores = score_text(found.outputs, LINES[::-1])
    assert {name: found.metrics[name] for name in scores.metrics} == scores.metrics
    assert found.signatures == scores.signatures
    assert found.statistics.shape == (4, COUNTS)
    assert found.unfinished == sum(not h[0].finished for h in hypotheses)
    assert seen[-1] == ("decoding", 4, 4)


def test_search_settings_are_the_evaluations() -> None:
    config = EvaluationConfig(beam_size=3, length_penalty=0.9, max_extra_length=7)
    assert search_settings(config) == SearchSettings(3, 0.9, 7)
    assert search_settings(EvaluationConfig()) == SearchSettings(4, 0.6, 50)
