"""Beam search equals slower algorithms on random models of width 8 in float64."""

from collections.abc import Sequence
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from experiments.data.encoding.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from experiments.device import Device
from experiments.evaluation.beam import Hypothesis, SearchSettings, beam_search, length_penalty
from experiments.evaluation.likelihood import evaluating, measure_likelihood, pad_sources
from experiments.evaluation.translate import CHECK_EVERY, translate
from model.config import ModelConfig
from model.network import EncoderDecoder as Network
from model.network import build_model
from tests.lines import random_config
from tests.slow import OF_SEEDS, mostly_slow

CPU = Device(torch.device("cpu"), "fp32", 1)
SMALL = ModelConfig(num_layers=1, d_model=8, d_ff=16, num_heads=2, d_k=4, d_v=4)


def random_model(
    seed: int, vocab_size: int, positions: str = "sinusoidal", config: ModelConfig | None = None
) -> Network:
    """Return a model whose next pieces have clearly different probabilities. EOS is sometimes among the likely ones."""
    torch.manual_seed(seed)
    config = config or SMALL.model_copy(update={"positions": positions, "max_length": 24})
    model = build_model(config, vocab_size).double().eval()
    with torch.no_grad():
        model.target_embedding.weight *= 2
        model.target_embedding.weight[EOS_ID] *= 2
    return model


def next_log_probs(model: Network, source: Sequence[int], prefix: Sequence[int]) -> list[float]:
    """Compute log P(next piece | prefix, source) by a full pass without a cache."""
    with torch.inference_mode():
        memory = model.encode(torch.tensor([[*source, EOS_ID]]), None)
        hidden = model.decode(torch.tensor([[BOS_ID, *prefix]]), memory, None)
        values: list[float] = model.logits(hidden[0, -1]).log_softmax(-1).tolist()
    return values


def own_log_prob(model: Network, source: Sequence[int], found: Hypothesis) -> float:
    pieces = (*found.ids, EOS_ID) if found.finished else found.ids
    return sum(next_log_probs(model, source, pieces[:place])[piece] for place, piece in enumerate(pieces))


def naive_search(model: Network, source: Sequence[int], settings: SearchSettings) -> list[Hypothesis]:
    """Search by the definition, one prefix at a time, without cache, batch, early stop or limit of hypotheses."""
    limit = len(source) + 1 + settings.max_extra_length
    alive: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    ended: list[Hypothesis] = []
    for length in range(1, limit + 1):
        candidates = [
            (total + log_prob, (*prefix, piece))
            for total, prefix in alive
            for piece, log_prob in enumerate(next_log_probs(model, source, prefix))
            if piece not in (PAD_ID, BOS_ID)
        ]
        candidates = sorted(candidates, reverse=True)[: settings.num_candidates]
        penalty = ((5 + length) / 6) ** settings.length_penalty
        ended += [Hypothesis(ids[:-1], total / penalty, total) for total, ids in candidates if ids[-1] == EOS_ID]
        alive = [(total, ids) for total, ids in candidates if ids[-1] != EOS_ID][: settings.beam_size]
    if not ended:
        ended = [Hypothesis(ids, total / penalty, total, finished=False) for total, ids in alive]
    return sorted(ended, key=lambda h: -h.score)[: settings.nbest]


def assert_same(found: Sequence[Hypothesis], expected: Sequence[Hypothesis]) -> None:
    assert [(h.ids, h.finished) for h in found] == [(h.ids, h.finished) for h in expected]
    assert [h.score for h in found] == pytest.approx([h.score for h in expected], abs=1e-9)
    assert [h.log_prob for h in found] == pytest.approx([h.log_prob for h in expected], abs=1e-9)


@st.composite
def searches(draw: st.DrawFn, largest_beam: int = 4, longest: int = 6) -> SearchSettings:
    beam_size = draw(st.integers(1, largest_beam))
    return SearchSettings(
        beam_size=beam_size,
        length_penalty=draw(st.sampled_from([0.0, 0.6, 2.0])),
        max_extra_length=draw(st.integers(0, longest)),
        nbest=draw(st.integers(1, beam_size)),
    )


