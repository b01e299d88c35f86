"""Capture the pass of a micro-batch (forward, loss, backward) as CUDA graphs, one for each shape of its inputs.

A graph launches all kernels of a pass at once, so that a small network does not wait for the CPU. The first two passes
of a shape are eager. The third is captured, and the replayed pass is compared with an eager pass of the same
micro-batch. This module decides what to capture and when. The recorder (experiments/device.py) captures and replays.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from experiments.config.training import TrainingConfig
from experiments.device import Device
from experiments.training.gradients import add_gradients
from model.protocol import Network

log = logging.getLogger(__name__)

EAGER_PASSES = 2  # passes of a shape before its capture; torch chooses kernels and allocates memory in them
# Maximum relative difference between the gradients of two equal passes whose kernels may sum in any order. An error of
# a capture, such as a wrong dropout mask, changes the gradients much more.
TOLERANCE = 0.01

Inputs = Sequence[Any]  # tensors on the device, or None
Gradients = Sequence[Tensor | None]  # gradients of the parameters, in their order
Shape = tuple[tuple[int, ...] | None, ...]
Pass = Callable[[Inputs], tuple[Tensor, Gradients]]  # replays a captured pass; the next replay overwrites the results


class Recorder(Protocol):
    """The interface of a recorder, which captures work on a device (experiments.device.GraphRecorder)."""

    def record(self, work: Callable[[], Any]) -> Callable[[], Any]:
        """Capture `work` and return a function that replays it. All replays return the same object, with new values."""

    def random_state(self) -> Tensor:
        """Return the state of the random generator that the work uses."""

    def set_random_state(self, state: Tensor) -> None:
        """Set the state of the random generator."""


def unusable(
    model: Network, settings: TrainingConfig, device: Device, ranks: int, changes: Collection[str] = ()
) -> str:
    """Return the reason why the passes of a training cannot be captured, or "" if they can be captured.

    changes: the settings that have changed the network (experiments/config/network_change.py).
    """
    kinds = model.config.not_compiled()
    reasons = {
        "the device is a processor": not device.is_cuda,
        "several processes train the run together": ranks > 1,
        "training.gleu_samples draws sequences": settings.gleu_samples > 0,
        f"the work of {', '.join(kinds)} depends on the data": bool(kinds),
        "model.layer_drop leaves out different layers in each step": model.config.layer_drop > 0,
        f"the work of model.softmax = {model.config.softmax} depends on the data": model.config.softmax != "full",
        f"{' and '.join(changes)} of the row changes the network": bool(changes),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


class Graphs:
    """A function that computes the pass of a micro-batch, either eagerly or by replaying the CUDA graph of its shape.

    eager: function that adds the gradients of a micro-batch to those of the parameters and returns a tensor (2,) with
        Σ loss and Σ nll. Each graph is a capture of this function.
    exact: whether eager passes of the same micro-batch are bit-identical.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        eager: Callable[[Inputs], Tensor],
        recorder: Recorder,
        *,
        exact: bool,
    ) -> None:
        self._parameters, self._eager = parameters, eager
        self._recorder, self._exact = recorder, exact
        self._passes: Counter[Shape] = Counter()
        self._graphs: dict[Shape, Pass | None] = {}  # None: the shape could not be captured and stays eager
        self._off = False
        self._results: list[Tensor] = []  # gradients of the last replay, shared by all graphs

    def __call__(self, inputs: Inputs) -> Tensor:
        """Add the gradients of a micro-batch to those of the parameters. Return (2,): Σ loss, Σ nll."""
        shape = tuple(None if tensor is None else tuple(tensor.shape) for tensor in inputs)
        graph = None if self._off else self._graphs.get(shape)
        if graph is not None:
            self._keep_results()
            sums, gradients = graph(inputs)
            add_gradients(self._parameters, gradients)
            return sums.clone()
        self._passes[shape] += 1
        if self._off or shape in self._graphs or self._passes[shape] <= EAGER_PASSES:
            return self._eager(inputs)
        self._keep_results()
        try:
            graph = self._capture(inputs)
        except Exception as error:
            self._graphs[shape] = None
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            log.warning("training.graphs: inputs of shapes %s cannot be captured and stay eager: %s", shape, reason)
            return self._eager(inputs)
        return self._compare(shape, graph, inputs)

    def _capture(self, inputs: Inputs) -> Pass:
        """Capture the pass for inputs of these shapes. All graphs write their gradients to the same tensors."""
        places = [None if tensor is None else tensor.clone() for tensor in inputs]
        if not self._results:
            self._results = [torch.empty_like(parameter) for parameter in self._parameters]

        def work() -> tuple[Tensor, Gradients]:
            earlier = self._set_gradients([None] * len(self._parameters))
            try:
                sums = self._eager(places)
            finally:
                found = self._set_gradients(earlier)
            there = [result if one is not None else None for result, one in zip(self._results, found, strict=True)]
            torch._foreach_copy_([one for one in there if one is not None], [one for one in found if one is not None])
            return sums, there

        replay = self._recorder.record(work)

        def run(inputs: Inputs) -> tuple[Tensor, Gradients]:
            for place, tensor in zip(places, inputs, strict=True):
                if place is not None:
                    place.copy_(tensor)
            result: tuple[Tensor, Gradients] = replay()
            return result

        return run

    def _compare(self, shape: Shape, graph: Pass, inputs: Inputs) -> Tensor:
        """Compare the first replay with an eager pass. The results of the eager pass are used for this micro-batch."""
        earlier = self._set_gradients([None] * len(self._parameters))
        began = self._recorder.random_state()
        sums = self._eager(inputs)
        ended = self._recorder.random_state()
        self._recorder.set_random_state(began)
        found, replayed = graph(inputs)
        same_draws = torch.equal(self._recorder.random_state(), ended)
        self._recorder.set_random_state(ended)
        eager = self._set_gradients(earlier)
        if same_draws and torch.equal(found, sums) and self._agree(eager, replayed):
            self._graphs[shape] = graph
        else:
            self._off = True
            self._graphs.clear()
            log.warning(
                "training.graphs: the replayed pass of inputs of shapes %s differs from the eager pass: this run "
                "computes eagerly from now on",
                shape,
            )
        add_gradients(self._parameters, eager)
        return sums

    def _agree(self, eager: Gradients, replayed: Gradients) -> bool:
        """Return whether eager and replayed gradients agree: bit for bit if `exact`, otherwise within TOLERANCE."""
        pairs = list(zip(eager, replayed, strict=True))
        if any((one is None) != (other is None) for one, other in pairs):
            return False
        both = [(one, other) for one, other in pairs if one is not None and other is not None]
        if self._exact:
            return all(torch.equal(one, other) for one, other in both)
        apart = nn.utils.get_total_norm([one - other for one, other in both])
        return bool(apart <= TOLERANCE * nn.utils.get_total_norm([one for one, _ in both]))

    def _set_gradients(self, gradients: Gradients) -> list[Tensor | None]:
        """Replace the parameters' gradients and return the previous ones."""
        had = [parameter.grad for parameter in self._parameters]
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        return had

    def _keep_results(self) -> None:
        """Copy gradients of an earlier micro-batch of this step, because the next replay would overwrite them."""
        for parameter, result in zip(self._parameters, self._results, strict=bool(self._results)):
            if parameter.grad is result:
                parameter.grad = result.clone()
