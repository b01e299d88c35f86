"""Drawn pieces: distributions, restrictions, windows, and that steps read what the text so far is."""

import pytest
import torch

from ablations.extras.language_models.sampler import Choice, Sampler, drawn
from ablations.extras.language_models.task import LanguageModel
from experiments.data.encoding.tokenizer import EOS_ID, Tokenizer
from experiments.data.encoding.utf8 import FILE, FIRST_BYTE, SIZE
from experiments.device import Device
from experiments.device_spec import DeviceSpec
from model.network import build_model

GREEDY = Choice(temperature=0)


def sampler(window: int = 16, **settings: object) -> Sampler:
    torch.manual_seed(3)
    sizes = {"num_layers": 2, "d_model": 8, "d_ff": 12, "num_heads": 2, "d_k": 4, "d_v": 4, **settings}
    model = build_model(LanguageModel.from_mapping(sizes), SIZE).double()
    with torch.no_grad():  # logits far from equal
        model.output_weight.mul_(6)
    return Sampler(model, Tokenizer(FILE), Device.open(DeviceSpec(), "fp32"), window)


def test_the_shares_are_those_of_the_softmax() -> None:
    logits = torch.tensor([0.0, 0, 0, 0, 2.0, 1.0, 0.0, -1.0]).expand(40_000, -1)
    generator = torch.Generator().manual_seed(1)
    for choice, kept in (
        (Choice(), [4, 5, 6, 7, EOS_ID]),
        (Choice(temperature=0.5), [4, 5, 6, 7, EOS_ID]),
        (Choice(top_k=2), [4, 5]),
        (Choice(top_p=0.6), [4, 5]),
        (Choice(top_p=0.4), [4]),
        (GREEDY, [4]),
    ):
        expected = torch.zeros(8)
        expected[kept] = (logits[0, kept] / (choice.temperature or 1)).softmax(-1)
        found = torch.bincount(drawn(logits, choice, generator), minlength=8) / len(logits)
        torch.testing.assert_close(found, expected, atol=0.012, rtol=0)


@pytest.mark.parametrize("decoder", ["N * (self_attention, feed_forward)", "lstm, convolution"])
def test_the_most_probable_continuation_is_that_of_a_plain_loop(decoder: str) -> None:
    of = sampler(decoder=decoder)
    symbols = [EOS_ID, *(FIRST_BYTE + byte for byte in b"ab")]
    with torch.inference_mode():
        of.model.eval()
        while len(symbols) < 16:
            hidden = of.model(torch.zeros(1, 0, dtype=torch.int64), None, torch.tensor([symbols]))
            logits = of.model.logits(hidden)[0, -1]
            logits[[0, 1, 3]] = -torch.inf
            symbols.append(int(logits.argmax()))
    found = [int(piece) for piece in of.draw("ab", 13, GREEDY, 1, 1)]
    expected = symbols[3:]
    assert found == expected[: expected.index(EOS_ID) + 1] if EOS_ID in expected else found == expected


def test_text_longer_than_a_window_goes_on_and_prompts_may_be_long() -> None:
    of = sampler(window=8, positions="learned", max_length=8)
    assert len(list(of.draw("", 50, Choice(temperature=5.0, top_k=100), 3, 1))) > 20
    (text,) = of.sample("x" * 100, 5, Choice())
    assert isinstance(text, str)


def test_seeds_name_texts() -> None:
    of = sampler()
    once, again, other = (of.sample("a", 12, Choice(), 4, seed) for seed in (1, 1, 2))
    assert once == again != other and len(set(once)) > 1
