"""Measure gradients at the softmax of attention before training, with scaled and with unscaled products.

    python -m benchmarks.softmax_gradients [--widths 16,64,256] [--seeds 3] [--json]

The paper suspects that large products push the softmax "into regions where it has extremely small gradients" (section
3.2.1). The networks are those of the study `attention` (profile demo: one head, d_model 64). The loss L is that of the
first training step, without dropout. The command prints means over seeds and over the attention sub-layers of a
network:

    scores      standard deviation of the scores over memory positions, mean over queries (footnote 4: √d_k without
                scaling, for components with variance 1)
    entropy     entropy of the weights, in nats
    softmax     Frobenius norm of the softmax's Jacobian ∂p/∂s = diag(p) − p pᵀ, mean over queries
    ∂L/∂s       norm of the gradient with respect to all scores, the inputs of the softmax
    ∂L/∂q       norm of the gradient with respect to all queries; scores are q·k or q·k / √d_k
    ∂L/∂k       norm of the gradient with respect to all keys
    all         norm of the gradient with respect to all parameters of the network

Shapes: B sentences, H heads, Q queries, M memory positions, K d_k, V d_v.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ablations.planning.resolve import resolve
from ablations.study.selectors import Selection
from ablations.study.study import load_study
from experiments.config.run_config import RunConfig
from experiments.data.batching import BatchPlan
from experiments.data.collate import Batch, collate
from experiments.data.encoding.encoded import encoded_digest, open_encoded
from experiments.device import Device, seed_everything
from experiments.device_spec import DeviceSpec
from experiments.tasks.train_network import to_tensors
from experiments.tasks.translation import TASK
from experiments.training.loss import Objective
from model.layers.attention.multi_head import Attention, AttentionMask
from model.layers.masks import causal_bias
from model.network import build_model
from model.protocol import Network

COMPARED = ("scaled_dot", "dot")
MEASURES = ("scores", "entropy", "softmax", "∂L/∂s", "∂L/∂q", "∂L/∂k", "all")


def main() -> int:
    options = _options()
    torch.set_num_threads(1)
    widths = [int(width) for width in options.widths.split(",")]
    planned = resolve(load_study("attention"), Selection(profile="demo", rows=("base",)), TASK)
    config = planned[0].config
    assert isinstance(config, RunConfig)
    with tempfile.TemporaryDirectory() as store:
        found = [
            {"product": kind, "d_k": width, **measured(config, kind, width, options.seeds, Path(store))}
            for width in widths
            for kind in COMPARED
        ]
    if options.json:
        print(json.dumps(found))
        return 0
    print(f"{'product':>10}  {'d_k':>4}  {'  '.join(f'{name:>8}' for name in MEASURES)}")
    for row in found:
        print(f"{row['product']:>10}  {row['d_k']:>4}  {'  '.join(f'{row[name]:8.4f}' for name in MEASURES)}")
    return 0


def measured(config: RunConfig, kind: str, d_k: int, seeds: int, store: Path) -> dict[str, float]:
    """Return the measures for one product and width, as means over seeds 1 … `seeds` and over attention sub-layers."""
    model = config.model.model_copy(update={"compatibility": kind, "d_k": d_k, "dropout": 0.0})
    config = config.model_copy(update={"model": model})
    found = defaultdict[str, list[float]](list)
    for seed in range(1, seeds + 1):
        batch = first_batch(config, seed, store)
        seed_everything(seed)
        network = build_model(config.model, *TASK.vocab_sizes(config))
        for name, value in gradients(network.train(), config, batch).items():
            found[name].append(value)
    return {name: statistics.fmean(values) for name, values in found.items()}


def first_batch(config: RunConfig, seed: int, store: Path) -> Batch[Tensor]:
    """Return the batch of the first training step with this seed."""
    TASK.prepare(config, store, lambda *_: None)
    name = encoded_digest(TASK.inputs(config, store)["corpus"], config.data, config.model.shared_vocabulary)
    pairs = open_encoded(store / "corpora", name).train
    plan = BatchPlan(*(side.lengths for side in pairs.values()), config.training.tokens_per_batch, seed)
    return to_tensors(collate(pairs, plan.batch(0)))


def gradients(network: Network, config: RunConfig, batch: Batch[Tensor]) -> dict[str, float]:
    """Return the measures of one network on one batch."""
    seen: list[dict[str, Tensor]] = []
    objective = Objective(network, config.training)
    with plain_attention(network, seen):
        loss, _ = objective(*objective.inputs(batch, Device.open(DeviceSpec("cpu"), "fp32")))
    (loss / batch.num_target_tokens).backward()
    parameters = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
    every = defaultdict[str, list[float]](list)
    for attention in seen:
        weights_BHQM = attention["weights"].detach()
        every["scores"].append(_spread(attention["scores"].detach(), weights_BHQM))
        every["entropy"].append(torch.special.entr(weights_BHQM).sum(-1).mean().item())
        every["softmax"].append(jacobian_norm(weights_BHQM).mean().item())
        for name, tensor in (("∂L/∂s", "scores"), ("∂L/∂q", "queries"), ("∂L/∂k", "keys")):
            gradient = attention[tensor].grad
            assert gradient is not None
            every[name].append(gradient.norm().item())
    means = {name: statistics.fmean(values) for name, values in every.items()}
    return {**means, "all": nn.utils.get_total_norm(parameters).item()}


def jacobian_norm(weights_BHQM: Tensor) -> Tensor:
    """Return ‖diag(p) − p pᵀ‖ of each query's weights p, (B, H, Q): the root of Σ p² − 2 Σ p³ + (Σ p²)²."""
    square_BHQ = weights_BHQM.square().sum(-1)
    return (square_BHQ - 2 * weights_BHQM.pow(3).sum(-1) + square_BHQ.square()).clamp_min(0).sqrt()


