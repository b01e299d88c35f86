"""Lion (Chen 2023, arXiv 2302.06675, algorithm 2), which torch does not have."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class Lion(Optimizer):
    """c = β1·m + (1 − β1)·g;  θ ← θ − η·(sign(c) + λ·θ);  m ← β2·m + (1 − β2)·g.

    One number of state per weight (m, "exp_avg"). Every weight moves by η, so rates are 3 to 10 times smaller than
    Adam's. η and λ: "lr" and "weight_decay" of each group.
    """

    def __init__(self, params: Iterable[dict[str, Any]], betas: tuple[float, float]) -> None:
        super().__init__(params, {"lr": 0.0, "betas": betas, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            updated = [p for p in group["params"] if p.grad is not None]
            if updated:
                self._update(updated, group)

    def _update(self, updated: list[Tensor], group: dict[str, Any]) -> None:
        (beta1, beta2), rate = group["betas"], group["lr"]
        gradients = [p.grad for p in updated if p.grad is not None]
        for p in updated:
            if not self.state[p]:
                self.state[p]["exp_avg"] = torch.zeros_like(p)
        moments = [self.state[p]["exp_avg"] for p in updated]
        directions = torch._foreach_mul(moments, beta1)
        torch._foreach_add_(directions, gradients, alpha=1 - beta1)
        torch._foreach_sign_(directions)
        if group["weight_decay"]:
            torch._foreach_mul_(updated, 1 - rate * group["weight_decay"])
        torch._foreach_add_(updated, directions, alpha=-rate)
        torch._foreach_mul_(moments, beta2)
        torch._foreach_add_(moments, gradients, alpha=1 - beta2)
