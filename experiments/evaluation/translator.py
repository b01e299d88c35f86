"""A trained model as a translator: text in, text out, in the input's order, with bounded memory.

from experiments.evaluation.translator import Translator
translator = Translator.load("exported")
print(translator.translate(["Ein Hund rennt.", ""]))
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.config import DeviceSpec, RunConfig
from experiments.data.encoding.tokenizer import Tokenizer
from experiments.device import Device
from experiments.errors import UserError
from experiments.evaluation.beam import SearchSettings
from experiments.evaluation.export import exported_config
from experiments.evaluation.trained import load_chosen, load_tokenizers
from experiments.evaluation.translate import translate
from model.protocol import Network

WINDOWS = (64, 256, 1024, 4096)  # lines in memory at once: few at first, so that output begins early
MAX_PIECES = 1024  # of a source line; longer lines are rarely sentences, and attention grows with the square


@dataclass(frozen=True)
class Translation:
    """One of a line's n best. `log_prob`: log P(text | line); `score`: that divided by the length penalty."""

    text: str
    score: float
    log_prob: float
    finished: bool  # False: it reached the length limit


class Translator:
    """Translates lines of text. `settings` are the run's own; each call may give others."""

    def __init__(
        self, model: Network, tokenizers: tuple[Tokenizer, Tokenizer], device: Device, settings: SearchSettings
    ) -> None:
        self.model, self.device, self.settings = model, device, settings
        self.source_tokenizer, self.target_tokenizer = tokenizers

    @classmethod
    def of_run(
        cls, config: RunConfig, attempt: Path, spec: DeviceSpec, precision: str = "fp32", choice: str | None = None
    ) -> "Translator":
        """Load from the folder of the attempt that trained; `choice` of checkpoint: the configuration's if None."""
        device = Device.open(spec, precision)
        model = load_chosen(config, choice, attempt, device)
        asked = config.evaluation
        search = SearchSettings(asked.beam_size, asked.length_penalty, asked.max_extra_length)
        return cls(model, load_tokenizers(config, attempt), device, search)

    @classmethod
    def load(cls, folder: Path | str, spec: DeviceSpec | None = None, precision: str = "fp32") -> "Translator":
        """Load from a folder of `ablations export`. Raises UserError for another or a damaged folder."""
        attempt = Path(folder)
        config = exported_config(attempt, RunConfig, "translation")
        return cls.of_run(config, attempt, spec or DeviceSpec(), precision, "last")

    def translate(self, lines: Iterable[str], settings: SearchSettings | None = None) -> list[str]:
        """The best translation of each line; an empty line stays empty."""
        return [best[0].text for best in self.stream(lines, settings)]

    def stream(
        self,
        lines: Iterable[str],
        settings: SearchSettings | None = None,
        *,
        windows: Sequence[int] = WINDOWS,
        max_pieces: int = MAX_PIECES,
        over_long: Callable[[int, int], None] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Iterator[list[Translation]]:
        """The n best of each line, best first, in the order of the input; at most the last window is in memory.

        A line of more than `max_pieces` is passed to `over_long` (number from 1, pieces) and stays empty; without
        `over_long` it raises UserError. `progress` gets the number of translated lines.
        """
        remaining, sizes, first = iter(lines), itertools.chain(windows, itertools.repeat(windows[-1])), 1
        for size in sizes:
            window = list(itertools.islice(remaining, size))
            if not window:
                return
            sources = self._encode(window, first, max_pieces, over_long)

            def told(done: int, _total: int, before: int = first - 1) -> None:
                if progress is not None:
                    progress(before + done)

            found = translate(self.model, sources, settings or self.settings, self.device, progress=told)
            for hypotheses in found:
                yield [
                    Translation(self.target_tokenizer.decode(h.ids), h.score, h.log_prob, h.finished)
                    for h in hypotheses
                ]
            first += len(window)

    def _encode(
        self, window: Sequence[str], first: int, max_pieces: int, over_long: Callable[[int, int], None] | None
    ) -> list[list[int]]:
        sources = self.source_tokenizer.encode_batch(window, self.device.threads)
        if self.model.longest is not None:
            max_pieces = min(max_pieces, self.model.longest - 1)
        for number, source in enumerate(sources):
            if len(source) <= max_pieces:
                continue
            if over_long is None:
                raise UserError(
                    f"Line {first + number} has {len(source)} pieces, more than {max_pieces}: split it into sentences."
                )
            over_long(first + number, len(source))
            sources[number] = []
        return sources
