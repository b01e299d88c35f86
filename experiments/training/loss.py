"""Label-smoothed cross-entropy (section 5.4) over the real target tokens, and the training objective.

Shapes: B batch, S source, T target, N real target tokens, C tokens of a chunk (in `_smoothed`: classes), G tokens of
WEIGHT_CHUNKS chunks, R tokens of a class, n pieces of a class, D d_model, W rows of the output matrix.
The first V = `vocab_size` rows belong to word pieces, and the other rows are padding.

The target distribution is that of tensor2tensor and fairseq: 1 − ε for the correct piece y and ε/(V−1) for each of the
V−1 other pieces. (torch's `cross_entropy(label_smoothing=)` gives ε/V to every piece.) With the logits z and
lse = log Σ exp z, the losses are

    loss = lse − (1−ε)·z_y − ε/(V−1)·(Σz − z_y)        ∂loss/∂z = softmax(z) − target distribution
    nll  = lse − z_y                                   the basis of perplexity: never smoothed

tensor2tensor subtracts a constant so that the minimum of the loss is 0. This module does not subtract it, because the
constant changes no gradient.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from experiments.config.training import TrainingConfig
from experiments.data.collate import Batch
from experiments.data.encoding.tokenizer import PAD_ID
from experiments.device import Device
from experiments.training.reinforcement import expected_gleu_loss
from model.layers.auxiliary_losses import collecting
from model.parts.dropout import permutation
from model.parts.embedding import Classes
from model.protocol import Network

CPU_CHUNK = 512  # tokens per chunk; larger chunks are hardly faster, smaller chunks make matrix products slow
CUDA_CHUNK = 8192  # a GPU is faster with few large launches
# In bf16 on a CPU, the number of rows is rounded up to a multiple of KERNEL_ROWS, because torch builds a kernel for
# each number of rows, and building takes time.
KERNEL_ROWS = 32
WEIGHT_CHUNKS = 2  # number of chunks that share one matrix product for the gradient of the weights


def smoothed_loss(
    hidden_ND: Tensor,
    weight_WD: Tensor,
    target_N: Tensor,
    vocab_size: int,
    smoothing: float,
    chunk: int = 0,
    real_N: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return (Σ loss, Σ nll) over N tokens. The nll has no gradient.

    Matrix products are computed in autocast's type. Everything else is computed in fp32, or in fp64 for fp64 inputs.
    The gradients are computed in the forward pass, chunk by chunk. The N × W logits therefore never exist at the same
    time, and no logit is computed twice. Under `no_grad`, only the sums are computed.

    real_N: False for rows of padding, which do not change the sums and gradients; None if no row is padding.
    """
    chunk = chunk or (CUDA_CHUNK if hidden_ND.is_cuda else CPU_CHUNK)
    differentiate = torch.is_grad_enabled() and (hidden_ND.requires_grad or weight_WD.requires_grad)
    if real_N is not None:  # a row of zeros gives the weights a gradient of 0, but its nll is not 0
        hidden_ND = hidden_ND * real_N[:, None]
    loss, nll = _SmoothedLoss.apply(  # type: ignore[no-untyped-call]
        hidden_ND, weight_WD, target_N, vocab_size, smoothing, chunk, differentiate, real_N
    )
    return loss, nll


