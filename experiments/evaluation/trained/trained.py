"""What a finished training left in its folder, as a network and its tokenizers."""

from pathlib import Path

from experiments.config import RunConfig
from experiments.data.encoding.encoded import model_names
from experiments.data.encoding.tokenizer import Tokenizer
from experiments.device import Device
from experiments.errors import Damaged, UserError
from experiments.evaluation.trained.averaging import kept_average
from experiments.store.sealed import read_json
from experiments.training.checkpoints import checkpoint, retention
from model.factory import build_model
from model.transformer import Transformer


def load_model(
    config: RunConfig,
    choice: str,
    every: int,
    attempt: Path,
    device: Device,
    vocab_sizes: tuple[int, int] | None = None,
) -> Transformer:
    """The network with the weights that `choice` (last, best, average:K) names of an attempt.

    `every`: the spacing of the checkpoints that an average is taken of, or of the measurements of which the best is
    taken (0: of all). `vocab_sizes`: of target and source, where they are not data.vocab_size both. Raises UserError if
    weights are damaged, fewer than the average wants, or none was measured of which to take the best.
    """
    kind, _, number = choice.partition(":")
    if kind == "average":
        tensors = kept_average(attempt, int(number), every)
    elif kind == "best":
        found = retention.best(attempt, every)
        if found is None:
            raise UserError(
                f"The best checkpoint was asked for, and {attempt} holds none whose perplexity on dev was measured: "
                "the training ran without training.eval_steps, or its checkpoints were pruned. Take the last one, or "
                "train with training.eval_steps set, and checkpoints kept."
            )
        tensors = checkpoint.load_weights(found)
    else:
        tensors = checkpoint.load_weights(attempt / "final")
    sizes = vocab_sizes or (config.data.vocab_size, None)
    model = build_model(config.model, *sizes, device=device.torch_device)
    checkpoint.restore_model(model, tensors)
    return model


def spacing(config: RunConfig, choice: str) -> int:
    """The steps between the checkpoints, or the measurements, that a choice of a run's own checkpoints is made of."""
    return config.training.eval_steps if choice == "best" else config.training.checkpoint_steps


def load_tokenizers(config: RunConfig, attempt: Path) -> tuple[Tokenizer, Tokenizer]:
    """Of source and target; one object where the vocabulary is shared. Raises Damaged if they are not the run's."""
    names = model_names(config.model.shared_vocabulary)
    source = _tokenizer(attempt, names[0])
    return source, source if names[0] == names[1] else _tokenizer(attempt, names[1])


def _tokenizer(attempt: Path, name: str) -> Tokenizer:
    path = attempt / "final" / name
    tokenizer = Tokenizer.load(path)
    written = retention.meta_of(path.parent)["files"].get(name)
    if written is None:  # trained by an earlier version: the training's record says which tokenizer it read
        data = (read_json(attempt / "result.json") or {}).get("data") or {}
        written = {"sha256": data.get("tokenizer", {}).get("sha256", {}).get(name, tokenizer.sha256)}
    if tokenizer.sha256 != written["sha256"]:
        raise Damaged(
            f"{path} is not the tokenizer that the run was trained with: it was changed or damaged. Restore it from a "
            "backup, or delete the run's folder to train it again."
        )
    return tokenizer
