"""The coverage penalty and the replacement of unknown words equal their formulas on random models in float64."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from experiments.config.data import DataConfig
from experiments.config.evaluation import EvaluationConfig
from experiments.config.run_config import RunConfig
from experiments.data.encoding.tokenizer import BOS_ID, EOS_ID, UNK_ID, Tokenizer, train_tokenizer
from experiments.device import Device
from experiments.evaluation.beam import Hypothesis, SearchSettings, coverage_penalty
from experiments.evaluation.likelihood import evaluating
from experiments.evaluation.translate import texts_of, translate
from experiments.evaluation.translator import Translator
from experiments.identity import eval_identity
from experiments.tasks.network import evaluation_settings
from model.config import ModelConfig
from model.ensemble import Ensemble
from model.layers.attention.watching import watching
from model.network import build_model
from model.protocol import Network

CPU = Device(torch.device("cpu"), "fp32", 1)
SMALL = {"num_layers": 2, "d_model": 8, "d_ff": 16, "num_heads": 2, "d_k": 4, "d_v": 4}
LINES = {
    "transformer": {},
    "multi-query": {"kv_heads": 1, "qk_norm": True},
    "gnmt": {
        "encoder": "lstm(bidirectional=true)", "decoder": "lstm, cross_attention(compatibility=additive), lstm",
        "norm": "none", "positions": "none",
    },
    "luong": {"encoder": "lstm", "decoder": "lstm, attentional_lstm(compatibility=bilinear)", "norm": "none"},
}  # fmt: skip


def model_of(seed: int, pieces: int = 12, **settings: object) -> Network:
    torch.manual_seed(seed)
    model = build_model(ModelConfig.from_mapping(SMALL | settings), pieces).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 2  # attention that prefers some positions
    return model


def attended(model: Network, source: Sequence[int], output: Sequence[int]) -> Tensor:
    """Return the mean attention (T, S) over layers and heads of a full pass that predicts `output`."""
    found: list[Tensor] = []
    with evaluating(model), watching(model, lambda kind, w: found.append(w[0].mean(0)) if kind == "cross" else None):
        model(torch.tensor([[*source, EOS_ID]]), None, torch.tensor([[BOS_ID, *output[:-1]]]))
    return torch.stack(found).mean(0)


def scored(model: Network, source: Sequence[int], found: Hypothesis, search: SearchSettings) -> float:
    """Compute s(Y, X) = log P / lp + cp with explicit sums (Wu et al. 2016, equation 14)."""
    pieces = [*found.ids, EOS_ID] if found.finished else list(found.ids)
    p = attended(model, source, pieces).tolist()
    covered = sum(math.log(min(sum(row[i] for row in p), 1.0)) for i in range(len(source) + 1))
    return found.log_prob / ((5 + len(pieces)) / 6) ** search.length_penalty + search.coverage_penalty * covered


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("extra", [0, 4])
def test_a_hypothesis_has_the_score_of_equation_14(name: str, extra: int) -> None:
    model = model_of(1, **LINES[name])
    search = SearchSettings(beam_size=3, max_extra_length=extra, nbest=3, coverage_penalty=0.4)
    sources = [[4, 5, 6, 7], [8, 5], [9, 10, 4, 4, 11]]
    for found, source in zip(translate(model, sources, search, CPU), sources, strict=True):
        assert [h.score for h in found] == pytest.approx([scored(model, source, h, search) for h in found], abs=1e-9)
        assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)


@pytest.mark.parametrize("seed", range(4))
def test_the_best_is_the_best_of_all_finished(seed: int) -> None:
    """A beam that holds every prefix finishes every output, so the first one has the highest score of all."""
    model, source = model_of(seed, 6), [3, 5]
    search = SearchSettings(beam_size=64, max_extra_length=0, nbest=30, coverage_penalty=2.0)
    [plain], [found] = (translate(model, [source], s, CPU) for s in (replace(search, coverage_penalty=0.0), search))
    by_hand = sorted(plain, key=lambda h: -scored(model, source, h, search))
    assert [h.ids for h in found] == [h.ids for h in by_hand]


def test_it_changes_choices_and_stops_no_earlier_than_a_whole_search() -> None:
    model, sources = model_of(3), [[a, b, 6] for a in range(3, 12) for b in range(3, 12)]
    search = SearchSettings(beam_size=4, max_extra_length=6)
    covered = replace(search, coverage_penalty=1.0)
    plain, found = (translate(model, sources, s, CPU) for s in (search, covered))
    assert sum(a[0].ids != b[0].ids for a, b in zip(plain, found, strict=True)) > 3
    whole = translate(model, sources, replace(covered, early_stop=False, compaction=False), CPU)
    assert [h[0].ids for h in found] == [h[0].ids for h in whole]
    single = replace(covered, beam_size=1)
    greedy = translate(model, sources, replace(single, coverage_penalty=0.0), CPU)
    assert [h[0].ids for h in translate(model, sources, single, CPU)] == [h[0].ids for h in greedy]


def test_an_ensemble_attends_as_the_mean_of_its_members() -> None:
    both = Ensemble([model_of(1), model_of(2)]).eval()
    search = SearchSettings(beam_size=2, max_extra_length=3, coverage_penalty=0.5)
    [[found]] = translate(both, [[4, 5, 6]], search, CPU)
    assert found.score == pytest.approx(scored(both, [4, 5, 6], found, search), abs=1e-9)


def test_padding_is_not_covered() -> None:
    attended_11S = torch.tensor([[[0.5, 2.0, 0.0]]])
    mask = torch.tensor([[True, True, False]])
    assert coverage_penalty(attended_11S, mask, 0.2).item() == pytest.approx(0.2 * math.log(0.5))
    assert coverage_penalty(attended_11S[..., :2], None, 0.2).item() == pytest.approx(0.2 * math.log(0.5))


def test_at_their_defaults_they_are_in_no_eval_id() -> None:
    plain = evaluation_settings(RunConfig())
    assert set(plain) == {"checkpoint", "beam_size", "length_penalty", "max_extra_length", "precision"}
    ids = {eval_identity("0" * 16, plain, {})}
    for change in ({"coverage_penalty": 0.2}, {"replace_unknown": True}):
        config = RunConfig(evaluation=EvaluationConfig.from_mapping(change))
        settings = evaluation_settings(config)
        assert settings == plain | change
        ids.add(eval_identity("0" * 16, settings, {}))
    assert len(ids) == 3


@pytest.mark.parametrize("change", [{"coverage_penalty": 0.2}, {"replace_unknown": True}])
def test_a_network_without_attention_to_the_source_is_refused(change: dict[str, object]) -> None:
    line = {"model": {"encoder": "lstm", "decoder": "last_state, lstm"}, "evaluation": change}
    with pytest.raises(ValueError, match="attention to the source"):
        RunConfig.from_mapping(line)


TEXT = ["der Hund läuft schnell", "eine Katze schläft", "der Hund schläft", "Katze und Hund", "das Haus ist rot"]


def tokenizer_of(units: str, folder: Path) -> Tokenizer:
    size = {"word": 16, "char": 30, "bpe": 40, "unigram": 30}[units]
    data = DataConfig.from_mapping({"units": units, "vocab_size": size})
    train_tokenizer(TEXT * 3, data, folder / units, "the text")
    return Tokenizer.load(folder / units)


@pytest.mark.parametrize("units", ["word", "char", "bpe", "unigram"])
@pytest.mark.parametrize("line", ["der Öltank läuft", "Zebra und Hund", "eine  Xylophonkatze", "und", ""])
def test_unknown_pieces_with_their_own_text_give_the_line_back(tmp_path: Path, units: str, line: str) -> None:
    tokenizer = tokenizer_of(units, tmp_path)
    ids, surfaces = tokenizer.encode(line), tokenizer.surfaces(line)
    unknown = [surface for piece, surface in zip(ids, surfaces, strict=True) if piece == UNK_ID]
    back = tokenizer.decode(ids, unknown)
    assert (back.split(), line.split()) == (line.split(), back.split()) if units == "word" else back == line


@pytest.mark.extra("attention_analysis")
def test_an_unknown_word_becomes_the_source_word_with_most_attention(tmp_path: Path) -> None:
    from ablations.extras.attention_analysis.maps import attention_maps

    tokenizer = tokenizer_of("word", tmp_path)
    model = model_of(5, tokenizer.vocab_size)
    lines = ["der Öltank läuft schnell", "Katze und Zebra", "", "der Hund schläft"]
    outputs = [[5, UNK_ID, 6], [UNK_ID, 7, UNK_ID], [], [4, 5]]
    translator = Translator(model, (tokenizer, tokenizer), CPU, SearchSettings(2, 0.6, 3), replace_unknown=True)
    texts = texts_of(model, (tokenizer, tokenizer), lines, outputs, CPU, replace_unknown=True)
    for line, output, text in zip(lines, outputs, texts, strict=True):
        words = [tokenizer.decode([piece]).strip() for piece in output]  # "⁇" without its spaces, which are pieces too
        if UNK_ID in output:
            maps = torch.tensor(attention_maps(translator, line, " ".join(words))["maps"]["cross"]).mean((0, 1))
            p = attended(model, tokenizer.encode(line), [*output, EOS_ID])
            assert torch.allclose(maps[: len(p)], p.to(maps.dtype), atol=1e-6)
            copied = [line.split()[place] for place in p[:, : len(line.split())].argmax(-1).tolist()]
            words = [copied[t] if piece == UNK_ID else words[t] for t, piece in enumerate(output)]
        assert text == " ".join(words)
    assert not any("⁇" in text for text in translator.translate(["der Öltank", "Zebra", "Hund"]))
