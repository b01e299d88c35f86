"""A mixture of experts. Shapes: B sentences, T positions, N positions in all, D d_model, A experts of a position."""

import torch
from torch import Tensor, nn

from model.config import ModelConfig
from model.kinds import experts as kinds
from model.sublayers.contract import Given, Now, State, Sublayer
from model.sublayers.feed_forward import FeedForward


class Experts(Sublayer):
    """y = Σ_{i ∈ T} p_i(x) E_i(x), p = softmax(W_r x), T the A largest: equations 1 and 2 of Fedus et al. 2021.

    "Switch Transformers", section 2.1 (there A = 1). The p_i of the chosen are not divided by their sum, so that the
    router learns with A = 1 too. No expert has a limit, and no loss balances them: their shares may become unequal.
    """

    def __init__(self, config: ModelConfig, options: kinds.Experts) -> None:
        super().__init__()
        self.active = options.active
        self.router = nn.Linear(config.d_model, options.count, bias=False)
        self.experts = nn.ModuleList(FeedForward(config, options) for _ in range(options.count))

    def forward(self, x_BTD: Tensor, given: Given) -> Tensor:
        """(B, T, D) → (B, T, D). No expert computes padding, which gets zeros."""
        if given.keep_BT is None:
            return self._mixed(x_BTD.flatten(0, 1), given).view_as(x_BTD)
        output_ND = self._mixed(x_BTD[given.keep_BT], given)
        output_BTD = output_ND.new_zeros(x_BTD.shape)
        output_BTD[given.keep_BT] = output_ND
        return output_BTD

    def step(self, x_RD: Tensor, state: State, now: Now) -> Tensor:
        """(R, D) → (R, D)."""
        return self._mixed(x_RD, now.given)

    def _mixed(self, x_ND: Tensor, given: Given) -> Tensor:
        """Sort positions by expert, apply each expert to its part, bring the positions back to their places.

        Gathering by a permutation gives the same bits each time, also backwards; adding up by index would not.
        """
        weights_NA, chosen_NA = self.router(x_ND).softmax(-1).topk(self.active)
        order = chosen_NA.flatten().argsort(stable=True)
        shares = torch.bincount(chosen_NA.flatten(), minlength=len(self.experts)).tolist()
        each_ND = x_ND.unsqueeze(1).expand(-1, self.active, -1).flatten(0, 1).index_select(0, order)
        parts = [expert(part, given) for expert, part in zip(self.experts, torch.split(each_ND, shares), strict=True)]
        output_NAD = torch.cat(parts).index_select(0, order.argsort()).view(*chosen_NA.shape, -1)
        mixed_ND: Tensor = (output_NAD * weights_NA.unsqueeze(-1)).sum(1)
        return mixed_ND
