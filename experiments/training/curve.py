"""Measure a training: the points of its curve, and statistics of its network before the first and the last update.

Losses are collected on the device and emitted at intervals, so that no step waits for them.

Shapes: B sentences, S source, T target or queries, H heads, M memory positions, D d_model.
"""

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from experiments.data.collate import Batch
from experiments.data.encoding.tokenizer import PAD_ID
from experiments.device import Device
from experiments.errors import Diverged
from model.layers.attention.watching import watching
from model.protocol import Network

EVERY_STEPS = 10  # steps between regular points; these do not depend on the clock, so equal runs have equal points
EVERY_S = 2.0  # seconds after which an additional point is emitted if steps are slow


class Curve:
    """The curve of a training: "metrics" events with the loss of the newest step and the speeds since the last point.

    add_up: function that sums a tensor over the processes that train together. The curve uses it for the losses.
        Callers sum the token counts before they call `add`.
    """

    def __init__(self, emit: Callable[..., None], add_up: Callable[[Tensor], Tensor]) -> None:
        self._emit, self._add_up = emit, add_up
        self._waiting: list[tuple[int, Tensor, Tensor, int]] = []
        self.last: dict[str, float] = {}
        self._once: dict[str, float] = {}
        self.restart_clock()

    def restart_clock(self) -> None:
        """Exclude the time since the last point from the speeds, for instance after an evaluation."""
        self._source_tokens = self._target_tokens = self._positions = 0
        self._since = time.perf_counter()

    def add(self, step: int, loss: Tensor, nll: Tensor, target: int, source: int, positions: int) -> None:
        """Add one step.

        loss, nll: sums over the `target` tokens of this process.
        target, source: numbers of tokens without padding, of all processes.
        positions: number of positions of both sides with padding, of all processes.
        """
        self._waiting.append((step, loss, nll, target))
        self._source_tokens += source
        self._target_tokens += target
        self._positions += positions

    def tell(self, metrics: Mapping[str, float]) -> None:
        """Add numbers to the next point only."""
        self._once.update(metrics)

    def due(self, step: int) -> bool:
        """Return whether a point is due: every EVERY_STEPS steps, and EVERY_S seconds after the last point."""
        return step % EVERY_STEPS == 0 or time.perf_counter() - self._since >= EVERY_S

    def flush(self, learning_rate: float) -> None:
        """Wait for the device and emit one point.

        Raises Diverged if the loss of a step since the last point is not finite.
        """
        if not self._waiting:
            return
        sums = self._add_up(torch.stack([torch.stack((loss, nll)) for _, loss, nll, _ in self._waiting])).tolist()
        for (step, *_), (loss, _) in zip(self._waiting, sums, strict=True):
            if not math.isfinite(loss):
                raise Diverged(
                    f"the loss of step {step} is {loss}: training diverged. Use a lower training.learning_rate_scale "
                    "or training.learning_rate, a longer training.warmup_steps, or training.clip_norm."
                )
        seconds = time.perf_counter() - self._since
        step, _, _, tokens = self._waiting[-1]
        loss, nll = (value / max(1, tokens) for value in sums[-1])
        self.last = {"loss": loss, "nll": nll, "perplexity": math.exp(min(nll, 700.0))}
        speeds: dict[str, Any] = {
            "target_tokens_per_s": round(self._target_tokens / seconds, 1),
            "source_tokens_per_s": round(self._source_tokens / seconds, 1),
            "padding": round(1 - (self._target_tokens + self._source_tokens) / max(1, self._positions), 4),
        }
        self._emit("metrics", step=step, metrics={"learning_rate": learning_rate, **self.last, **speeds, **self._once})
        self._waiting.clear()
        self._once.clear()
        self.restart_clock()


# The paper suspects that products of queries and keys, whose variance grows with d_k, push the softmax "into regions
# where it has extremely small gradients" (section 3.2.1, footnote 4).


PLACES = 2048  # maximum number of positions to measure, which is enough for a mean and cheaper than a step
DISTANCES = (1, 2, 4, 8, 16, 32)  # number of word pieces from an input of the encoder to its last output


