"""The second part of an evaluation: decode a set to a file, one output per line. Needs torch: for the child only."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments.data.encoding.encoded import EncodedSet
from experiments.evaluation.decode.beam import SearchSettings
from experiments.evaluation.decode.translate import translate
from experiments.tasks.base import Context
from experiments.tasks.sequence.lines import write_lines
from experiments.tasks.sequence.trained import Trained


def decode(
    trained: Trained, text: EncodedSet, settings: Mapping[str, Any], outputs: Path, what: str, context: Context
) -> dict[str, Any]:
    """Write the best output of each source to the file `outputs`; returns the facts of this part for the record.

    unfinished: outputs that reached their length limit. `what` is decoded: text for the progress.
    """
    found = translate(
        trained.model,
        trained.source_tokenizer.encode_batch(text.source, trained.device.threads),
        SearchSettings(settings["beam_size"], settings["length_penalty"], settings["max_extra_length"]),
        trained.device,
        progress=lambda done, total: context.emit("progress", what=f"decoding {what}", done=done, total=total),
        should_stop=context.should_stop,
    )
    write_lines(outputs, [trained.target_tokenizer.decode(best[0].ids) for best in found])
    words = np.array([len(sentence.split()) for sentence in text.source], dtype=np.int64)
    np.save(outputs.with_name("source_lengths.npy"), words, allow_pickle=False)
    return {
        "sentences": len(found),
        "unfinished": sum(not best[0].finished for best in found),
        "set_facts": text.facts,
        **trained.device.describe(),
    }