def _spread(scores_BHQM: Tensor, weights_BHQM: Tensor) -> float:
    """Return the standard deviation of the scores of positions that a query may attend to, as a mean over queries."""
    seen_BHQM = weights_BHQM > 0
    count_BHQ = seen_BHQM.sum(-1)
    mean_BHQ1 = (scores_BHQM * seen_BHQM).sum(-1, keepdim=True) / count_BHQ[..., None]
    square_BHQ = ((scores_BHQM - mean_BHQ1).square() * seen_BHQM).sum(-1)
    several_BHQ = count_BHQ > 1
    return (square_BHQ[several_BHQ] / count_BHQ[several_BHQ]).sqrt().mean().item()


@contextmanager
def plain_attention(network: nn.Module, seen: list[dict[str, Tensor]]) -> Iterator[None]:
    """Within this context, compute attention with the plain formula and append its tensors to `seen`.

    The tensors are the queries, keys, scores and weights of each attention sub-layer.
    """

    def average_of(module: Attention) -> Any:
        def average(q_BHQK: Tensor, k_BHMK: Tensor, v_BHMV: Tensor, mask: AttentionMask) -> Tensor:
            scores_BHQM: Tensor = module.compare(q_BHQK, k_BHMK)
            masked_BHQM = scores_BHQM if mask.bias is None else scores_BHQM + mask.bias
            if mask.causal:
                masked_BHQM = masked_BHQM + causal_bias(q_BHQK.shape[2], scores_BHQM.dtype, scores_BHQM.device)
            weights_BHQM = masked_BHQM.softmax(-1)
            kept = {"queries": q_BHQK, "keys": k_BHMK, "scores": scores_BHQM, "weights": weights_BHQM}
            for tensor in kept.values():
                tensor.retain_grad()
            seen.append(kept)
            return (weights_BHQM @ v_BHMV).transpose(1, 2).flatten(2)

        return average

    attentions = [module for module in network.modules() if isinstance(module, Attention)]
    for module in attentions:
        module.average = average_of(module)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for module in attentions:
            del module.average


def _options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", default="16,64,256", help="d_k (default %(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="networks of each kind (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