def init_stats(model: Network, batch: Batch[Tensor], device: Device) -> dict[str, float]:
    """Return entropies, the gradient norm and ratios of Jacobians. Call this after the backward pass of a step.

    entropy_encoder, entropy_decoder, entropy_cross: the entropy of each kind of attention in nats, without dropout.
        Each entropy is the mean over layers, heads and the pieces of the first sentences of `batch`.
    gradient_norm: the norm of the gradients of all parameters before clipping. The gradients are those of the step's
        mean loss per target piece, with dropout.
    jacobian_K: see `jacobians`.
    """
    stats = {f"entropy_{kind}": value for kind, value in entropies(model, batch, device).items()}
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    reach = {f"jacobian_{distance}": value for distance, value in jacobians(model, batch.source, device).items()}
    return {**stats, "gradient_norm": nn.utils.get_total_norm(gradients).item(), **reach}


def jacobians(model: Network, source_BS: Tensor, device: Device) -> dict[int, float]:
    """Return for each distance K the ratio ‖∂h_T/∂x_(T−K)‖ / ‖∂h_T/∂x_T‖, in fp32.

    h_T is the last output of the encoder, and x are its inputs. The norm is the root mean square of Frobenius norms
    over the first sentences. For a random v with unit variances, ‖vᵀJ‖² has the mean ‖J‖², so one backward pass is
    enough. In a recurrent layer, ∂h_T/∂x_(T−K) is the product of K Jacobians that Pascanu et al. 2013 study ("On the
    difficulty of training recurrent neural networks", arXiv 1211.5063). This product vanishes or explodes as K grows.
    The result does not contain distances that occur in no sentence. Without an encoder, the result is {}.
    """
    if not model.config.encoder:
        return {}
    source_BS = device.move(source_BS[: max(1, PLACES // source_BS.shape[1])])
    real_BS = source_BS != PAD_ID
    inputs: list[Tensor] = []

    def see(_: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        if inputs:
            return None  # a layer with shared weights is called again
        inputs.append(arguments[0].detach().requires_grad_())
        return (*inputs, *arguments[1:])

    hook = next(model.layers()).register_forward_pre_hook(see)
    model.eval()
    with torch.backends.cudnn.flags(enabled=False):  # cuDNN's recurrent layers have no backward pass in eval mode
        memory_BSD = model.encode(source_BS, real_BS)
        hook.remove()
        rows_B, last_B = torch.arange(len(source_BS), device=source_BS.device), real_BS.sum(1) - 1
        v_BD = torch.randn(memory_BSD[:, 0].shape, generator=torch.Generator().manual_seed(0))
        (gradient_BSD,) = torch.autograd.grad((memory_BSD[rows_B, last_B] * device.move(v_BD)).sum(), inputs)
    model.train()
    square_BS = gradient_BSD.square().sum(-1)

    def norm(distance: int) -> float:
        has_B = last_B >= distance
        return math.sqrt(square_BS[rows_B[has_B], last_B[has_B] - distance].mean().item())

    return {k: norm(k) / norm(0) for k in DISTANCES if k < real_BS.sum(1).max() and norm(0)}


@torch.no_grad()
def entropies(model: Network, batch: Batch[Tensor], device: Device) -> dict[str, float]:
    """Return the mean entropy of each kind of attention in the network (model/layers/attention/watching.py)."""
    rows = max(1, PLACES // (batch.source.shape[1] + batch.target_input.shape[1]))
    source_BS, input_BT, output_BT = (
        device.move(side[:rows]) for side in (batch.source, batch.target_input, batch.target_output)
    )
    real = {"encoder": source_BS != PAD_ID, "decoder": output_BT != PAD_ID, "cross": output_BT != PAD_ID}
    means_of: dict[str, list[Tensor]] = defaultdict(list)

    def see(kind: str, weights_BHTM: Tensor) -> None:
        entropy_BHT = torch.special.entr(weights_BHTM.float()).sum(-1)
        means_of[kind].append(entropy_BHT.transpose(0, 1)[:, real[kind]].mean())

    model.eval()
    with device.autocast(), watching(model, see):
        model(source_BS, source_BS != PAD_ID, input_BT)
    model.train()
    return {kind: statistics.fmean(torch.stack(means).tolist()) for kind, means in means_of.items() if real[kind].any()}
