"""The losses of an LSTM with attention equal those of a plain loop over torch.nn.LSTM with the same weights."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from experiments.training import curve
from model.config import ModelConfig
from model.protocol import Network
from tests.plain_loop import LONGEST, our_losses, plain_losses
from tests.slow import mostly_nightly

SIZES = ModelConfig(
    d_model=16, num_heads=1, d_k=16, d_v=16, dropout=0.0, positions="none", norm="none", compatibility="additive",
    encoder="lstm(bidirectional=true, residual=false)",
    decoder="lstm(residual=false), cross_attention, lstm(residual=false)",
)  # fmt: skip


class Plain(nn.Module):
    """An LSTM encoder and decoder with attention as in Bahdanau et al. 2015, appendix A.1.2.

    The attention reads a bidirectional LSTM and lies between the decoder's two LSTMs.
    """

    def __init__(self, ours: Network) -> None:
        super().__init__()
        width = SIZES.d_model
        self.embedding = nn.Embedding.from_pretrained(ours.output_weight.detach().clone(), freeze=False)
        self.encoder = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.below, self.above = (nn.LSTM(width, width, batch_first=True) for _ in range(2))
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.v = nn.Parameter(torch.empty(width))
        self.to(ours.output_weight.dtype)
        self._copy(ours)

    @torch.no_grad()
    def _copy(self, ours: Network) -> None:
        theirs = ours.encoder.layers[0].lstm
        for name, weight in theirs.ahead.named_parameters():
            getattr(self.encoder, name).copy_(weight)
        for name, weight in theirs.back.named_parameters():
            getattr(self.encoder, f"{name}_reverse").copy_(weight)
        below, attention, above = ours.decoder.layers
        self.below.load_state_dict(below.lstm.ahead.state_dict())
        self.above.load_state_dict(above.lstm.ahead.state_dict())
        attention = attention.cross_attention
        self.query.load_state_dict(attention.query.state_dict())
        self.output.load_state_dict(attention.output.state_dict())
        for place, part in enumerate((self.key, self.value)):
            rows = slice(place * SIZES.d_model, (place + 1) * SIZES.d_model)
            part.weight.copy_(attention.key_value.weight[rows])
            part.bias.copy_(attention.key_value.bias[rows])
        self.v.copy_(attention.compare.weight[0])

    def forward(self, source: Tensor, target_input: Tensor) -> Tensor:
        lengths = (source != 0).sum(1)
        packed = pack_padded_sequence(self._embed(source), lengths, batch_first=True, enforce_sorted=False)
        states = pad_packed_sequence(self.encoder(packed)[0], batch_first=True, total_length=LONGEST)[0]
        memory = states[..., : SIZES.d_model] + states[..., SIZES.d_model :]
        hidden, state = self._embed(target_input), None
        keys, values, outputs = self.key(memory), self.value(memory), []
        for step in range(LONGEST):
            below, state = self.below(hidden[:, step : step + 1], state)
            scores = torch.tanh(self.query(below) + keys) @ self.v
            weights = scores.masked_fill(source == 0, -torch.inf).softmax(-1)
            context = (weights[..., None] * values).sum(1)
            outputs.append(below[:, 0] + self.output(context))
        above = self.above(torch.stack(outputs, 1))[0]
        return above @ self.embedding.weight.T

    def _embed(self, pieces: Tensor) -> Tensor:
        return self.embedding(pieces) * SIZES.d_model**0.5


@pytest.mark.parametrize("steps", mostly_nightly([20, 300], 1))
def test_the_curve_is_a_plain_loops(steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curve, "EVERY_STEPS", 1)
    ours = our_losses(SIZES, steps, torch.float64, tmp_path)
    assert ours == pytest.approx(plain_losses(Plain, SIZES, steps, torch.float64), rel=1e-12 if steps <= 20 else 1e-9)
    if steps > 20:
        assert ours[-1] < 0.9 * ours[0], "it learns"
