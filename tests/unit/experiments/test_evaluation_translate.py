"""Tests of decoding: order, empty and too long lines, stopping."""

import pytest
import torch

from experiments.data.encoding.tokenizer import BOS_ID, EOS_ID, PAD_ID
from experiments.device import Device
from experiments.errors import Preempted, UserError
from experiments.evaluation.beam import SearchSettings
from experiments.evaluation.likelihood import evaluating
from experiments.evaluation.translate import LEAST_SLOTS, _pack, translate
from model.config import ModelConfig
from model.network import build_model
from model.protocol import Network

CPU = Device(torch.device("cpu"), "fp32", 1)
SETTINGS = SearchSettings(beam_size=2, max_extra_length=4)


def small_model(positions: str = "sinusoidal") -> Network:
    torch.manual_seed(0)
    config = ModelConfig(num_layers=1, d_model=8, d_ff=16, num_heads=2, d_k=4, d_v=4, positions=positions, max_length=9)
    model = build_model(config, 12).double().eval()
    with torch.no_grad():
        model.target_embedding.weight *= 3
    return model


def test_output_is_in_the_inputs_order_however_it_is_packed() -> None:
    model, sources = small_model(), [[4] * n for n in (3, 1, 6, 2, 5, 1)]
    alone = [translate(model, [source], SETTINGS, CPU)[0][0].ids for source in sources]
    assert len(set(alone)) > 1
    for slots in (1, 60, 10**6):
        found = translate(model, sources, SETTINGS, CPU, max_batch_slots=slots)
        assert [hypotheses[0].ids for hypotheses in found] == alone


def test_two_workers_get_four_equal_shares_and_every_sentence_once() -> None:
    sources = [[4] * (1 + n * 37 % 50) for n in range(300)] + [[]]
    limits = [len(source) + 10 for source in sources]
    batches = list(_pack(sources, limits, 4, 10**6, workers=2))
    assert sorted(i for batch in batches for i in batch) == list(range(300))
    needed = [sum(limits[i] for i in batch) for batch in batches]
    assert len(needed) == 4
    assert max(needed) - min(needed) <= 2 * max(limits)
    for slots in (LEAST_SLOTS, 3 * LEAST_SLOTS):
        for batch in _pack(sources, limits, 4, slots, workers=2):
            assert len(batch) * 4 * max(limits[i] for i in batch) <= slots
    assert len(list(_pack(sources[:5], limits, 4, 10**6, workers=2))) == 1  # too few to divide


def test_empty_lines_are_not_shown_to_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model()
    full = translate(model, [[5, 6]], SETTINGS, CPU)
    found = translate(model, [[], [5, 6], []], SETTINGS, CPU)
    assert [len(h[0].ids) > 0 for h in found] == [False, len(full[0][0].ids) > 0, False]
    monkeypatch.setattr(Network, "encode", lambda *_: pytest.fail("the model was run"))
    assert [h[0].ids for h in translate(model, [[], []], SETTINGS, CPU)] == [(), ()]
    assert translate(model, [], SETTINGS, CPU) == []


def test_a_line_beyond_the_position_table_is_refused_by_its_number() -> None:
    with pytest.raises(UserError, match=r"Line 2 of the source has 10 pieces.*max_length"):
        translate(small_model("learned"), [[4] * 8, [4] * 9], SETTINGS, CPU)
    assert len(translate(small_model(), [[4] * 9], SETTINGS, CPU)) == 1


def test_output_is_capped_where_the_position_table_ends() -> None:
    settings = SearchSettings(beam_size=2, max_extra_length=50, early_stop=False)
    found = translate(small_model("learned"), [[4] * 8, [5]], settings, CPU)
    assert all(len(h[0].ids) <= 9 for h in found)


def test_progress_rises_to_the_number_of_sentences() -> None:
    seen: list[tuple[int, int]] = []
    sources = [[4] * n for n in (3, 0, 6, 2)]
    translate(small_model(), sources, SETTINGS, CPU, max_batch_slots=30, progress=lambda *n: seen.append(n))
    assert seen[-1] == (4, 4)
    assert seen == sorted(set(seen))


def test_it_stops_when_asked_and_leaves_the_model_as_it_was() -> None:
    model = small_model().train()
    with pytest.raises(Preempted):
        translate(model, [[4, 5]], SETTINGS, CPU, should_stop=lambda: True)
    assert model.training


def test_evaluating_is_inference_without_dropout_and_ends() -> None:
    model = small_model().train()
    with evaluating(model):
        assert not model.training
        assert torch.is_inference_mode_enabled()
    assert model.training
    assert not torch.is_inference_mode_enabled()


def test_the_quick_search_equals_the_general_one_and_a_plain_greedy_loop() -> None:
    model, sources = small_model(), [[4] * n for n in (3, 1, 6, 2, 5, 1)] + [[5, 7, 9], [11, 4]]
    quick = translate(model, sources, SETTINGS, CPU)
    model.quick = False
    assert [one[0].ids for one in translate(model, sources, SETTINGS, CPU)] == [one[0].ids for one in quick]
    alone = [translate(model, [source], SETTINGS, CPU)[0][0].ids for source in sources]
    assert alone == [one[0].ids for one in quick]
    greedy = translate(model, sources, SearchSettings(beam_size=1, max_extra_length=4), CPU)
    for source, found in zip(sources, greedy, strict=True):
        assert found[0].ids == _greedy(model, [*source, EOS_ID], len(source) + 5)


def _greedy(model: Network, source: list[int], limit: int) -> tuple[int, ...]:
    """Repeatedly choose the most probable piece after a full pass over the prefix."""
    so_far = [BOS_ID]
    with evaluating(model):
        while len(so_far) <= limit:
            scores = model.logits(model(torch.tensor([source]), None, torch.tensor([so_far])))[0, -1]
            scores[PAD_ID : BOS_ID + 1] = -torch.inf
            so_far.append(int(scores.argmax()))
            if so_far[-1] == EOS_ID:
                return tuple(so_far[1:-1])
    return tuple(so_far[1:])
