"""Each part of an evaluation equals the result of its module and reads only its declared inputs."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from experiments.attempt_context import AttemptContext
from experiments.config.data import DataConfig
from experiments.data.corpora.files import write_lines, written_lines
from experiments.data.encoding.encoded import EncodedSet
from experiments.data.encoding.tokenizer import Tokenizer, train_tokenizer
from experiments.device import Device
from experiments.evaluation.beam import SearchSettings
from experiments.evaluation.likelihood import measure_likelihood
from experiments.evaluation.trained import Trained, decode, measure_pairs
from experiments.evaluation.translate import translate
from model.config import ModelConfig
from model.network import build_model

CPU = Device(torch.device("cpu"), "fp32", 1)
LINES = ["der Hund läuft schnell", "", "eine Katze schläft", "der Hund schläft"]


def test_likelihood_and_decoding_are_what_their_modules_compute(tmp_path: Path) -> None:
    train_tokenizer(LINES * 3, DataConfig(vocab_size=40), tmp_path / "bpe", "the text")
    tokenizer = Tokenizer.load(tmp_path / "bpe")
    torch.manual_seed(0)
    config = ModelConfig(num_layers=1, d_model=8, d_ff=16, num_heads=2, d_k=4, d_v=4)
    model = build_model(config, tokenizer.vocab_size)
    text = cast(EncodedSet, SimpleNamespace(name="dev", source=LINES, target=LINES[::-1], facts={"of": "the set"}))
    events: list[dict[str, Any]] = []
    context = cast(AttemptContext, SimpleNamespace(emit=lambda kind, **f: events.append(f), should_stop=lambda: False))
    trained = Trained(model, tokenizer, tokenizer, CPU, {})
    settings = {"beam_size": 2, "length_penalty": 0.6, "max_extra_length": 3}

    ids = [tokenizer.encode(line) for line in LINES]
    likelihood = measure_likelihood(model, ids, ids[::-1], CPU)
    measured = measure_pairs(trained, text, context)
    assert measured["metrics"]["perplexity"] == pytest.approx(likelihood.perplexity)
    assert measured["pieces"] == likelihood.pieces
    hypotheses = translate(model, ids, SearchSettings(2, 0.6, 3), CPU)
    facts = decode(trained, text, settings, tmp_path / "out.txt", context)
    outputs = written_lines(tmp_path / "out.txt")
    assert outputs == [tokenizer.decode(h[0].ids) for h in hypotheses]
    assert outputs[1] == ""
    assert facts["unfinished"] == sum(not h[0].finished for h in hypotheses)
    assert (facts["sentences"], facts["set_facts"]) == (4, {"of": "the set"})
    assert events[-1] == {"what": "decoding dev", "done": 4, "total": 4}


@pytest.mark.parametrize("line", ["", " a ", "a\u2028b", "a\rb", "a\x0bb\x1cc\x85d", "\ufeffa"])
def test_outputs_are_read_as_they_were_written(tmp_path: Path, line: str) -> None:
    write_lines(tmp_path / "lines.txt", [line, "", line])
    assert written_lines(tmp_path / "lines.txt") == [line, "", line]
