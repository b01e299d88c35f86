"""What a network is like before its first update: how spread its attention is, and how large its gradient.

The paper suspects that products of queries and keys, whose variance grows with d_k, push the softmax "into regions
where it has extremely small gradients" (section 3.2.1, footnote 4).

Shapes: B sentences, S source, T target or queries, H heads, M memory.
"""

import statistics
from collections import defaultdict

import torch
from torch import Tensor, nn

from experiments.data.batches.batch import Batch
from experiments.data.encoding.tokenizer import PAD_ID
from experiments.device import Device
from model.protocol import Network
from model.sublayers.weights import watching

PLACES = 2048  # of both sides, of the sentences whose attention is measured: enough for a mean, little beside a step


def at_start(model: Network, batch: Batch[Tensor], device: Device) -> dict[str, float]:
    """Entropies and gradient norm of a network in training mode that has the gradients of its first step.

    entropy_encoder, entropy_decoder, entropy_cross: of the softmax of such attention, in nats, without dropout; the
    mean over layers, heads and the pieces of the first sentences of `batch`. gradient_norm: of all parameters together,
    before clipping; of the mean loss per target piece, with dropout, as the step has it.
    """
    found = {f"entropy_{kind}": value for kind, value in entropies(model, batch, device).items()}
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return {**found, "gradient_norm": nn.utils.get_total_norm(gradients).item()}


@torch.no_grad()
def entropies(model: Network, batch: Batch[Tensor], device: Device) -> dict[str, float]:
    """The mean entropy by kind of attention (model/sublayers/weights.py), of the kinds that the network has."""
    rows = max(1, PLACES // (batch.source.shape[1] + batch.target_input.shape[1]))
    source_BS, input_BT, output_BT = (
        device.move(side[:rows]) for side in (batch.source, batch.target_input, batch.target_output)
    )
    real = {"encoder": source_BS != PAD_ID, "decoder": output_BT != PAD_ID, "cross": output_BT != PAD_ID}
    found: dict[str, list[Tensor]] = defaultdict(list)

    def see(kind: str, weights_BHTM: Tensor) -> None:
        entropy_BHT = torch.special.entr(weights_BHTM.float()).sum(-1)
        found[kind].append(entropy_BHT.transpose(0, 1)[:, real[kind]].mean())

    model.eval()
    with device.autocast(), watching(model, see):
        model(source_BS, source_BS != PAD_ID, input_BT)
    model.train()
    return {kind: statistics.fmean(torch.stack(means).tolist()) for kind, means in found.items() if real[kind].any()}