@given(st.integers(0, 10**6), st.sampled_from([6, 12, 200]), searches(3, 4), st.data())
@hypothesis_settings(max_examples=30)
def test_equals_a_naive_uncached_search(seed: int, W: int, settings: SearchSettings, data: st.DataObject) -> None:
    source = data.draw(st.lists(st.integers(UNK_ID, W - 1), min_size=1, max_size=4))
    model = random_model(seed, W)
    assert_same(translate(model, [source], settings, CPU)[0], naive_search(model, source, settings))


@pytest.mark.parametrize("seed", mostly_slow(range(40), 6, OF_SEEDS))
def test_equals_a_naive_search_in_any_architecture(seed: int) -> None:
    sources, settings = [[3, 5], [4, 6, 7]], SearchSettings(beam_size=3, max_extra_length=2, nbest=2)
    model = random_model(seed, 20, config=random_config(seed))
    for found, source in zip(translate(model, sources, settings, CPU), sources, strict=True):
        # Not by pieces: a network without order (a mean of the prefix) gives (6, 13) and (13, 6) the same probability.
        expected = naive_search(model, source, settings)
        assert [h.finished for h in found] == [h.finished for h in expected]
        assert [h.score for h in found] == pytest.approx([h.score for h in expected], abs=1e-9)
        assert [h.log_prob for h in found] == pytest.approx([own_log_prob(model, source, h) for h in found], abs=1e-9)
        assert len({h.ids for h in found}) == len(found)


@given(
    st.integers(0, 10**6),
    st.sampled_from([6, 12, 200]),
    searches(),
    st.lists(st.lists(st.integers(3, 5), max_size=7), min_size=2, max_size=9),
    st.randoms(use_true_random=False),
    st.sampled_from([1, 40, 150, 10**6]),
    st.tuples(st.booleans(), st.booleans(), st.sampled_from([1, 3, 8])),
)
@hypothesis_settings(max_examples=30)
def test_does_not_depend_on_batch_order_compaction_or_early_stop(seed, W, settings, sources, random, slots, switches):  # type: ignore[no-untyped-def]
    model = random_model(seed, W)
    expected = [translate(model, [source], settings, CPU)[0] for source in sources]
    order = list(range(len(sources)))
    random.shuffle(order)
    other = SearchSettings(
        settings.beam_size,
        settings.length_penalty,
        settings.max_extra_length,
        settings.nbest,
        early_stop=switches[0],
        compaction=switches[1],
    )
    with patch.dict(CHECK_EVERY, cpu=switches[2]):
        found = translate(model, [sources[i] for i in order], other, CPU, max_batch_slots=slots)
    for i, hypotheses in zip(order, found, strict=True):
        assert_same(hypotheses, expected[i])


@given(
    st.integers(0, 10**6),
    searches(3),
    st.lists(
        st.tuples(st.lists(st.integers(3, 5), min_size=1, max_size=5), st.integers(1, 9)), min_size=2, max_size=12
    ),
    st.sampled_from([1, 8]),
)
@hypothesis_settings(max_examples=30)
def test_each_sentence_of_a_batch_has_its_own_limit(seed, settings, items, check_every):  # type: ignore[no-untyped-def]
    model = random_model(seed, 12)
    sources, limits = [source for source, _ in items], [limit for _, limit in items]
    with evaluating(model):
        found = beam_search(model, *pad_sources(sources, CPU), limits, settings, check_every)
        for source, limit, hypotheses in zip(sources, limits, found, strict=True):
            assert_same(hypotheses, beam_search(model, *pad_sources([source], CPU), [limit], settings)[0])


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
@pytest.mark.parametrize("seed", range(4))
def test_equals_exhaustive_search_where_the_beam_holds_every_prefix(seed: int, alpha: float) -> None:
    W, source = 6, [3, 5]
    settings = SearchSettings(beam_size=64, length_penalty=alpha, max_extra_length=1, nbest=10)
    limit = len(source) + 1 + settings.max_extra_length  # 4 pieces: at most 3³ prefixes and EOS
    model = random_model(seed, W)
    complete: list[Hypothesis] = []
    prefixes: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for length in range(1, limit + 1):
        grown = []
        for total, prefix in prefixes:
            for piece, log_prob in enumerate(next_log_probs(model, source, prefix)):
                if piece == EOS_ID:
                    score = (total + log_prob) / length_penalty(length, alpha)
                    complete.append(Hypothesis(prefix, score, total + log_prob))
                elif piece not in (PAD_ID, BOS_ID):
                    grown.append((total + log_prob, (*prefix, piece)))
        prefixes = grown
    complete.sort(key=lambda h: -h.score)
    assert len(complete) == 1 + 3 + 9 + 27
    assert_same(translate(model, [source], settings, CPU)[0], complete[:10])