class _SmoothedLoss(torch.autograd.Function):
    """The computation of `smoothed_loss`, whose forward pass also computes the gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_WD: Tensor,
        target_N: Tensor,
        vocab_size: int,
        smoothing: float,
        chunk: int,
        differentiate: bool,
        real_N: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        exact = torch.float64 if hidden_ND.dtype == torch.float64 else torch.float32
        kind = hidden_ND.device.type
        product = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden_ND.dtype
        with torch.autocast(hidden_ND.device.type, enabled=False):
            rows_ND, matrix_WD = _in_kernel_rows(hidden_ND.to(product)), weight_WD.to(product)
            gradients = _Gradients(rows_ND, matrix_WD, chunk, exact) if differentiate else None
            nll, z_y = torch.zeros(2, dtype=exact, device=rows_ND.device)
            others = smoothing / (vocab_size - 1)
            for start in range(0, len(rows_ND), chunk):
                part = slice(start, start + chunk)
                target_C = target_N[part]
                z_CW = gradients.logits(part) if gradients else rows_ND[part] @ matrix_WD.T
                z_CW[:, vocab_size:] = -torch.inf  # padding rows are not pieces
                real_CW = z_CW[: len(target_C)]
                z_y_C = real_CW.gather(1, target_C[:, None])[:, 0].to(exact)
                if gradients is None:
                    nll_C = real_CW.to(exact).logsumexp(1) - z_y_C
                else:
                    p_CW = gradients.softmax(part, z_CW)
                    p_CW[len(target_C) :] = 0
                    p_CW = p_CW[: len(target_C)]
                    if z_CW.is_cpu:
                        nll_C = _nll(p_CW, target_C, z_y_C, rows_ND[part], matrix_WD[:vocab_size])
                    else:
                        nll_C = logsumexp_of(real_CW, p_CW, exact) - z_y_C
                    # Subtract 1 − ε − ε/(V−1) at y. The ε/(V−1) of every piece is subtracted at the end.
                    p_CW[torch.arange(len(p_CW), device=p_CW.device), target_C] -= 1 - smoothing - others
                    gradients.add(part)
                if real_N is not None:
                    nll_C = nll_C * real_N[part]
                nll, z_y = nll + nll_C.sum(), z_y + z_y_C.sum()
            rows_D, pieces_D = rows_ND.sum(0, dtype=exact), matrix_WD[:vocab_size].sum(0, dtype=exact)
            loss = nll + smoothing * z_y - others * (rows_D @ pieces_D - z_y)
            if gradients:
                gradients.d_hidden_ND -= others * pieces_D
                gradients.d_weight_WD[:vocab_size] -= others * rows_D
        if gradients:
            ctx.save_for_backward(gradients.d_hidden_ND[: len(hidden_ND)], gradients.d_weight_WD)
        ctx.types = hidden_ND.dtype, weight_WD.dtype
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor, _nll: Tensor) -> tuple[Tensor | None, ...]:
        d_hidden_ND, d_weight_WD = ctx.saved_tensors
        hidden_type, weight_type = ctx.types
        return d_hidden_ND.to(hidden_type) * scale, d_weight_WD.to(weight_type) * scale, *[None] * 6


class _Gradients:
    """The gradients ∂Σloss/∂hidden and ∂Σloss/∂weight, accumulated from the logit gradients of the chunks."""

    def __init__(self, rows_ND: Tensor, matrix_WD: Tensor, chunk: int, exact: torch.dtype) -> None:
        self.rows_ND, self.matrix_WD = rows_ND, matrix_WD
        self.d_hidden_ND = torch.empty_like(rows_ND)
        # The first group of chunks replaces this tensor. Without rows, it remains zeros.
        self.d_weight_WD = torch.zeros_like(matrix_WD if len(rows_ND) == 0 else matrix_WD[:0], dtype=exact)
        self._exact = exact
        self._start = 0  # first row of the chunks in _waiting_GW
        self._waiting_GW = rows_ND.new_empty(min(WEIGHT_CHUNKS * chunk, len(rows_ND)), len(matrix_WD))

    def _here(self, part: slice) -> tuple[int, Tensor]:
        """Return the end of a chunk, and the view of `_waiting_GW` for its logit gradients."""
        stop = min(part.stop, len(self.rows_ND))
        return stop, self._waiting_GW[part.start - self._start : stop - self._start]

    def logits(self, part: slice) -> Tensor:
        """Return the logits of a chunk. On a CPU, the softmax and the gradients later overwrite this tensor."""
        rows_CD, matrix_DW = self.rows_ND[part], self.matrix_WD.T
        return torch.mm(rows_CD, matrix_DW, out=self._here(part)[1]) if rows_CD.is_cpu else rows_CD @ matrix_DW

    def softmax(self, part: slice, z_CW: Tensor) -> Tensor:
        """Return the softmax in the type of the products, with sums in fp32. On a CPU, it overwrites `z_CW`."""
        return torch.softmax(z_CW, 1, out=self._here(part)[1])

    def add(self, part: slice) -> None:
        """Add the gradients of a chunk, whose logit gradients are in `_waiting_GW`."""
        stop, d_z_here_CW = self._here(part)
        torch.mm(d_z_here_CW, self.matrix_WD, out=self.d_hidden_ND[part])
        if stop - self._start == len(self._waiting_GW) or stop == len(self.rows_ND):
            waiting_GW, rows_GD = self._waiting_GW[: stop - self._start], self.rows_ND[self._start : stop]
            found_WD = waiting_GW.T @ rows_GD
            if self._start:
                self.d_weight_WD += found_WD
            else:
                self.d_weight_WD = found_WD.to(self._exact)
            self._start = stop


def _in_kernel_rows(rows_ND: Tensor) -> Tensor:
    """Pad the rows with zeros to a multiple of KERNEL_ROWS if they are in bf16 on a CPU."""
    more = -len(rows_ND) % KERNEL_ROWS if rows_ND.is_cpu and rows_ND.dtype == torch.bfloat16 else 0
    return torch.nn.functional.pad(rows_ND, (0, 0, 0, more)) if more else rows_ND


def _nll(p_CW: Tensor, target_C: Tensor, z_y_C: Tensor, rows_CD: Tensor, matrix_VD: Tensor) -> Tensor:
    """Return −log p_y per token.

    In bf16, the relative error of p is at most half a percent, which is far below the error of the logits.
    """
    p_y_C = p_CW.gather(1, target_C[:, None])[:, 0].to(z_y_C.dtype)
    nll_C = -p_y_C.log()
    if not bool(p_y_C.all()):  # probabilities below 1e-38 are 0 in fp32, so compute their logarithm from the logits
        lost = (p_y_C == 0).nonzero()[:, 0]
        nll_C[lost] = (rows_CD[lost] @ matrix_VD.T).to(z_y_C.dtype).logsumexp(1) - z_y_C[lost]
    return nll_C


def logsumexp_of(z_CW: Tensor, p_CW: Tensor, exact: torch.dtype) -> Tensor:
    """Return log Σ exp z of each row, computed from the largest logit and its probability, without exponentials.

    The largest probability is never 0. Unlike `_nll`, this function therefore needs no check for zeros, which would
    make the program wait for the GPU. In bf16, the error is the same as in `_nll`.
    """
    largest_C, at_C = z_CW.max(1)
    return largest_C.to(exact) - p_CW.gather(1, at_C[:, None])[:, 0].to(exact).log()


def softmax_loss(
    model: Network, hidden_ND: Tensor, target_N: Tensor, smoothing: float, real_N: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return (Σ loss, Σ nll) over N tokens, with the kind of softmax that `model.softmax` sets.

    real_N: see `smoothed_loss`; only the full softmax uses it.
    """
    config, weight_WD = model.config, model.output_weight
    if config.softmax == "sampled":
        samples = config.softmax_samples
        return sampled_loss(hidden_ND, weight_WD, target_N, model.vocab_size, smoothing, samples)
    if model.classes is not None:
        return classes_loss(hidden_ND, weight_WD[: model.vocab_size], target_N, smoothing, model.classes)
    return smoothed_loss(hidden_ND, weight_WD, target_N, model.vocab_size, smoothing, real_N=real_N)


