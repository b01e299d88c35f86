"""Load the network and tokenizers of a finished training."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor

from experiments.config.run_config import RunConfig
from experiments.data.encoding.encoded import model_names
from experiments.data.encoding.tokenizer import Tokenizer
from experiments.device import Device
from experiments.errors import Damaged, UserError
from experiments.training import checkpoint, kept_checkpoints
from experiments.training.network_rows import change_network
from model.network import build_model
from model.protocol import Network


def load_model(
    config: RunConfig,
    choice: str,
    every: int,
    attempt: Path,
    device: Device,
    vocab_sizes: tuple[int, int] | None = None,
    change: Callable[[Network], object] = lambda model: None,
) -> Network:
    """The network with the weights of an attempt chosen by `choice` (last, best, average:K).

    every: spacing of the checkpoints for an average, or of the measurements for the best (0: all). vocab_sizes: target
    and source, if they are neither data.vocab_size nor the sizes of the tokenizers. change: of the trained network,
    in place. Raises UserError if weights are damaged, if there are too few checkpoints for the average, or if none was
    measured for the best.
    """
    kind, _, number = choice.partition(":")
    if kind == "average":
        tensors = kept_average(attempt, int(number), every)
    elif kind == "best":
        best = kept_checkpoints.best(attempt, every)
        if best is None:
            raise UserError(
                f"The best checkpoint was requested, but {attempt} has none with a measured perplexity on dev: the "
                "training ran without training.eval_steps, or its checkpoints were pruned. Use the last one, or "
                "train with training.eval_steps set and keep the checkpoints."
            )
        tensors = checkpoint.load_weights(best)
    else:
        tensors = checkpoint.load_weights(attempt / "final")
    sizes = vocab_sizes or model_sizes(config, attempt)
    model = build_model(config.model, *sizes, device=device.torch_device)
    change_network(model, config.modules, saved=tensors)
    checkpoint.restore_model(model, tensors)
    change(model)
    return model


def load_chosen(config: RunConfig, choice: str | None, attempt: Path, device: Device) -> Network:
    """The network for inference; `choice` of checkpoint: the configuration's if None. Raises as `load_model` does."""
    choice = choice or config.evaluation.checkpoint
    return load_model(config, choice, spacing(config, choice), attempt, device).eval()


def model_sizes(config: RunConfig, attempt: Path) -> tuple[int, int]:
    """Pieces of target and source of a finished translation."""
    if not config.data.sized_by_text:
        return config.data.vocab_size, config.data.vocab_size
    source, target = load_tokenizers(config, attempt)
    return target.vocab_size, source.vocab_size


def spacing(config: RunConfig, choice: str) -> int:
    """The steps between the checkpoints, or the measurements, of a run's own choice."""
    return config.training.eval_steps if choice == "best" else config.training.checkpoint_steps


def load_tokenizers(config: RunConfig, attempt: Path) -> tuple[Tokenizer, Tokenizer]:
    """Source and target tokenizers, one object for a shared vocabulary. Raises Damaged if they are not the run's."""
    names = model_names(config.model.shared_vocabulary)
    source = _tokenizer(attempt, names[0])
    return source, source if names[0] == names[1] else _tokenizer(attempt, names[1])


def _tokenizer(attempt: Path, name: str) -> Tokenizer:
    path = attempt / "final" / name
    tokenizer = Tokenizer.load(path)
    if tokenizer.sha256 != kept_checkpoints.meta_of(path.parent)["files"].get(name, {}).get("sha256"):
        raise Damaged(
            f"{path} is not the tokenizer of the run's training: it was changed or damaged. Restore it from a "
            "backup, or rename the run's folder: `ablations run` then trains the run again."
        )
    return tokenizer


# --- Checkpoint averaging (section 6.1: the last 5 checkpoints of base, the last 20 of big)


def kept_average(attempt: Path, count: int, every: int) -> dict[str, Tensor]:
    """The mean of an attempt's last `count` checkpoints (multiples of `every`, and the last step), computed once.

    Rows with the same training and different searches read the same average from <attempt>/averages. Raises UserError
    if there are fewer checkpoints or one is damaged.
    """
    chosen = kept_checkpoints.last(attempt, count, every)
    path = attempt / "averages" / f"last-{count}-to-{chosen[-1].name}-every-{every}"
    if (path / "meta.json").exists():
        with contextlib.suppress(UserError):  # damaged: computed again
            return checkpoint.load_weights(path)
    weights = average_weights(chosen)
    with contextlib.suppress(UserError):  # a read-only or full store: computed again next time
        checkpoint.save_weights(path, weights, {"averaged": [p.name for p in chosen]})
    return weights


def average_weights(checkpoints: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of the weights in several checkpoints' folders, summed in float64, in the weights' own types.

    Memory holds one checkpoint besides the sums. Of tensors that are not floating point the first one's are taken.
    Raises UserError for a damaged checkpoint.
    """
    first = checkpoint.load_weights(checkpoints[0])
    sums = {name: tensor.double() for name, tensor in first.items() if tensor.is_floating_point()}
    for path in checkpoints[1:]:
        weights = checkpoint.load_weights(path)
        for name, total in sums.items():
            total += weights[name]
    return {n: (sums[n] / len(checkpoints)).to(t.dtype) if n in sums else t for n, t in first.items()}
