"""Load the network and the tokenizers of a finished training, with the weights of one checkpoint or an average."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor

from experiments.config.network_change import change_network, changes_of
from experiments.config.run_config import RunConfig
from experiments.data.encoding.encoded import model_names
from experiments.data.encoding.tokenizer import Tokenizer
from experiments.device import Device
from experiments.errors import Damaged, UserError
from experiments.training import checkpoint, kept_checkpoints
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
    """Build the network and load the weights of an attempt.

    choice: the weights to load: "last", "best" (on dev) or "average:K".
    every: steps between the checkpoints of an average, or between the measurements for "best". 0 allows every step.
    vocab_sizes: sizes of the target and source vocabulary, if they are neither data.vocab_size nor the sizes of the
        tokenizers.
    change: function that changes the trained network in place.

    Raises UserError if weights are damaged, if there are too few checkpoints for the average, or if no checkpoint has a
    measured perplexity for "best".
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
    change_network(config, changes_of(config), model, saved=tensors)
    checkpoint.restore_model(model, tensors)
    change(model)
    return model


def load_chosen(config: RunConfig, choice: str | None, attempt: Path, device: Device) -> Network:
    """Return a trained network in evaluation mode. Raises the same errors as `load_model`.

    choice: as in `load_model`. None means `evaluation.checkpoint` of the configuration.
    """
    choice = choice or config.evaluation.checkpoint
    return load_model(config, choice, spacing(config, choice), attempt, device).eval()


def model_sizes(config: RunConfig, attempt: Path) -> tuple[int, int]:
    """Return the target and source vocabulary sizes of a trained translation model."""
    if not config.data.sized_by_text:
        return config.data.vocab_size, config.data.vocab_size
    source, target = load_tokenizers(config, attempt)
    return target.vocab_size, source.vocab_size


def spacing(config: RunConfig, choice: str) -> int:
    """Return the steps between the checkpoints of a run, or between its measurements on dev if `choice` is "best"."""
    return config.training.eval_steps if choice == "best" else config.training.checkpoint_steps


def load_tokenizers(config: RunConfig, attempt: Path) -> tuple[Tokenizer, Tokenizer]:
    """Return the source and target tokenizers. They are the same object if the vocabulary is shared.

    Raises Damaged if a tokenizer is not the tokenizer of the training.
    """
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


def kept_average(attempt: Path, count: int, every: int) -> dict[str, Tensor]:
    """Return the mean of an attempt's last `count` checkpoints, and store it in <attempt>/averages.

    Section 6.1 of the paper averages the last 5 checkpoints of base and the last 20 of big.

    Only checkpoints at multiples of `every` and at the last step are used. Several evaluations of the same run, for
    example with different search settings, read the stored average.

    Raises UserError if there are too few checkpoints or if one is damaged.
    """
    chosen = kept_checkpoints.last(attempt, count, every)
    path = attempt / "averages" / f"last-{count}-to-{chosen[-1].name}-every-{every}"
    if (path / "meta.json").exists():
        with contextlib.suppress(UserError):  # compute a damaged average again
            return checkpoint.load_weights(path)
    weights = average_weights(chosen)
    with contextlib.suppress(UserError):  # the store is read-only or full; the average is computed again next time
        checkpoint.save_weights(path, weights, {"averaged": [p.name for p in chosen]})
    return weights


def average_weights(checkpoints: Sequence[Path]) -> dict[str, Tensor]:
    """Return the mean of the weights of several checkpoints, in the types of the weights.

    The checkpoints are loaded one after the other and summed in float64. Tensors that are not floating point are taken
    from the first checkpoint. Raises UserError if a checkpoint is damaged.
    """
    first = checkpoint.load_weights(checkpoints[0])
    sums = {name: tensor.double() for name, tensor in first.items() if tensor.is_floating_point()}
    for path in checkpoints[1:]:
        weights = checkpoint.load_weights(path)
        for name, total in sums.items():
            total += weights[name]
    return {n: (sums[n] / len(checkpoints)).to(t.dtype) if n in sums else t for n, t in first.items()}
