"""Two lanes: threads of one process that compute a step's micro-batches in parallel, on half of its cores each.

A small model's operations are too short to be divided among cores. On two cores, a step of multi30k's model (2.4 M
parameters, 4,096 tokens) takes 323 ms, in two lanes 267 ms; base (63 M; large products) 1.29 s and 1.48 s in bf16.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import torch
from torch import Tensor, nn

from experiments.config import TrainingConfig
from experiments.device import Device, mix
from experiments.training.parallel.group import Group
from model.parts.dropout import draw_from

LANES = 2
LARGEST = 2**24  # parameters; each lane holds a gradient per parameter


def lanes_for(model: nn.Module, settings: TrainingConfig, device: Device, group: Group) -> int:
    """Number of lanes of a training; 1 means no lanes."""
    small = sum(p.numel() for p in model.parameters()) <= LARGEST
    alone = not device.is_cuda and group.size == 1 and not settings.compile
    return LANES if small and alone and device.threads >= LANES else 1


class Lanes:
    """Lane r takes micro-batches r, r + lanes, …, so sums of gradients do not depend on which lane ends first."""

    def __init__(self, model: nn.Module, count: int, threads: int) -> None:
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._generators = [torch.Generator() for _ in range(count)]
        self._pool = ThreadPoolExecutor(count, "lane", initializer=_begin, initargs=(max(1, threads // count),))

    def seed(self, value: int) -> None:
        """Seed the dropout generator of each lane."""
        for lane, generator in enumerate(self._generators):
            generator.manual_seed(mix(value, lane))

    def backward(self, loss_of: Callable[[Any], tuple[Tensor, Tensor]], batches: Sequence[Any]) -> list[Tensor]:
        """Set the parameters' gradients to those of the sum of all micro-batches' losses.

        `loss_of(batch)` returns (loss, facts); returns the facts in the order of the batches. An error is raised once
        no lane is working any more.
        """
        count = len(self._generators)
        running = [
            self._pool.submit(self._lane, lane, loss_of, batches[lane::count])
            for lane in range(min(count, len(batches)))
        ]
        wait(running)
        done = [lane.result() for lane in running]
        for number, parameter in enumerate(self._parameters):
            found = [gradients[number] for gradients, _ in done if gradients[number] is not None]
            for other in found[1:]:
                found[0] += other
            parameter.grad = found[0] if found else None
        return [done[number % count][1][number // count] for number in range(len(batches))]

    def _lane(
        self, lane: int, loss_of: Callable[[Any], tuple[Tensor, Tensor]], batches: Sequence[Any]
    ) -> tuple[list[Any], list[Tensor]]:
        draw_from(self._generators[lane])
        sums: list[Any] = [None] * len(self._parameters)
        facts = []
        for batch in batches:
            loss, told = loss_of(batch)
            facts.append(told)
            found: Sequence[Tensor | None] = torch.autograd.grad(loss, self._parameters, allow_unused=True)
            for number, (parameter, gradient) in enumerate(zip(self._parameters, found, strict=True)):
                if gradient is None:
                    continue
                if sums[number] is not None:
                    sums[number] += gradient
                elif gradient.stride() == parameter.stride():
                    sums[number] = gradient
                else:  # the fused optimizer needs both in the same memory order
                    sums[number] = torch.empty_like(parameter).copy_(gradient)
        return sums, facts

    def close(self) -> None:
        """End the lanes' threads."""
        self._pool.shutdown()


def _begin(threads: int) -> None:
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
