"""Translate lines of text with a trained model. The memory does not grow with the number of lines.

from experiments.evaluation.translator import Translator
translator = Translator.load("exported")
print(translator.translate(["Ein Hund rennt.", ""]))
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.config.run_config import RunConfig
from experiments.data.encoding.tokenizer import Tokenizer
from experiments.device import Device
from experiments.device_spec import DeviceSpec
from experiments.errors import UserError
from experiments.evaluation.beam import SearchSettings
from experiments.evaluation.export import exported_config
from experiments.evaluation.load_network import load_chosen, load_tokenizers
from experiments.evaluation.translate import texts_of, translate
from model.protocol import Network

WINDOWS = (64, 256, 1024, 4096)  # numbers of lines in memory; the first windows are small, so that output begins early
MAX_PIECES = 1024  # maximum length of a source line; the cost of attention grows with the square of the length


@dataclass(frozen=True)
class Translation:
    """One translation of a line."""

    text: str
    score: float  # log_prob / length penalty, plus the coverage penalty if it is set
    log_prob: float  # log P(text | line)
    finished: bool  # whether the translation ended before it reached the maximum length


class Translator:
    """A translator of lines of text with a trained model.

    settings: the search settings for calls without settings.
    """

    def __init__(
        self,
        model: Network,
        tokenizers: tuple[Tokenizer, Tokenizer],
        device: Device,
        settings: SearchSettings,
        *,
        replace_unknown: bool = False,
    ) -> None:
        self.model, self.device, self.settings, self.replace_unknown = model, device, settings, replace_unknown
        self.source_tokenizer, self.target_tokenizer = self.tokenizers = tokenizers

    @classmethod
    def of_run(
        cls, config: RunConfig, attempt: Path, spec: DeviceSpec, precision: str = "fp32", choice: str | None = None
    ) -> "Translator":
        """Load the model from the folder of the attempt that trained it.

        choice: "last", "best" or "average:K". None means `evaluation.checkpoint` of the configuration.
        """
        device = Device.open(spec, precision)
        model = load_chosen(config, choice, attempt, device)
        search = SearchSettings.of(config.evaluation.model_dump())
        tokenizers = load_tokenizers(config, attempt)
        return cls(model, tokenizers, device, search, replace_unknown=config.evaluation.replace_unknown)

    @classmethod
    def load(cls, folder: Path | str, spec: DeviceSpec | None = None, precision: str = "fp32") -> "Translator":
        """Load a model that `ablations export` has written. Raises UserError if the folder is no such model."""
        attempt = Path(folder)
        config = exported_config(attempt, RunConfig, "translation")
        return cls.of_run(config, attempt, spec or DeviceSpec(), precision, "last")

    def translate(self, lines: Iterable[str], settings: SearchSettings | None = None) -> list[str]:
        """Return the best translation of each line. The translation of an empty line is empty."""
        return [best[0].text for best in self.stream(lines, settings)]

    def stream(
        self,
        lines: Iterable[str],
        settings: SearchSettings | None = None,
        *,
        windows: Sequence[int] = WINDOWS,
        progress: Callable[[int], None] | None = None,
    ) -> Iterator[list[Translation]]:
        """Yield the n best translations of each line, best first. Lines keep their order.

        windows: numbers of lines to translate together. The last number is used for all further windows.
        progress: called with the number of translated lines.

        Raises UserError if a line has more than MAX_PIECES word pieces, or more than the model has positions for.
        """
        remaining, sizes, first = iter(lines), itertools.chain(windows, itertools.repeat(windows[-1])), 1
        for size in sizes:
            window = list(itertools.islice(remaining, size))
            if not window:
                return
            sources = self._encode(window, first)

            def report(done: int, _total: int, before: int = first - 1) -> None:
                if progress is not None:
                    progress(before + done)

            translated = translate(self.model, sources, settings or self.settings, self.device, progress=report)
            for line, hypotheses in zip(window, translated, strict=True):
                found = self.model, self.tokenizers, [line] * len(hypotheses), [h.ids for h in hypotheses], self.device
                texts = texts_of(*found, replace_unknown=self.replace_unknown)
                yield [
                    Translation(text, h.score, h.log_prob, h.finished)
                    for text, h in zip(texts, hypotheses, strict=True)
                ]
            first += len(window)

    def _encode(self, window: Sequence[str], first: int) -> list[list[int]]:
        sources = self.source_tokenizer.encode_batch(window, self.device.threads)
        most = MAX_PIECES if self.model.longest is None else min(MAX_PIECES, self.model.longest - 1)
        for number, source in enumerate(sources, first):
            if len(source) > most:
                raise UserError(f"Line {number} has {len(source)} pieces, more than {most}: split it into sentences.")
        return sources
