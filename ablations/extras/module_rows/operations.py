"""Count the modules, parameters and operations of a changed network, without training it.

torch's meta device computes shapes without weights. Weights are drawn only if a computation depends on the data. A plan
imports no torch, so planned.py runs `answer` in a separate process.
"""

import copy
import functools
import json
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ablations.extras.module_rows.client.modules.inspection import Inspected, Operations, inspect
from ablations.extras.module_rows.own_networks import change_network
from experiments.client.ablations_task.values import Channel
from experiments.data.collate import Batch
from experiments.errors import UserError
from model.config import ModelConfig
from model.cost import TRAINING
from model.network import EncoderDecoder, build_model, num_params

Lengths = NDArray[np.int64]
T = TypeVar("T")
COUNTED = 5  # number of lengths to count before the counts of the others are interpolated


def without_weights(compute: Callable[[str], T]) -> T:
    """Return the result of `compute("meta")`, or of `compute("cpu")` if the computation depends on the data."""
    try:
        return compute("meta")
    except NotImplementedError:
        return compute("cpu")


def random_pair(sizes: Sequence[int], lengths: Sequence[int], rows: int, place: str) -> Batch[Tensor]:
    """Return a batch of random pieces. sizes, lengths: vocabulary sizes and lengths of target and source."""
    target, source = (
        torch.randint(4, size, (rows, length)).to(place) for size, length in zip(sizes, lengths, strict=True)
    )
    return Batch(source, target, target, source.numel(), target.numel())


# A formula gives the operations of the unchanged network (model/cost.py). Here torch counts the operations of the
# unchanged and of the changed network, and their difference is added to the formula's result.


class TrainingChange:
    """Operations for training the changed network minus operations for training the unchanged network.

    torch's counter counts them for one sentence, without weights. A backward pass counts as two forward passes, as in
    model/cost.py, minus the products that it does not compute: those for frozen weights, and those in modules that no
    gradient reaches.

    sizes: vocabulary sizes of target and source. Raises UserError for lines that do not fit the network.
    """

    def __init__(self, config: ModelConfig, sizes: Sequence[int], lines: Sequence[str]) -> None:
        self._config = config.model_copy(update={"layer_drop": 0.0})  # all layers are counted
        self._computed = 1 - config.layer_drop  # share of the layers that a training computes
        self._sizes, self._lines = sizes, lines
        self._known: dict[tuple[int, int], int] = {}
        self._networks: dict[str, tuple[EncoderDecoder, EncoderDecoder]] = {}

    @property
    def params(self) -> int:
        """Number of parameters that the lines add. Call `of` first."""
        before, after = next(iter(self._networks.values()))
        return num_params(after) - num_params(before)

    def of(self, source: int, target: int) -> int:
        """Return the operations for one pair, with every layer. A language model has source length 0."""
        if (source, target) not in self._known:
            self._known[source, target] = without_weights(lambda place: self._count(place, source, target))
        return self._known[source, target]

    def __call__(self, source: Lengths, target: Lengths) -> NDArray[np.float64]:
        """Return the operations for each of many pairs.

        The operations of a pair have the form f(S) + g(T) + c·S·T for every kind of sub-layer. The last term comes from
        attention to the source. So it is enough to count each source length and each target length, not each
        combination.
        """
        if not len(source):
            return np.zeros(0)
        sources, targets = np.unique(source), np.unique(target)
        s_0, s_1, t_0, t_1 = (int(each) for each in (sources[0], sources[-1], targets[0], targets[-1]))
        by_source = np.array(_along(lambda length: self.of(length, t_0), sources.tolist()), np.float64)
        by_target = np.array(_along(lambda length: self.of(s_0, length), targets.tolist()), np.float64)
        both = 0.0
        if s_1 > s_0 and t_1 > t_0:
            corners = self.of(s_1, t_1) - self.of(s_1, t_0) - self.of(s_0, t_1) + self.of(s_0, t_0)
            both = corners / ((s_1 - s_0) * (t_1 - t_0))
        apart: NDArray[np.float64] = (
            by_source[np.searchsorted(sources, source)] + by_target[np.searchsorted(targets, target)] - by_source[0]
        )
        return self._computed * (apart + both * (source - s_0) * (target - t_0))

    def _count(self, place: str, source: int, target: int) -> int:
        lengths = (target, source)
        with torch.random.fork_rng([]):
            if place not in self._networks:
                plain, changed = (build_model(self._config, *self._sizes, device=place) for _ in range(2))
                change_network(changed, self._lines, [random_pair(self._sizes, lengths, 1, place)])
                for network in (plain, changed):
                    network.set_attention_kernel("plain")  # two products; fused kernels recompute some
                self._networks = {place: (plain, changed)}
            pair = random_pair(self._sizes, lengths, 1, place)
            before, after = (_counted(network, pair) for network in self._networks[place])
        # Even without changes, the backward pass of recurrent layers leaves out the products with the first state.
        left_out = max(0, after.left_out - before.left_out)
        return TRAINING * (after.forward - before.forward) - left_out


