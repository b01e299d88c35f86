"""Train a language model. Only the child imports it: it needs torch."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from experiments.data.encoding.text import MODEL, EncodedText
from experiments.device import Device
from experiments.evaluation.likelihood import Likelihood
from experiments.evaluation.windows import stream_nll
from experiments.store.keeps import Keep
from experiments.tasks.base import Context
from experiments.tasks.language.batches import WindowBatches
from experiments.tasks.language_config import LanguageConfig
from experiments.tasks.train_network import Material, train_network
from model.protocol import Network


def train_text(config: LanguageConfig, context: Context, encoded: EncodedText, keeps: Sequence[Keep]) -> dict[str, Any]:
    """Train to the end; returns the facts of the run's record. The arguments are those of `train_network`."""
    material = Material(
        batches=lambda share, lanes: WindowBatches(config, context, encoded.train, share, lanes),
        dev=lambda model, device: _dev_perplexity(config, model, encoded, device),
        data={"encoded": encoded.digest, **encoded.facts},
        files={MODEL: encoded.tokenizer_model()} if context.rank == 0 else {},
    )
    size = encoded.facts["vocab_size"]["target"]
    return train_network(config, context, material, (size, size), keeps)


def _dev_perplexity(
    config: LanguageConfig, model: Network, encoded: EncodedText, device: Device
) -> Callable[[int], dict[str, float]]:
    """The callback for perplexity per piece during training, in windows of the training's size without overlap."""
    stream, _ = encoded.only_set("dev")
    window, mix = config.data.window, config.data.mix_documents

    def evaluate(_step: int) -> dict[str, float]:
        nll = stream_nll(model, stream, device, window=window, stride=window, mix=mix)
        return {"perplexity": Likelihood(math.fsum(nll), len(nll)).perplexity}

    return evaluate