def sampled_loss(
    hidden_ND: Tensor, weight_WD: Tensor, target_N: Tensor, vocab_size: int, smoothing: float, samples: int
) -> tuple[Tensor, Tensor]:
    """Return (Σ loss, Σ nll) with the sums over other pieces estimated from a uniform sample of pieces.

    All tokens share one sample without replacement. S counts the drawn pieces other than the token's label. The sum is
    estimated as Σ_others exp z ≈ (V−1)/S · Σ_drawn exp z. The mean of z over the other pieces is estimated by its mean
    over the drawn pieces. This is importance sampling of the softmax's sum (Bengio & Senécal 2003, "Quick Training of
    Probabilistic Neural Nets by Importance Sampling") with a uniform proposal and an exact term for the label. Jean et
    al. 2015 (arXiv 1412.2007) compute the softmax over the drawn pieces and the label, without the factor (V−1)/S. If
    all pieces are drawn, the result is the full loss.
    """
    drawn_S = permutation(vocab_size, target_N.device)[:samples]
    z_y_N = (hidden_ND * weight_WD[target_N]).sum(-1).to(torch.promote_types(hidden_ND.dtype, torch.float32))
    z_NS = (hidden_ND @ weight_WD[drawn_S].T).to(z_y_N.dtype)
    own_NS = drawn_S == target_N[:, None]
    count_N1 = (~own_NS).sum(1, keepdim=True)
    more_NS = (z_NS + (math.log(vocab_size - 1) - count_N1.log())).masked_fill(own_NS, -math.inf)
    lse_N = torch.cat([z_y_N[:, None], more_NS], 1).logsumexp(1)
    others_N = z_NS.masked_fill(own_NS, 0).sum(1) / count_N1[:, 0]
    loss = (lse_N - (1 - smoothing) * z_y_N - smoothing * others_N).sum()
    return loss, (lse_N - z_y_N).sum().detach()


