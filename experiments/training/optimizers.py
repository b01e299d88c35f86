"""Adam as in section 5.3, its settings, and its state as named tensors.

The paper has neither weight decay nor clipping; both are off by default.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from experiments.config import TrainingConfig


def make_optimizer(model: nn.Module, settings: TrainingConfig) -> torch.optim.Adam:
    """Adam over all parameters; the learning rate is set before every step (`set_learning_rate`).

    Weight decay is decoupled (Loshchilov and Hutter 2019) and excludes vectors: biases and norms.
    `fused` updates each parameter and its two moments in one pass.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.Adam(
        [group for group in groups if group["params"]],
        lr=0.0,
        betas=(settings.adam_beta1, settings.adam_beta2),
        eps=settings.adam_epsilon,
        fused=True,
        decoupled_weight_decay=True,
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all parameter groups."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def clip(model: nn.Module, norm: float) -> None:
    """Scale all gradients together to a norm of at most `norm`; 0 does nothing."""
    if norm > 0:
        nn.utils.clip_grad_norm_(model.parameters(), norm)


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> dict[str, Tensor]:
    """The state after `step` updates by name: "exp_avg/<parameter>", ….

    "step/<parameter>", the number of its updates, only where it is not `step`: a parameter without a gradient (a layer
    that layer_drop left out) is not updated.
    """
    return {
        f"{kind}/{name}": value
        for name, parameter in model.named_parameters()
        for kind, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor) and not (kind == "step" and value.item() == step)
    }


def restore_optimizer(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], step: int
) -> None:
    """Restore the state of `optimizer_tensors`; tensors of other parameters are ignored."""
    parameters = dict(model.named_parameters())
    for key, value in tensors.items():
        kind, _, name = key.partition("/")
        if (parameter := parameters.get(name)) is not None:
            state = optimizer.state[parameter]
            if "step" not in state:
                state["step"] = torch.tensor(float(step), dtype=torch.float32, device=parameter.device)
            state[kind] = value.to(parameter.device, copy=True)
