"""Sample text from a trained language model.

Shapes: B samples, V pieces of the vocabulary.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ablations.extras.language_models.task import LanguageConfig
from experiments.data.encoding.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Tokenizer
from experiments.device import Device
from experiments.device_spec import DeviceSpec
from experiments.evaluation.export import exported_config
from experiments.evaluation.likelihood import evaluating
from experiments.evaluation.load_network import load_chosen, load_tokenizers
from model.protocol import Network, SearchState


@dataclass(frozen=True)
class Choice:
    """Settings of sampling. Probabilities are the softmax of logits / temperature.

    temperature: 0 takes the most probable piece. top_k: sample from the `top_k` most probable pieces; 0 means all.
    top_p: of the pieces that `top_k` leaves, sample from the most probable ones. Their number is the smallest with a
    total probability of at least `top_p`.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0


class Sampler:
    """A trained language model that continues text."""

    choice = Choice

    def __init__(self, model: Network, tokenizer: Tokenizer, device: Device, window: int) -> None:
        self.model, self.tokenizer, self.device, self.window = model, tokenizer, device, window

    @classmethod
    def of_run(
        cls, config: LanguageConfig, attempt: Path, spec: DeviceSpec, precision: str = "fp32", choice: str | None = None
    ) -> "Sampler":
        """Load the model of a run from the folder of its attempt.

        choice: which checkpoint to load (`evaluation.checkpoint`); None means the one in the configuration.
        """
        device = Device.open(spec, precision)
        model = load_chosen(config, choice, attempt, device)
        return cls(model, load_tokenizers(config, attempt)[0], device, config.data.window)

    @classmethod
    def load(cls, folder: Path | str, spec: DeviceSpec | None = None, precision: str = "fp32") -> "Sampler":
        """Load a model that `ablations export` has written. Raises UserError for any other or damaged folder."""
        attempt = Path(folder)
        config = exported_config(attempt, LanguageConfig, "language_modelling")
        return cls.of_run(config, attempt, spec or DeviceSpec(), precision, "last")

    def sample(self, prompt: str, pieces: int, choice: Choice, samples: int = 1, seed: int = 1) -> list[str]:
        """Return continuations of a prompt. Each ends after `pieces` pieces or at the end of its document."""
        drawn = list(self.draw(prompt, pieces, choice, samples, seed))
        rows = torch.stack(drawn).T.tolist() if drawn else [[] for _ in range(samples)]
        ends = [row.index(EOS_ID) if EOS_ID in row else len(row) for row in rows]
        return [self.tokenizer.decode(row[:end]) for row, end in zip(rows, ends, strict=True)]

    def draw(self, prompt: str, pieces: int, choice: Choice, samples: int, seed: int) -> Iterator[Tensor]:
        """Yield the next piece of every sample, of shape (B,), until `pieces` are drawn or all documents have ended.

        The model reads the text in windows of the training's size. When a window is full, its second half begins the
        next window.
        """
        generator = torch.Generator(self.device.torch_device).manual_seed(seed)
        start = [EOS_ID, *self.tokenizer.encode(prompt)][-self.window + 1 :]
        so_far = [torch.full((samples,), piece, device=self.device.torch_device) for piece in start]
        ended = torch.zeros(samples, dtype=torch.bool, device=self.device.torch_device)
        state: SearchState | None = None
        with evaluating(self.model), self.device.autocast():
            for _ in range(pieces):
                if state is None or state.step == self.window:
                    state, logits = self._read(so_far[-self.window // 2 :] if state else so_far, samples)
                else:
                    logits = self._step(so_far[-1], state)
                chosen = drawn(logits, choice, generator)
                so_far.append(chosen)
                ended |= chosen == EOS_ID
                yield chosen
                if bool(ended.all()):
                    return

    def _read(self, pieces: Sequence[Tensor], samples: int) -> tuple[SearchState, Tensor]:
        """Start a window with these pieces. Return its state and the logits after the last piece."""
        memory = self.model.encode(torch.zeros(samples, 0, dtype=torch.int64, device=self.device.torch_device))
        state = self.model.start_decoding(memory, None, 1, self.window)
        for piece in pieces:
            logits = self._step(piece, state)
        return state, logits

    def _step(self, piece_B: Tensor, state: SearchState) -> Tensor:
        hidden = self.model.decode_step(piece_B.unsqueeze(1), state)
        return self.model.next_logits(hidden, state)[:, 0].float()


def drawn(logits_BV: Tensor, choice: Choice, generator: torch.Generator) -> Tensor:
    """Draw one piece for each row and return their ids, of shape (B,).

    PAD, BOS and UNK are never drawn, because no text contains them.
    """
    logits_BV = logits_BV.clone()
    logits_BV[:, [PAD_ID, BOS_ID, UNK_ID]] = -torch.inf
    if not choice.temperature:
        return logits_BV.argmax(-1)
    ordered, order_BV = torch.sort(logits_BV / choice.temperature, dim=-1, descending=True, stable=True)
    if choice.top_k:
        ordered[:, choice.top_k :] = -torch.inf
    shares = ordered.softmax(-1)
    before = shares.cumsum(-1) - shares  # total probability of the more probable pieces
    shares = shares.masked_fill(before >= choice.top_p, 0)
    place_B1 = torch.multinomial(shares, 1, generator=generator)
    piece_B1: Tensor = order_BV.gather(-1, place_B1)
    return piece_B1[:, 0]
