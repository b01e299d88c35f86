"""Load the network of a finished training, measure the likelihood of a set with it, and decode a set."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from experiments.attempt_context import AttemptContext
from experiments.config.network_change import Batches, change_network
from experiments.config.run_config import RunConfig
from experiments.data.corpora.files import write_lines
from experiments.data.encoding.encoded import EncodedSet
from experiments.data.encoding.tokenizer import Tokenizer
from experiments.device import Device
from experiments.device_spec import DeviceSpec
from experiments.evaluation.beam import SearchSettings
from experiments.evaluation.likelihood import measure_likelihood
from experiments.evaluation.load_network import load_model, load_tokenizers
from experiments.evaluation.translate import texts_of, translate
from experiments.run_spec import EvaluationSpec
from experiments.training import kept_checkpoints
from model.ensemble import Ensemble
from model.protocol import Network


class Trained(NamedTuple):
    """A trained network on a device, with its tokenizers."""

    model: Network
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    device: Device
    changes: Mapping[str, Any]  # facts about the network changes at evaluation


_last: list[tuple[object, Trained]] = []  # cache of the last network, because consecutive calls often need the same


def open_trained(
    config: RunConfig,
    evaluation: EvaluationSpec,
    trainings: Sequence[Path],
    spec: DeviceSpec,
    vocab_sizes: tuple[int, int],
    batches: Batches,
) -> Trained:
    """Load the network of an evaluation's checkpoint with the evaluation's precision.

    Raises the same errors as `load_model`.

    trainings: the folder of the attempt that trained the network; for an ensemble, one folder per member. All members
        have the same tokenizers.
    batches: function that returns the first batches of the training. Network changes at evaluation may need them.
    """
    settings, every = evaluation.settings, kept_checkpoints.spacing_of(evaluation.settings)
    choice, precision = settings["checkpoint"], settings["precision"]
    values, facts = {name: settings[name] for name in config.network_changes if name in settings}, dict[str, Any]()
    key = (config.model_dump_json(), json.dumps(values), choice, precision, every, tuple(trainings), spec, vocab_sizes)
    if not _last or _last[0][0] != key:
        _last.clear()  # free the previous network first, because the memory may be too small for two
        device = Device.open(spec, precision)

        def change(model: Network) -> None:
            facts.update(change_network(config, values, model, batches, seed=config.seed))

        members = [load_model(config, choice, every, folder, device, vocab_sizes, change) for folder in trainings]
        model = members[0] if len(members) == 1 else Ensemble(members)
        _last.append((key, Trained(model, *load_tokenizers(config, trainings[0]), device, facts)))
    return _last[0][1]


def measure_pairs(trained: Trained, text: EncodedSet, context: AttemptContext) -> dict[str, Any]:
    """Measure the perplexity and the token accuracy of a set's references. Return facts for the record.

    The fact `pieces` is the number of target word pieces, including EOS.
    """
    threads = trained.device.threads
    source_ids = trained.source_tokenizer.encode_batch(text.source, threads)
    target_ids = trained.target_tokenizer.encode_batch(text.target, threads)
    measured = measure_likelihood(
        trained.model, source_ids, target_ids, trained.device, should_stop=context.should_stop
    )
    metrics = {"perplexity": measured.perplexity, "token_accuracy": measured.token_accuracy}
    return {"metrics": metrics, "pieces": measured.pieces, **trained.changes, **trained.device.describe()}


def decode(
    trained: Trained, text: EncodedSet, settings: Mapping[str, Any], outputs: Path, context: AttemptContext
) -> dict[str, Any]:
    """Write the best output of each source to the file `outputs`, one per line. Return facts for the record.

    The fact `unfinished` is the number of outputs that reached their maximum length. `peak_memory_bytes` is the peak
    memory during the decoding.
    """
    _forget_peak(trained.device)
    found = translate(
        trained.model,
        trained.source_tokenizer.encode_batch(text.source, trained.device.threads),
        SearchSettings.of(settings),
        trained.device,
        progress=lambda done, total: context.emit("progress", what=f"decoding {text.name}", done=done, total=total),
        should_stop=context.should_stop,
    )
    best = [hypotheses[0].ids for hypotheses in found]
    tokenizers, replaces = (trained.source_tokenizer, trained.target_tokenizer), bool(settings.get("replace_unknown"))
    texts = texts_of(trained.model, tokenizers, text.source, best, trained.device, replace_unknown=replaces)
    write_lines(outputs, texts)
    words = np.array([len(sentence.split()) for sentence in text.source], dtype=np.int64)
    np.save(outputs.with_name("source_lengths.npy"), words, allow_pickle=False)
    return {
        "sentences": len(found),
        "unfinished": sum(not hypotheses[0].finished for hypotheses in found),
        "peak_memory_bytes": trained.device.peak_memory_bytes(),
        "set_facts": text.facts,
        **trained.device.describe(),
    }


def _forget_peak(device: Device) -> None:
    """Reset the measured peak memory. On a CPU, this is possible only with Linux (proc(5): clear_refs)."""
    if device.is_cuda:
        torch.cuda.reset_peak_memory_stats(device.torch_device)
    else:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
