"""Fine-tune by reinforcement learning of the expected GLEU (Wu et al. 2016, arXiv 1609.08144, section 5).

    O_RL(θ)    = Σ_i Σ_Y P_θ(Y | X_i) · GLEU(Y, Y*_i)        (equation 8)
    O_mixed(θ) = α · O_ML(θ) + O_RL(θ)                       (equation 9)

For each source, m sequences Y with rewards r are drawn from P_θ. The gradient of O_RL is estimated by the mean of
(r − r̄) · ∂ log P_θ(Y), where r̄ is the mean reward of the m sequences. Since r̄ includes r, the expected value of the
estimate is (m − 1) / m times the gradient. A sequence of pieces ends with EOS, or at twice the length of the longest
source in the batch.

Shapes: B sentences, m samples, R = B·m rows, S source, T pieces, N real pieces, D d_model, W vocabulary.
"""

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from experiments.data.encoding.tokenizer import BOS_ID, EOS_ID, PAD_ID
from model.parts.autocast import without_autocast
from model.protocol import Network

ORDERS = (1, 2, 3, 4)
ROWS_AT_ONCE = 4096  # number of rows whose logits are computed at once


def gleu(output: Sequence[int], reference: Sequence[int]) -> float:
    """Return GLEU: the smaller of precision and recall over all n-grams of 1 to 4 pieces, and 0 for an empty output."""
    ours, theirs = (
        Counter(tuple(ids[at : at + n]) for n in ORDERS for at in range(len(ids) - n + 1))
        for ids in (output, reference)
    )
    return (ours & theirs).total() / max(ours.total(), theirs.total(), 1)


def expected_gleu_loss(
    model: Network, source_BS: Tensor, mask_BS: Tensor | None, target_input_BT: Tensor, samples: int
) -> Tensor:
    """Return −Σ_i mean((r − r̄) · log P), with the mean over the samples of sentence i.

    The gradient of the result is an estimate of the gradient of −O_RL.
    """
    longest = min(2 * source_BS.shape[1], model.longest or 2 * source_BS.shape[1])
    pieces_RT, real_RT = draw(model, source_BS, mask_BS, samples, longest)
    references = [[piece for piece in row[1:] if piece != PAD_ID] for row in target_input_BT.tolist()]
    outputs = [
        [piece for piece, real in zip(*row, strict=True) if real and piece != EOS_ID]
        for row in zip(pieces_RT.tolist(), real_RT.tolist(), strict=True)
    ]
    rewards = [gleu(output, references[row // samples]) for row, output in enumerate(outputs)]
    reward_Bm = torch.tensor(rewards, device=source_BS.device).view(-1, samples)
    advantage_R = (reward_Bm - reward_Bm.mean(1, keepdim=True)).flatten() / samples

    memory_RSD = model.encode(source_BS, mask_BS).repeat_interleave(samples, 0)
    mask_RS = None if mask_BS is None else mask_BS.repeat_interleave(samples, 0)
    read_RT = torch.cat([torch.full_like(pieces_RT[:, :1], BOS_ID), pieces_RT[:, :-1]], 1)
    hidden_ND, piece_N = model.decode(read_RT, memory_RSD, mask_RS)[real_RT], pieces_RT[real_RT]
    weight_N = advantage_R[:, None].expand_as(real_RT)[real_RT]
    loss = hidden_ND.new_zeros((), dtype=torch.promote_types(hidden_ND.dtype, torch.float32))
    for part in (slice(at, at + ROWS_AT_ONCE) for at in range(0, len(piece_N), ROWS_AT_ONCE)):
        log_prob_n = checkpoint(_log_prob, model, hidden_ND[part], piece_N[part], use_reentrant=False)
        loss = loss - (weight_N[part] * log_prob_n).sum()
    return loss


def _log_prob(model: Network, hidden_ND: Tensor, piece_N: Tensor) -> Tensor:
    logits_NW = model.logits(hidden_ND)
    log_prob_NW = logits_NW.log_softmax(-1, dtype=torch.promote_types(logits_NW.dtype, torch.float32))
    return log_prob_NW.gather(1, piece_N[:, None])[:, 0]


@torch.no_grad()
def draw(
    model: Network, source_BS: Tensor, mask_BS: Tensor | None, samples: int, longest: int
) -> tuple[Tensor, Tensor]:
    """Draw sequences from P_θ without dropout.

    Returns the pieces (R, T), and a mask (R, T) that is true up to and including EOS.
    """
    training = model.training
    model.eval()
    with without_autocast(source_BS.device):
        memory_RSD = model.encode(source_BS, mask_BS).repeat_interleave(samples, 0)
        mask_RS = None if mask_BS is None else mask_BS.repeat_interleave(samples, 0)
        # attends=True avoids the quick search, whose cached copies of the weights are outdated after each step.
        state = model.start_decoding(memory_RSD, mask_RS, 1, longest, attends=True)
        piece_R1 = torch.full((len(memory_RSD), 1), BOS_ID, device=source_BS.device)
        pieces, real, alive_R1 = [], [], torch.ones_like(piece_R1, dtype=torch.bool)
        for _ in range(longest):
            logits_RW = model.next_logits(model.decode_step(piece_R1, state), state)[:, 0]
            piece_R1 = torch.multinomial(logits_RW.softmax(-1), 1)
            pieces.append(piece_R1)
            real.append(alive_R1)
            alive_R1 = alive_R1 & (piece_R1 != EOS_ID)
            if not bool(alive_R1.any()):
                break
    model.train(training)
    return torch.cat(pieces, 1), torch.cat(real, 1)
