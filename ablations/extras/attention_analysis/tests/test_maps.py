"""Attention maps of a sentence pair."""

import torch

from ablations.extras.attention_analysis.maps import attention_maps
from experiments.evaluation.translator import Translator
from model.layers.contract import Inputs
from tests.unit.experiments.test_translator import LINES, attempt, translator

__all__ = ["attempt", "translator"]


def test_attention_maps_are_distributions_over_what_may_be_seen(translator: Translator) -> None:
    found = attention_maps(translator, LINES[0], "die Katze")
    source, target = len(found["source"]), len(found["target"])
    assert (found["source"][-1], found["target"][0]) == ("</s>", "<s>")
    for kind, rows, columns in (("encoder", source, source), ("decoder", target, target), ("cross", target, source)):
        weights = torch.tensor(found["maps"][kind])
        assert weights.shape == (2, 2, rows, columns)
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, rows))
    decoder = torch.tensor(found["maps"]["decoder"])
    assert torch.equal(decoder, decoder.tril())


def test_attention_maps_are_the_weights_that_the_model_averages_with(translator: Translator) -> None:
    """First encoder layer: the recorded weights times the values, projected, are the layer's output."""
    found = attention_maps(translator, LINES[0])
    layer = translator.model.encoder.layers[0].self_attention
    ids = torch.tensor([[*translator.source_tokenizer.encode(LINES[0]), 2]])
    with torch.inference_mode():
        x = translator.model.encoder.positions(translator.model.target_embedding(ids))
        _, _, values = layer.project(x, 0, x.shape[1])
        weights = torch.tensor(found["maps"]["encoder"][0])[None]
        output = layer.output((weights @ values).transpose(1, 2).flatten(2))
        torch.testing.assert_close(output, layer(x, Inputs.encoder(None, x.dtype)), atol=1e-5, rtol=0)