@given(st.integers(0, 10**6), searches(4, 8))
@hypothesis_settings(max_examples=15)
def test_a_teacher_forced_pass_gives_the_score(seed: int, settings: SearchSettings) -> None:
    model, source = random_model(seed, 12), [4, 7, 11]
    for hypothesis in translate(model, [source], settings, CPU)[0]:
        if not hypothesis.finished:
            continue
        likelihood = measure_likelihood(model, [source], [hypothesis.ids], CPU)
        assert hypothesis.log_prob == pytest.approx(-likelihood.nll, abs=1e-9)
        penalty = ((5 + likelihood.pieces) / 6) ** settings.length_penalty
        assert hypothesis.score == pytest.approx(-likelihood.nll / penalty, abs=1e-9)


@pytest.mark.parametrize("alpha", [0.0, 0.6])
@pytest.mark.parametrize("seed", range(6))
def test_a_beam_of_one_is_greedy(seed: int, alpha: float) -> None:
    model, source = random_model(seed, 12), [3, 8, 8, 5]
    ids: list[int] = []
    while len(ids) < len(source) + 1 + 10:
        values = next_log_probs(model, source, ids)
        values[PAD_ID] = values[BOS_ID] = float("-inf")
        best = max(range(12), key=values.__getitem__)
        if best == EOS_ID:
            break
        ids.append(best)
    settings = SearchSettings(beam_size=1, length_penalty=alpha, max_extra_length=10)
    assert translate(model, [source], settings, CPU)[0][0].ids == tuple(ids)


def test_early_stop_and_compaction_do_save_work(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(3, 12)
    with torch.no_grad():
        model.target_embedding.weight[EOS_ID] *= 3
    rows: list[int] = []
    step = Network.decode_step

    def counted(self, tokens, state, visible=None):  # type: ignore[no-untyped-def]
        rows.append(len(tokens))
        return step(self, tokens, state, visible)

    monkeypatch.setattr(Network, "decode_step", counted)
    sources = [[3 + i % 9] * (1 + i % 5) for i in range(16)]

    def work(**switches: bool) -> int:
        rows.clear()
        translate(model, sources, SearchSettings(4, 0.6, 20, **switches), CPU)
        return sum(rows)

    assert work() < work(early_stop=False)
    assert work() < work(compaction=False)


def test_what_never_ends_is_cut_at_its_own_limit_and_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(0, 12)
    logits, next_logits = Network.logits, Network.next_logits
    never = torch.zeros(12, dtype=torch.float64)
    never[EOS_ID] = -1e3
    monkeypatch.setattr(Network, "logits", lambda self, hidden: logits(self, hidden) + never)
    monkeypatch.setattr(Network, "next_logits", lambda self, *given: next_logits(self, *given) + never)
    sources = [[4, 5, 6], [7], [8, 9]]
    settings = SearchSettings(beam_size=2, max_extra_length=3, nbest=2)
    for source, found in zip(sources, translate(model, sources, settings, CPU), strict=True):
        assert [h.finished for h in found] == [False, False]
        assert {len(h.ids) for h in found} == {len(source) + 1 + 3}
        assert_same(found, naive_search(model, source, settings))


@pytest.mark.parametrize(
    "values", [{"beam_size": 0}, {"nbest": 5}, {"nbest": 0}, {"length_penalty": -0.1}, {"max_extra_length": -1}]
)
def test_impossible_settings_are_refused(values: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"settings|nbest"):
        SearchSettings(**values)


def test_logits_that_are_not_numbers_are_an_error() -> None:
    model = random_model(0, 12)
    with torch.no_grad():
        model.target_embedding.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match="not finite"):
        translate(model, [[3, 4]], SearchSettings(max_extra_length=2), CPU)
