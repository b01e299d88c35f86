"""Step-by-step decoding with caches equals a full pass, for every kind of layer and any ancestry of beams."""

import itertools

import pytest
import torch

VARIANTS = [
    {"norm": norm, "positions": positions}
    for norm, positions in itertools.product(("post", "pre"), ("sinusoidal", "learned", "none"))
] + [{"d_k": 3, "d_v": 5}, {"num_heads": 1, "d_k": 8, "d_v": 8}, {"shared_vocabulary": False}]


@pytest.fixture(params=["plain", "sdpa"])
def kernel(request):
    return request.param


@pytest.fixture(params=[True, False], ids=["quick", "plain step"])
def quick(request):
    return request.param


def start(model, batch, beam_size, max_steps, masked=True):
    source = torch.randint(20, (batch, 6))
    mask_BS = torch.arange(6) < torch.randint(1, 7, (batch, 1)) if masked else None
    memory = model.encode(source, mask_BS)
    return memory, mask_BS, model.start_decoding(memory, mask_BS, beam_size, max_steps)


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("changes", VARIANTS, ids=str)
@torch.inference_mode()
def test_greedy_steps_equal_one_pass(small_model, kernel, quick, changes, masked):
    model = small_model(**changes)
    assert model.quick
    model.quick = quick
    model.set_attention_kernel(kernel)
    memory, mask_BS, state = start(model, batch=3, beam_size=1, max_steps=7, masked=masked)
    target = torch.randint(20, (3, 7))
    steps = [model.decode_step(target[:, t : t + 1], state) for t in range(7)]
    expected = model.decode(target, memory, mask_BS)
    torch.testing.assert_close(torch.cat(steps, dim=1), expected, atol=1e-10, rtol=0)


class Beams:
    """Beams that store each prefix and its slots by copying them."""

    def __init__(self, batch: int, size: int) -> None:
        self.pieces = [[[] for _ in range(size)] for _ in range(batch)]
        self.slots = [[[] for _ in range(size)] for _ in range(batch)]

    def advance(self, parents_BK, tokens_BK) -> None:
        for b, (parents, tokens) in enumerate(zip(parents_BK.tolist(), tokens_BK.tolist(), strict=True)):
            self.pieces[b] = [self.pieces[b][p] + [token] for p, token in zip(parents, tokens, strict=True)]
            self.slots[b] = [self.slots[b][p] + [k] for k, p in enumerate(parents)]

    def visible(self):
        slots_BKT = torch.tensor(self.slots)
        return torch.nn.functional.one_hot(slots_BKT, slots_BKT.shape[1]).bool()


@pytest.mark.parametrize("left", [(2, 0), (3, 1, 2)])
@pytest.mark.parametrize("changes", VARIANTS, ids=str)
@torch.inference_mode()
def test_beams_with_random_ancestors_equal_one_pass_each(small_model, kernel, quick, changes, left):
    model = small_model(**changes)
    model.quick = quick
    model.set_attention_kernel(kernel)
    batch, size = 4, 3
    memory, mask_BS, state = start(model, batch, size, max_steps=8)
    beams = Beams(batch, size)
    for t in range(7):
        if t == 4:  # some sentences are finished
            alive = list(left)
            state.keep(alive)
            memory, mask_BS, batch = memory[alive], mask_BS[alive], len(left)
            beams.pieces, beams.slots = ([x[i] for i in alive] for x in (beams.pieces, beams.slots))
        tokens_BK = torch.randint(20, (batch, size))
        beams.advance(torch.randint(size, (batch, size)), tokens_BK)
        hidden_BKD = model.decode_step(tokens_BK, state, beams.visible())
        for k in range(size):
            target = torch.tensor([beams.pieces[b][k] for b in range(batch)])
            expected = model.decode(target, memory, mask_BS)[:, -1]
            torch.testing.assert_close(hidden_BKD[:, k], expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
@torch.inference_mode()
def test_a_single_sentence_steps_as_it_reads(small_model, kernel, changes):
    model = small_model(**changes)
    model.set_attention_kernel(kernel)
    memory = torch.randn(1, 6, 8, dtype=torch.float64)
    state = model.start_decoding(memory, None, beam_size=3, max_steps=5)
    beams = Beams(1, 3)
    for t in range(5):
        if t == 2:
            state.keep([0])
        tokens_BK = torch.randint(20, (1, 3))
        beams.advance(torch.randint(3, (1, 3)), tokens_BK)
        hidden_BKD = model.decode_step(tokens_BK, state, beams.visible())
        for k in range(3):
            expected = model.decode(torch.tensor([beams.pieces[0][k]]), memory, None)[:, -1]
            torch.testing.assert_close(hidden_BKD[:, k], expected, atol=1e-10, rtol=0)


@torch.inference_mode()
def test_the_source_is_held_once_however_many_beams(small_model):
    model = small_model()
    _, _, state = start(model, batch=2, beam_size=5, max_steps=4)
    cache = state.layers[0]
    assert cache.memory_keys.shape == (2, 2, 6, 4)
    before = cache.self_keys.data_ptr()
    own = torch.eye(5, dtype=torch.bool).view(1, 5, 1, 5).expand(2, -1, -1, -1)
    model.decode_step(torch.randint(20, (2, 5)), state, own)
    assert cache.self_keys.data_ptr() == before  # written in place
    assert state.step == 1


@torch.inference_mode()
def test_decoding_in_bfloat16_autocast_stays_near_one_pass(small_model):
    model = small_model().float()
    with torch.autocast("cpu", torch.bfloat16):
        memory, mask_BS, state = start(model, batch=2, beam_size=1, max_steps=5)
        target = torch.randint(20, (2, 5))
        steps = torch.cat([model.decode_step(target[:, t : t + 1], state) for t in range(5)], dim=1)
        assert state.next_logits(steps[:, :1]).dtype == torch.float32, "on every device: the weights know none"
        torch.testing.assert_close(steps, model.decode(target, memory, mask_BS), atol=0.1, rtol=0)


@torch.inference_mode()
def test_misuse_is_refused(small_model):
    model = small_model(positions="learned", max_length=6)
    _, _, state = start(model, batch=2, beam_size=3, max_steps=4)
    tokens = torch.zeros(2, 3, dtype=torch.long)
    with pytest.raises(ValueError, match=r"3 beams need a mask of ancestors.*\(2, 3, 1, 3\)"):
        model.decode_step(tokens, state)
    with pytest.raises(ValueError, match=r"shape \(2, 3, 2, 3\), needs \(2, 3, 1, 3\)"):
        model.decode_step(tokens, state, torch.ones(2, 3, 2, 3, dtype=torch.bool))
    state.step = 4
    with pytest.raises(ValueError, match="max_steps = 4"):
        model.decode_step(tokens, state, torch.ones(2, 3, 5, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"a sequence has 9 pieces.*max_length = 6"):
        start(model, batch=2, beam_size=1, max_steps=9)
