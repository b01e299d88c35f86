"""The training objective as one module: a micro-batch in, its summed loss out.

Shapes: B batch, S source, T target, N real target tokens, D d_model, W vocabulary.
"""

import torch
from torch import Tensor, nn

from experiments.data.batches.batch import Batch
from experiments.data.encoding.tokenizer import PAD_ID
from experiments.device import Device
from experiments.training.loss import smoothed_loss
from model.parts.auxiliary import collecting
from model.protocol import Network


class Objective(nn.Module):
    """(Σ loss, Σ nll) over a micro-batch's real target tokens, in one forward call, so that DDP can wrap it.

    Losses of sub-layers (model/parts/auxiliary.py) are added to the loss of every token.
    """

    def __init__(self, model: Network, smoothing: float, *, masked: bool) -> None:
        super().__init__()
        self.model, self.smoothing = model, smoothing
        self.masked = masked  # always pass a mask: one compiled graph instead of two

    def forward(
        self, source_BS: Tensor, mask_BS: Tensor | None, target_input_BT: Tensor, real_N: Tensor, output_N: Tensor
    ) -> tuple[Tensor, Tensor]:
        with collecting() as auxiliary:
            hidden_BTD = self.model(source_BS, mask_BS, target_input_BT)
        hidden_ND = hidden_BTD.flatten(0, 1).index_select(0, real_N)
        loss, nll = smoothed_loss(hidden_ND, self.model.output_weight, output_N, self.model.vocab_size, self.smoothing)
        return (loss + len(real_N) * torch.stack(auxiliary).sum() if auxiliary else loss), nll

    def inputs(self, batch: Batch[Tensor], device: Device) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor]:
        """The arguments of `forward`, on the device."""
        output = batch.target_output.flatten()
        real_N = (output != PAD_ID).nonzero()[:, 0]  # on the processor, without waiting for a GPU
        source_BS = device.move(batch.source)
        padded = self.masked or batch.num_source_tokens < batch.source.numel()
        return (
            source_BS,
            source_BS != PAD_ID if padded else None,
            device.move(batch.target_input),
            device.move(real_N),
            device.move(output[real_N]),
        )
