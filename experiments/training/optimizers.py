"""Make the optimizers, and save and restore their state as named tensors.

The paper uses Adam (section 5.3) without weight decay or gradient clipping; both are off by default.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from experiments.config.training import OptimizerName, TrainingConfig, momentum, nesterov
from model.protocol import Network


class Lion(Optimizer):
    """The optimizer Lion (Chen 2023, arXiv 2302.06675, algorithm 2).

    c = β1·m + (1 − β1)·g;  θ ← θ − η·(sign(c) + λ·θ);  m ← β2·m + (1 − β2)·g.

    η is the "lr" and λ the "weight_decay" of each group. The state is one number per weight: m ("exp_avg"). Without
    decay, every weight changes by η, so learning rates are 3 to 10 times smaller than for Adam.
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


def make_optimizers(model: Network, settings: TrainingConfig) -> dict[str, Optimizer]:
    """Return the optimizers of a training by name. Except with muon, one optimizer updates all parameters.

    With muon, Muon updates the matrices of the layers (`hidden_matrices`), and Adam updates all other parameters, as
    the author of Muon recommends. The caller sets the learning rate before every step (`set_learning_rate`). Weight
    decay is not applied to vectors (biases and the weights of normalization layers).
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    if settings.optimizer != "muon":
        name, make = MAKERS[settings.optimizer]
        return {name: make(_groups(parameters, settings), settings)}
    hidden = {id(p): p for p in hidden_matrices(model) if p.requires_grad}
    rest = [p for p in parameters if id(p) not in hidden]
    optimizers: dict[str, Optimizer] = {}
    if hidden:
        optimizers["muon"] = _muon(_groups(list(hidden.values()), settings), settings)
    if rest:
        optimizers["adam-fused"] = _adam(_groups(rest, settings), settings)
    return optimizers


def hidden_matrices(model: Network) -> Iterator[nn.Parameter]:
    """Yield the weight matrices of linear and recurrent layers, but not embeddings or tables of positions."""
    for layer in model.layers():
        for module in layer.modules():
            if isinstance(module, nn.Linear | nn.RNNBase):
                yield from (p for p in module.parameters(recurse=False) if p.ndim == 2)


def _groups(parameters: Sequence[nn.Parameter], settings: TrainingConfig) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


Groups = list[dict[str, Any]]


def _adam(groups: Groups, settings: TrainingConfig) -> Optimizer:
    """Return Adam (Kingma and Ba 2015, algorithm 1) with decoupled weight decay. With a decay above 0, this is AdamW.

    `fused` updates each parameter and its two moments in one pass.
    """
    return torch.optim.Adam(
        groups,
        lr=0.0,
        betas=(settings.adam_beta1, settings.adam_beta2),
        eps=settings.adam_epsilon,
        fused=True,
        decoupled_weight_decay=True,
    )


def _sgd(groups: Groups, settings: TrainingConfig) -> Optimizer:
    """Return SGD with momentum: B ← μB + g, θ ← θ − ηB, or with Nesterov momentum θ ← θ − η(g + μB).

    The gradient g includes the weight decay.
    """
    return torch.optim.SGD(groups, lr=0.0, momentum=momentum(settings), nesterov=nesterov(settings), fused=True)


def _adafactor(groups: Groups, settings: TrainingConfig) -> Optimizer:
    """Return torch's version of Adafactor (Shazeer and Stern 2018, arXiv 1804.04235).

    An update has the size min(η, 1/√step) · max(10⁻³, RMS(θ)), so the learning rate η is the largest relative update.
    The paper uses 0.01.
    """
    return torch.optim.Adafactor(groups, lr=0.0)


def _muon(groups: Groups, settings: TrainingConfig) -> Optimizer:
    """Return Muon (Jordan 2024, https://kellerjordan.github.io/posts/muon/).

    Five Newton–Schulz steps make the momentum orthogonal. An update is scaled by 0.2 · √(longer side), so that Muon and
    Adam can use the same learning rate (Liu 2025, arXiv 2502.16982).
    """
    return torch.optim.Muon(
        groups, lr=0.0, momentum=momentum(settings), nesterov=nesterov(settings), adjust_lr_fn="match_rms_adamw"
    )


# `training.optimizer` → (name in records, function that makes the optimizer). make_optimizers handles muon.
MAKERS: dict[OptimizerName, tuple[str, Callable[[Groups, TrainingConfig], Optimizer]]] = {
    "adam": ("adam-fused", _adam),
    "adamw": ("adamw-fused", _adam),
    "sgd": ("sgd-fused", _sgd),
    "adafactor": ("adafactor", _adafactor),
    "lion": ("lion", lambda groups, settings: Lion(groups, (settings.lion_beta1, settings.lion_beta2))),
}


UNCOUNTED = (torch.optim.SGD, torch.optim.Muon, Lion)  # optimizers that do not count their updates


def set_learning_rate(optimizers: Mapping[str, Optimizer], rate: float) -> None:
    """Set the learning rate of all parameters."""
    for optimizer in optimizers.values():
        for group in optimizer.param_groups:
            group["lr"] = rate


def update(optimizers: Mapping[str, Optimizer]) -> None:
    """Update the weights by their gradients, and discard the gradients."""
    for optimizer in optimizers.values():
        optimizer.step()
    discard_gradients(optimizers)


def discard_gradients(optimizers: Mapping[str, Optimizer]) -> None:
    """Free the gradients."""
    for optimizer in optimizers.values():
        optimizer.zero_grad(set_to_none=True)


def clip(model: nn.Module, norm: float) -> None:
    """Scale all gradients so that their total norm is at most `norm`. 0 turns clipping off."""
    if norm > 0:
        nn.utils.clip_grad_norm_(model.parameters(), norm)


def updated_by(optimizers: Mapping[str, Optimizer]) -> dict[str, int]:
    """Return the number of weights that each optimizer updates."""
    return {
        name: sum(p.numel() for group in optimizer.param_groups for p in group["params"])
        for name, optimizer in optimizers.items()
    }


def optimizer_tensors(model: nn.Module, optimizers: Mapping[str, Optimizer], step: int) -> dict[str, Tensor]:
    """Return the tensors of the optimizers' state after `step` updates, by name: "exp_avg/<parameter>", ….

    "step/<parameter>" is the number of updates of a parameter. The result contains this tensor only if the number
    differs from `step`, because the parameter had no gradient in some steps (for example, layer_drop left out its
    layer).
    """
    return {
        f"{kind}/{name}": value
        for name, parameter in model.named_parameters()
        for optimizer in optimizers.values()
        for kind, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor) and not (kind == "step" and value.item() == step)
    }


def restore_optimizers(
    model: nn.Module, optimizers: Mapping[str, Optimizer], tensors: Mapping[str, Tensor], step: int
) -> None:
    """Restore the state that `optimizer_tensors` returned. Tensors of unknown parameters are ignored."""
    parameters = dict(model.named_parameters())
    owners = {id(p): o for o in optimizers.values() for group in o.param_groups for p in group["params"]}
    for key, value in tensors.items():
        kind, _, name = key.partition("/")
        if (parameter := parameters.get(name)) is not None:
            owner = owners[id(parameter)]
            state = owner.state[parameter]
            if "step" not in state and not isinstance(owner, UNCOUNTED):
                state["step"] = torch.tensor(float(step), dtype=torch.float32, device=parameter.device)
            state[kind] = value.to(parameter.device, copy=True)
