"""A mixture of experts: several feed-forward networks, and gates that choose some of them for each position.

Shapes: B sentences, T positions, N positions that are not padding, D d_model, E experts, A experts of each position,
C rows that every expert computes, R rows of a search.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.layers.auxiliary_losses import add
from model.layers.contract import Inputs, State, StepContext, Sublayer
from model.layers.position_wise.experts_spec import ExpertsSpec
from model.layers.position_wise.feed_forward import FeedForward
from model.parts.dropout import normal_like
from model.settings import ModelSettings


class Experts(Sublayer):
    """y = Σ_{i ∈ T} g_i(x) E_i(x), where T is the set of the A experts with the largest gates.

    gate "softmax": g = softmax(W_r x), equations 1 and 2 of Fedus et al. 2021 (arXiv 2101.03961, section 2.1, with
    A = 1). The gates of the chosen experts are not divided by their sum, so that the router also learns with A = 1.
    gate "noisy_top_k": g = softmax(KeepTopK(h)), h = W_r x + ε · softplus(W_n x). In training ε is drawn from N(0, 1),
    otherwise it is 0 (Shazeer et al. 2017, arXiv 1701.06538, equations 3 to 5). The gates of the chosen experts add up
    to 1.

    `importance` is the weight of a loss: the squared coefficient of variation of the experts' sums of gates (equations
    6 and 7). `load` is the weight of the same loss for their expected numbers of positions (equations 8 to 11). Both
    losses are computed over the positions of one forward pass, which includes padding at the end of targets.

    In training with a capacity c, an expert computes at most c·N·A / E of the positions that chose it, the first ones
    in the batch. It adds nothing to the output of the other positions.
    """

    def __init__(self, config: ModelSettings, options: ExpertsSpec) -> None:
        super().__init__()
        self.options, self.active = options, options.active
        self.router = nn.Linear(config.d_model, options.count, bias=False)
        noisy = options.gate == "noisy_top_k"
        self.noise = nn.Linear(config.d_model, options.count, bias=False) if noisy else None
        self.experts = nn.ModuleList(FeedForward(config, options) for _ in range(options.count))

    def initialise(self) -> None:
        """Set both matrices of the noisy gate to 0: "equal load at the start" (Shazeer et al. 2017, appendix A)."""
        if self.noise is not None:
            nn.init.zeros_(self.router.weight)
            nn.init.zeros_(self.noise.weight)

    def forward(self, x_BTD: Tensor, inputs: Inputs) -> Tensor:
        """Compute whole sequences: (B, T, D) → (B, T, D). The output at masked padding is zero."""
        if inputs.keep_BT is None:
            return self._mixed(x_BTD.flatten(0, 1), inputs).view_as(x_BTD)
        where = inputs.keep_BT.nonzero(as_tuple=True)  # called only once, because nonzero waits for the GPU
        output_ND = self._mixed(x_BTD[where], inputs)
        return output_ND.new_zeros(x_BTD.shape).index_put(where, output_ND)

    def step(self, x_RD: Tensor, state: State, now: StepContext) -> Tensor:
        """Compute one position: (R, D) → (R, D)."""
        return self._mixed(x_RD, now.inputs)

    def gates(self, x_ND: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gates and the indices of the chosen experts, each (N, A). In training, add auxiliary losses."""
        clean_NE = self.router(x_ND).to(torch.promote_types(x_ND.dtype, torch.float32))
        if self.noise is None:
            gates_NE = clean_NE.softmax(-1)
            weights_NA, chosen_NA = gates_NE.topk(self.active)
        else:
            scale_NE = F.softplus(self.noise(x_ND).to(clean_NE.dtype))
            noisy_NE = clean_NE + normal_like(clean_NE) * scale_NE if self.training else clean_NE
            best, indices = noisy_NE.topk(min(self.active + 1, len(self.experts)))
            weights_NA, chosen_NA = best[:, : self.active].softmax(-1), indices[:, : self.active]
            gates_NE = torch.zeros_like(clean_NE).scatter(1, chosen_NA, weights_NA)
            if self.training and self.options.load:
                add(self.options.load * _variation(_load(clean_NE, noisy_NE, scale_NE, best)))
        if self.training and self.options.importance:
            add(self.options.importance * _variation(gates_NE.sum(0)))
        return weights_NA, chosen_NA

    def _mixed(self, x_ND: Tensor, inputs: Inputs) -> Tensor:
        """Sort the positions by expert, apply each expert to its positions, restore the order: (N, D) → (N, D).

        Gathering by a permutation gives bit-identical results in each run, also in the backward pass. Adding by index
        does not give bit-identical results.
        """
        weights_NA, chosen_NA = self.gates(x_ND)
        order = chosen_NA.flatten().argsort(stable=True)
        each_ND = x_ND.unsqueeze(1).expand(-1, self.active, -1).flatten(0, 1)
        limit = self._limit(len(order))
        if x_ND.is_cuda and limit < len(order):
            output_ND = self.padded(each_ND, chosen_NA.flatten(), order, limit, inputs)
            return (output_ND.view(*chosen_NA.shape, -1) * weights_NA.unsqueeze(-1)).sum(1)
        each_ND = each_ND.index_select(0, order)
        shares = torch.bincount(chosen_NA.flatten(), minlength=len(self.experts)).tolist()
        parts = []
        for expert, part_ND in zip(self.experts, torch.split(each_ND, shares), strict=True):
            found_ND = expert(part_ND[:limit], inputs)
            beyond = len(part_ND) - len(found_ND)
            parts.append(F.pad(found_ND, (0, 0, 0, beyond)) if beyond else found_ND)  # F.pad copies even if beyond = 0
        output_NAD = torch.cat(parts).index_select(0, order.argsort()).view(*chosen_NA.shape, -1)
        mixed_ND: Tensor = (output_NAD * weights_NA.unsqueeze(-1)).sum(1)
        return mixed_ND

    def padded(self, x_ND: Tensor, expert_N: Tensor, order_N: Tensor, limit: int, inputs: Inputs) -> Tensor:
        """Compute the experts' outputs for N pairs of a position and an expert, without a transfer from the GPU.

        Every expert computes `limit` rows. If it has fewer positions, its last rows belong to other experts, and these
        outputs are not used. The output of a pair beyond the limit of its expert is zero. order_N: indices that sort
        the pairs by expert.
        """
        before_E = (expert_N.unsqueeze(1) < torch.arange(len(self.experts), device=x_ND.device)).sum(0)
        place_N = order_N.argsort() - before_E.index_select(0, expert_N)  # place of each pair within its expert
        row_EC = before_E.unsqueeze(1) + torch.arange(limit, device=x_ND.device)
        taken_ND = x_ND.index_select(0, order_N.index_select(0, row_EC.clamp(max=len(order_N) - 1).flatten()))
        parts = [expert(part, inputs) for expert, part in zip(self.experts, torch.split(taken_ND, limit), strict=True)]
        found_ND = torch.cat(parts).index_select(0, expert_N * limit + place_N.clamp(max=limit - 1))
        return found_ND * (place_N < limit).unsqueeze(1)

    def _limit(self, assignments: int) -> int:
        """Return the largest number of positions that an expert computes."""
        if self.options.capacity is None or not self.training:
            return assignments
        return math.ceil(self.options.capacity * assignments / len(self.experts))


def _variation(sums_E: Tensor) -> Tensor:
    """Return the squared coefficient of variation. It is 0 for a single expert."""
    return sums_E.var(correction=0) / (sums_E.mean() ** 2 + 1e-10)


def _load(clean_NE: Tensor, noisy_NE: Tensor, scale_NE: Tensor, best: Tensor) -> Tensor:
    """Return the expected number of positions of each expert, (E,), by equations 8 to 10.

    best: the largest A + 1 noisy scores of each position.
    """
    last, next_one = best[:, -2:-1], best[:, -1:]  # the A-th and the (A + 1)-th largest score
    threshold_NE = torch.where(noisy_NE >= last, next_one, last)  # the A-th largest score of the other experts
    load_E: Tensor = torch.special.ndtr((clean_NE - threshold_NE) / scale_NE).sum(0)
    return load_E