def classes_loss(
    hidden_ND: Tensor, weight_VD: Tensor, target_N: Tensor, smoothing: float, classes: Classes
) -> tuple[Tensor, Tensor]:
    """Return the sums of −log P(class) − log P(piece | class). Label smoothing is applied to each of the two terms.

    The logits are computed for all classes, and for the pieces in each token's class.
    """
    of_N = target_N // classes.size
    exact = torch.promote_types(hidden_ND.dtype, torch.float32)
    loss, nll = _smoothed(classes.output(hidden_ND).to(exact).log_softmax(-1), of_N, smoothing)
    for one in torch.unique(of_N).tolist():
        rows = (of_N == one).nonzero()[:, 0]
        first = one * classes.size
        z_Rn = (hidden_ND[rows] @ weight_VD[first : first + classes.size].T).to(exact)
        its_loss, its_nll = _smoothed(z_Rn.log_softmax(-1), target_N[rows] - first, smoothing)
        loss, nll = loss + its_loss, nll + its_nll
    return loss, nll


def _smoothed(log_prob_NC: Tensor, target_N: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    right_N = log_prob_NC.gather(1, target_N[:, None])[:, 0]
    others_N = (log_prob_NC.sum(1) - right_N) / max(1, log_prob_NC.shape[1] - 1)
    return -((1 - smoothing) * right_N + smoothing * others_N).sum(), -right_N.sum().detach()


class Objective(nn.Module):
    """The training objective: (Σ loss, Σ nll) over the real target tokens of a micro-batch.

    It is one module with one forward call, so that DDP can wrap it. Auxiliary losses of layers
    (model/layers/auxiliary_losses.py) are added to the loss of every token.
    """

    def __init__(self, model: Network, settings: TrainingConfig) -> None:
        super().__init__()
        self.model, self.settings = model, settings

    def forward(
        self,
        source_BS: Tensor,
        mask_BS: Tensor | None,
        target_input_BT: Tensor,
        places_N: Tensor,
        output_N: Tensor,
        real_N: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        with collecting() as auxiliary:
            hidden_BTD = self.model(source_BS, mask_BS, target_input_BT)
        hidden_ND = hidden_BTD.flatten(0, 1).index_select(0, places_N)
        loss, nll = softmax_loss(self.model, hidden_ND, output_N, self.settings.label_smoothing, real_N)
        if samples := self.settings.gleu_samples:
            expected = expected_gleu_loss(self.model, source_BS, mask_BS, target_input_BT, samples)
            loss = self.settings.likelihood_weight * loss + expected
        return (loss + len(places_N) * torch.stack(auxiliary).sum() if auxiliary else loss), nll

    def inputs(self, batch: Batch[Tensor], device: Device) -> tuple[Tensor | None, ...]:
        """Return the arguments of `forward` for a batch, on the device."""
        places_N = device.move(real_places(batch.target_output) if batch.real is None else batch.real)
        output_N = device.move(batch.target_output).flatten().index_select(0, places_N)
        source_BS = device.move(batch.source)
        # Compiled layers always get a mask, so that they need one graph instead of two.
        padded = self.settings.compile is True or batch.num_source_tokens < batch.source.numel()
        return (
            source_BS,
            source_BS != PAD_ID if padded else None,
            device.move(batch.target_input),
            places_N,
            output_N,
            output_N != PAD_ID if len(places_N) > batch.num_target_tokens else None,
        )


def real_places(output_BT: Tensor, count: int = 0) -> Tensor:
    """Return (N,): the indices of the real tokens in the flattened batch.

    Call this function with a tensor on the CPU. With a tensor on a GPU, it would wait for the GPU.

    count: minimum length of the result. If there are fewer real tokens, indices of padding follow.
    """
    real = output_BT.flatten() != PAD_ID
    places = real.nonzero()[:, 0]
    if len(places) >= count:
        return places
    return torch.cat((places, (~real).nonzero()[: count - len(places), 0]))
