"""Modules, parameters and operations of a changed network, without training it.

No weight is drawn, except where a computation depends on them: torch computes shapes alone on its meta device.
`python -c` runs `answer` for a plan, which has no torch (asking.py).
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
from experiments.data.batching import Batch
from experiments.errors import UserError
from model.config import ModelConfig
from model.cost import TRAINING
from model.network import EncoderDecoder, build_model, num_params

Lengths = NDArray[np.int64]
T = TypeVar("T")
COUNTED = 5  # lengths that are counted where the others follow


def without_weights(compute: Callable[[str], T]) -> T:
    """The result on the meta device; on the processor where the computation depends on the data."""
    try:
        return compute("meta")
    except NotImplementedError:
        return compute("cpu")


def random_pair(sizes: Sequence[int], lengths: Sequence[int], rows: int, place: str) -> Batch[Tensor]:
    """Random pieces of the target and of the source: sizes of their vocabularies, their lengths."""
    target, source = (
        torch.randint(4, size, (rows, length)).to(place) for size, length in zip(sizes, lengths, strict=True)
    )
    return Batch(source, target, target, source.numel(), target.numel())


# --- What the lines of a row add to the operations of a training
# The unchanged network is counted by formula (model/cost.py); both are counted here, and the difference is added.


class TrainingChange:
    """Operations of a changed network's training less those of the unchanged one's.

    Counted by torch's counter for one sentence, without weights. A backward pass counts as two forward passes, as in
    model/cost.py, less the products that it leaves out: of frozen weights, and of modules that no gradient reaches.

    sizes: of the vocabularies of target and source. Raises UserError for lines that do not fit.
    """

    def __init__(self, config: ModelConfig, sizes: Sequence[int], lines: Sequence[str]) -> None:
        self._config = config.model_copy(update={"layer_drop": 0.0})  # each layer is counted once
        self._computed = 1 - config.layer_drop  # share of the layers in a training
        self._sizes, self._lines = sizes, lines
        self._known: dict[tuple[int, int], int] = {}
        self._networks: dict[str, tuple[EncoderDecoder, EncoderDecoder]] = {}

    @property
    def params(self) -> int:
        """Parameters that the lines add; known once a pair was counted."""
        before, after = next(iter(self._networks.values()))
        return num_params(after) - num_params(before)

    def of(self, source: int, target: int) -> int:
        """Operations for one pair of these lengths, with every layer; a language model has source length 0."""
        if (source, target) not in self._known:
            self._known[source, target] = without_weights(lambda place: self._count(place, source, target))
        return self._known[source, target]

    def __call__(self, source: Lengths, target: Lengths) -> NDArray[np.float64]:
        """Operations for each of many pairs.

        In every kind of sub-layer the operations of a pair are f(S) + g(T) + c·S·T, where the last term is of attention
        to the source. So lengths are counted, and not each pair of lengths.
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
                    network.set_attention_kernel("plain")  # two products: fused ones compute some of them again
                self._networks = {place: (plain, changed)}
            pair = random_pair(self._sizes, lengths, 1, place)
            before, after = (_counted(network, pair) for network in self._networks[place])
        # Without changes, recurrent layers alone leave products out: those with their first state.
        left_out = max(0, after.left_out - before.left_out)
        return TRAINING * (after.forward - before.forward) - left_out


def _along(count: Callable[[int], int], lengths: Sequence[int]) -> list[float]:
    """The count at each length. Five show whether it is a polynomial of second degree, as it is without a window."""
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
    left_out: int  # by the backward pass


def _counted(network: EncoderDecoder, pair: Batch[Tensor]) -> _Counted:
    network.zero_grad()
    with Operations(network) as counter:
        hidden = network(pair.source, None, pair.target_input)
        forward = counter.total
        if hidden.requires_grad:
            hidden.sum().backward()
        backward = counter.total - forward
        with torch.no_grad():  # a training's loss differentiates the softmax whether its matrix is frozen or not
            network.logits(hidden)
        return _Counted(counter.total - backward, (TRAINING - 1) * forward - backward)


# --- Answers to a plan


def answer(channel: Channel, idle_s: float) -> None:
    """Answer requests for the modules of networks until none comes for a while."""
    while channel.readable(idle_s) and (request := channel.next()) is not None:
        try:
            given = dict(request)
            channel.say({"answer": _modules(**given) if given.pop("do") == "modules" else _change(**given)})
        except UserError as error:
            channel.say({"refused": str(error)})
        except Exception as error:  # a run with this network would end with the same
            channel.say({"failed": f"{type(error).__name__}: {error}"})


@functools.lru_cache(maxsize=1)
def _built(model: str, place: str, *sizes: int) -> EncoderDecoder:
    """The network of a plan's rows."""
    return build_model(ModelConfig.from_mapping(json.loads(model)), *sizes, device=place)


def _modules(
    model: str, sizes: Sequence[int], lengths: Sequence[int], lines: Sequence[Sequence[str]], selector: str | None
) -> list[dict[str, Any]]:
    """The modules of a network (command.py) on two random pairs. lines: of training, then of evaluation."""

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
    """Return what the lines add to a network's parameters, and to the operations of its training on one pair."""
    target, source = lengths
    change = TrainingChange(ModelConfig.from_mapping(json.loads(model)), sizes, lines)
    (flops,) = change(np.array([source]), np.array([target])).tolist()
    return {"flops": flops, "params": change.params}
