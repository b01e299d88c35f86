"""The evaluation of a network, part by part: perplexity, decoding, the likelihood of lines.

Only the child imports it: it needs torch. The weights and tokenizers of one part are kept for the next.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from experiments.attempt_context import AttemptContext
from experiments.config.run_config import RunConfig
from experiments.data.batching import Batch
from experiments.data.corpora.files import write_lines
from experiments.data.encoding.encoded import EncodedSet
from experiments.data.encoding.tokenizer import Tokenizer
from experiments.device import Device
from experiments.device_spec import DeviceSpec
from experiments.evaluation.beam import SearchSettings
from experiments.evaluation.likelihood import measure_likelihood
from experiments.evaluation.trained import load_model, load_tokenizers
from experiments.evaluation.translate import texts_of, translate
from experiments.run_spec import EvaluationSpec
from experiments.tasks.network import spacing_of
from experiments.training.network_rows import change_network
from model.ensemble import Ensemble
from model.protocol import Network


class Trained(NamedTuple):
    model: Network
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    device: Device
    changes: Mapping[str, Any]  # facts of `evaluation.modules`


_last: list[tuple[object, Trained]] = []


def open_trained(
    config: RunConfig,
    evaluation: EvaluationSpec,
    trainings: Sequence[Path],
    spec: DeviceSpec,
    vocab_sizes: tuple[int, int],
    batches: Callable[[], Iterable[Batch[Tensor]]],
) -> Trained:
    """The evaluation's checkpoint, in its precision, on the device. Raises the errors of `load_model`.

    trainings: the folder of the attempt that trained; several for an ensemble, whose members share the tokenizers.
    batches: of the training, which `evaluation.modules` may need.
    """
    settings, every = evaluation.settings, spacing_of(evaluation)
    choice, precision = settings["checkpoint"], settings["precision"]
    lines, changes = settings.get("modules", ()), dict[str, Any]()
    key = (config.model_dump_json(), *lines, choice, precision, every, tuple(trainings), spec, vocab_sizes)
    if not _last or _last[0][0] != key:
        _last.clear()  # before the next one is loaded, since memory may not hold both
        device = Device.open(spec, precision)

        def change(model: Network) -> None:
            changes.update(change_network(model, lines, batches() if lines else (), seed=config.seed))

        members = [load_model(config, choice, every, folder, device, vocab_sizes, change) for folder in trainings]
        model = members[0] if len(members) == 1 else Ensemble(members)
        _last.append((key, Trained(model, *load_tokenizers(config, trainings[0]), device, changes)))
    return _last[0][1]


# --- Perplexity of a set's references: the first part of an evaluation


def measure_pairs(trained: Trained, text: EncodedSet, context: AttemptContext) -> dict[str, Any]:
    """The facts of this part for the record. `pieces`: the number of pieces that the perplexity is a mean over."""
    threads = trained.device.threads
    source_ids = trained.source_tokenizer.encode_batch(text.source, threads)
    target_ids = trained.target_tokenizer.encode_batch(text.target, threads)
    measured = measure_likelihood(
        trained.model, source_ids, target_ids, trained.device, should_stop=context.should_stop
    )
    metrics = {"perplexity": measured.perplexity, "token_accuracy": measured.token_accuracy}
    return {"metrics": metrics, "pieces": measured.pieces, **trained.changes, **trained.device.describe()}


# --- Decode a set to a file, one output per line: the second part


def decode(
    trained: Trained, text: EncodedSet, settings: Mapping[str, Any], outputs: Path, context: AttemptContext
) -> dict[str, Any]:
    """Write the best output of each source to the file `outputs`; returns the facts of this part for the record.

    unfinished: outputs that reached their length limit. peak_memory_bytes: while it decoded.
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
    """Count the peak of memory anew. Of a processor only Linux can, by 5 in clear_refs: see proc(5)."""
    if device.is_cuda:
        torch.cuda.reset_peak_memory_stats(device.torch_device)
    else:
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
