"""Check that this device computes "fp32" in fp32 for several kinds of layers, by comparison with fp64 on the CPU.

    python -m benchmarks.gpu.errors --out FILE.json [--device cpu]

The result is the largest error of outputs and gradients, relative to the largest value. It is about 1e-6 for fp32 and
about 1e-3 for TF32, which torch uses by default for recurrent and convolutional layers on a GPU. The exit code is 1 if
an error is larger than LIMIT.
"""

import argparse
import copy
import json
import sys
from pathlib import Path

import torch
from torch import nn

from benchmarks.gpu.exits import DONE, FAILED
from benchmarks.machine import keep_report, machine
from benchmarks.measured import exit_code, positive
from experiments.device import Device
from experiments.device_spec import DeviceSpec
from experiments.training.loss import smoothed_loss
from model.config import ModelConfig
from model.network import build_model

LINES = ("self_attention, feed_forward", "lstm", "gru", "convolution", "experts(count=4, active=2)")
LIMIT = 1e-4
WORDS, PIECES, ROWS = 40, 500, 16


def main() -> int:
    options = _options()
    device = Device.open(DeviceSpec(options.device, 4), "fp32")
    results = {line: _error(line, device) for line in LINES}
    keep_report({"errors": results, "limit": LIMIT, "device": device.describe(), **machine()}, options.out)
    positive("errors", **results)  # an error of exactly 0 or NaN means that nothing was compared
    worst = max(results, key=results.__getitem__)
    print(f"largest relative error of fp32 {results[worst]:.1e} ({worst}); all: {json.dumps(results)}")
    return DONE if results[worst] < LIMIT else FAILED


def _error(line: str, device: Device) -> float:
    """Return the largest relative error of the hidden states and the gradients, against the same network in fp64."""
    torch.manual_seed(1)
    sizes = {"num_layers": 1, "d_model": 128, "d_ff": 256, "num_heads": 2, "d_k": 64, "d_v": 64, "dropout": 0.0}
    config = ModelConfig(**sizes, encoder=f"2 * ({line})", decoder="self_attention, cross_attention, feed_forward")
    exact = build_model(config, PIECES).double()
    model = copy.deepcopy(exact).float().to(device.torch_device)
    ids_BT, target_BT = torch.randint(4, PIECES, (2, ROWS, WORDS))
    expected, found = _passed(exact, ids_BT, target_BT), _passed(model, device.move(ids_BT), device.move(target_BT))
    pairs = zip(expected, found, strict=True)
    errors = torch.tensor([_relative(one, other) for one, other in pairs])
    return float(f"{errors.max().item():.2e}")  # NaN if any error is NaN


def _passed(model: nn.Module, ids_BT: torch.Tensor, target_BT: torch.Tensor) -> list[torch.Tensor]:
    hidden_BTD = model(ids_BT, None, target_BT)
    loss, _ = smoothed_loss(hidden_BTD.flatten(0, 1), model.output_weight, target_BT.flatten(), PIECES, 0.1)
    (loss / target_BT.numel()).backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [hidden_BTD.detach(), torch.cat([gradient.flatten() for gradient in gradients])]


def _relative(exact: torch.Tensor, found: torch.Tensor) -> float:
    return float((found.cpu().double() - exact).abs().max() / exact.abs().max())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="has no effect: this benchmark is always small")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(exit_code(main))
