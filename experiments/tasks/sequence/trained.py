"""The weights and tokenizers for an evaluation. Those of one part are kept for the next."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.config import DeviceSpec, RunConfig
from experiments.data.encoding.tokenizer import Tokenizer
from experiments.device import Device
from experiments.evaluation.trained.trained import load_model, load_tokenizers
from experiments.tasks.base import EvaluationSpec
from experiments.tasks.sequence.spacing import spacing_of
from model.ensemble import Ensemble
from model.protocol import Network


class Trained(NamedTuple):
    model: Network
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    device: Device


_last: list[tuple[object, Trained]] = []


def open_trained(
    config: RunConfig,
    evaluation: EvaluationSpec,
    trainings: Sequence[Path],
    spec: DeviceSpec,
    vocab_sizes: tuple[int, int],
) -> Trained:
    """The evaluation's checkpoint, in its precision, on the device. Raises the errors of `load_model`.

    trainings: the folder of the attempt that trained; several for an ensemble, whose members share the tokenizers.
    """
    settings, every = evaluation.settings, spacing_of(evaluation)
    choice, precision = settings["checkpoint"], settings["precision"]
    key = (config.model_dump_json(), choice, precision, every, tuple(trainings), spec, vocab_sizes)
    if not _last or _last[0][0] != key:
        _last.clear()  # before the next one is loaded, since memory may not hold both
        device = Device.open(spec, precision)
        members = [load_model(config, choice, every, folder, device, vocab_sizes) for folder in trainings]
        model = members[0] if len(members) == 1 else Ensemble(members)
        _last.append((key, Trained(model, *load_tokenizers(config, trainings[0]), device)))
    return _last[0][1]