def _along(count: Callable[[int], int], lengths: Sequence[int]) -> list[float]:
    """Return the count at each length.

    Without windows of attention, the count is a quadratic polynomial of the length. Five counts show whether this is
    the case. If it is, the other counts are interpolated.
    """
    if len(lengths) <= COUNTED:
        return [count(length) for length in lengths]
    known = {x: count(x) for x in (lengths[round(n * (len(lengths) - 1) / (COUNTED - 1))] for n in range(COUNTED))}
    points = list(known.items())[::2]

    def parabola(at: int) -> Fraction:
        others = ((x, y, [other for other, _ in points if other != x]) for x, y in points)
        return sum((Fraction(y * (at - a) * (at - b), (x - a) * (x - b)) for x, y, (a, b) in others), Fraction(0))

    if all(parabola(x) == y for x, y in known.items()):
        return [float(parabola(length)) for length in lengths]
    return [count(length) for length in lengths]


class _Counted(NamedTuple):
    forward: int
    left_out: int  # operations that the backward pass does not compute


def _counted(network: EncoderDecoder, pair: Batch[Tensor]) -> _Counted:
    network.zero_grad()
    with Operations(network) as counter:
        hidden = network(pair.source, None, pair.target_input)
        forward = counter.total
        if hidden.requires_grad:
            hidden.sum().backward()
        backward = counter.total - forward
        with torch.no_grad():  # the loss always differentiates the softmax, even if its matrix is frozen
            network.logits(hidden)
        return _Counted(counter.total - backward, (TRAINING - 1) * forward - backward)


def answer(channel: Channel, idle_s: float) -> None:
    """Answer requests about networks until none has come for `idle_s` seconds."""
    while channel.readable(idle_s) and (request := channel.next()) is not None:
        try:
            given = dict(request)
            channel.say({"answer": _modules(**given) if given.pop("do") == "modules" else _change(**given)})
        except UserError as error:
            channel.say({"refused": str(error)})
        except Exception as error:  # a run with this network would fail in the same way
            channel.say({"failed": f"{type(error).__name__}: {error}"})


@functools.lru_cache(maxsize=1)
def _built(model: str, place: str, *sizes: int) -> EncoderDecoder:
    """Return the unchanged network, cached because the rows of a plan share it."""
    return build_model(ModelConfig.from_mapping(json.loads(model)), *sizes, device=place)


def _modules(
    model: str, sizes: Sequence[int], lengths: Sequence[int], lines: Sequence[Sequence[str]], selector: str | None
) -> list[dict[str, Any]]:
    """Return the modules of a network, called with two random pairs.

    lines: the lines before training and the lines at evaluation. selector: None only checks the lines.
    """

    def on(place: str) -> list[dict[str, Any]]:
        network = copy.deepcopy(_built(model, place, *sizes))
        for each in lines:
            change_network(network, each, [random_pair(sizes, lengths, 2, place)])
        inspect(network.eval(), selector or "", num_params)
        pair = random_pair(sizes, lengths, 2, place)
        try:
            network(pair.source, None, pair.target_input)
        except Inspected as found:
            return found.rows if selector is not None else []
        raise AssertionError

    return without_weights(on)


def _change(model: str, sizes: Sequence[int], lengths: Sequence[int], lines: Sequence[str]) -> dict[str, float]:
    """Return the parameters that the lines add to a network, and the operations that they add per training pair."""
    target, source = lengths
    change = TrainingChange(ModelConfig.from_mapping(json.loads(model)), sizes, lines)
    (flops,) = change(np.array([source]), np.array([target])).tolist()
    return {"flops": flops, "params": change.params}
